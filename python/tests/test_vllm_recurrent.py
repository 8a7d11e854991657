"""The layers with a recurrent state in vLLM's own Python, where vLLM, PyTorch and Triton are installed; see vllm_recurrent_steps.py. No GPU is needed."""
import importlib.util
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent


@pytest.mark.skipif(not all(importlib.util.find_spec(name) for name in ("torch", "triton", "vllm")), reason="vLLM, PyTorch and Triton are not installed")
def test_decode_rows_agree_with_vllms_own_kernels():
    ran = subprocess.run([sys.executable, HERE / "vllm_recurrent_steps.py"], capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-4000:]
    assert "steps agree" in ran.stdout.splitlines()[-1]
