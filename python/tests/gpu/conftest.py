"""conftest.py -- tests that need a GPU; left out with a message where there is none."""
try:
    import torch

    missing = None if torch.cuda.is_available() else "PyTorch finds no CUDA device"
except ImportError:
    missing = "PyTorch is not installed"

if missing:
    collect_ignore_glob = ["test_*.py"]


def pytest_terminal_summary(terminalreporter):
    if missing:
        terminalreporter.line(f"GPU tests are left out: {missing}")
