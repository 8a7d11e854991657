"""The backend in SGLang's own Python, where SGLang and PyTorch are installed; see sglang_steps.py. No GPU is needed."""
import importlib.util
import pathlib
import subprocess
import sys

import pytest

PROGRAM = pathlib.Path(__file__).resolve().parent / "sglang_steps.py"


@pytest.mark.skipif(not all(importlib.util.find_spec(name) for name in ("torch", "sglang")), reason="SGLang and PyTorch are not installed")
def test_steps_agree_with_attention_over_the_whole_context():
    ran = subprocess.run([sys.executable, PROGRAM], capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert ran.stdout.splitlines()[-1] in ("405 steps agree", "612 steps agree")  # the latter with graphs of prefill, which 0.5.12 does not have
