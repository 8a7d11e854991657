"""conftest.py -- tests that need a GPU; skipped with a message where there is none."""
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if not torch.cuda.is_available():
    collect_ignore_glob = ["test_*.py"]


def pytest_report_header():
    return None if torch.cuda.is_available() else "GPU tests are left out: PyTorch finds no CUDA device"
