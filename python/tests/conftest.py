"""conftest.py -- where tests find each other's helpers."""
import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parent))
