"""The backend in vLLM's own Python, where vLLM and PyTorch are installed; see vllm_steps.py. No GPU is needed."""
import importlib.util
import pathlib
import subprocess
import sys

import pytest

PROGRAM = pathlib.Path(__file__).resolve().parent / "vllm_steps.py"


@pytest.mark.skipif(not all(importlib.util.find_spec(name) for name in ("torch", "vllm")), reason="vLLM and PyTorch are not installed")
def test_mixed_steps_agree_with_attention_over_the_whole_context():
    ran = subprocess.run([sys.executable, PROGRAM], capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert "216 steps agree" in ran.stdout.splitlines()[-1]
