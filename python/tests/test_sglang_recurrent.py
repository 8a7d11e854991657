"""The hooks around SGLang's kernels for layers with a recurrent state, where SGLang, PyTorch and Triton are installed; see sglang_recurrent_steps.py."""
import importlib.util
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent


@pytest.mark.skipif(not all(importlib.util.find_spec(name) for name in ("torch", "triton", "sglang")), reason="SGLang, PyTorch and Triton are not installed")
def test_decode_steps_agree_with_sglangs_own_kernels():
    ran = subprocess.run([sys.executable, HERE / "sglang_recurrent_steps.py"], capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-4000:]
    assert "steps agree" in ran.stdout.splitlines()[-1]
