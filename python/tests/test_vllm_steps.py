"""The backends in vLLM's own Python, where vLLM and PyTorch are installed; see vllm_steps.py, vllm_latent_steps.py and vllm_selected_steps.py. No GPU is needed."""
import importlib.util
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent


@pytest.mark.skipif(not all(importlib.util.find_spec(name) for name in ("torch", "vllm")), reason="vLLM and PyTorch are not installed")
@pytest.mark.parametrize("program, steps", [("vllm_steps.py", 408), ("vllm_latent_steps.py", 119), ("vllm_selected_steps.py", 32)])
def test_mixed_steps_agree_with_attention_over_what_query_tokens_see(program, steps):
    ran = subprocess.run([sys.executable, HERE / program], capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert f"{steps} steps agree" in ran.stdout.splitlines()[-1]
