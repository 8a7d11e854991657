"""States of recurrent() after many steps on the emulator, where it is built and NumPy is installed; see emulated_drift.py."""
import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

import leanattn

HERE = pathlib.Path(__file__).resolve().parent
EMULATOR = pathlib.Path(leanattn.__file__).parents[2] / "tests/emulator"


@pytest.mark.skipif(not (EMULATOR / "cuda/libcuda.so.1").exists(), reason="the emulator is not built beside this package")
@pytest.mark.skipif(importlib.util.find_spec("numpy") is None, reason="NumPy is not installed")
def test_states_drift_no_more_than_those_of_a_plain_implementation_and_rings_replay_them(tmp_path):
    env = {**os.environ, "LD_LIBRARY_PATH": str(EMULATOR / "cuda"), "LEANATTN_NVRTC_DIR": str(EMULATOR / "nvrtc"), "LEANATTN_CACHE_DIR": str(tmp_path),
           "PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{HERE}"}
    env.pop("LEANATTN_NVRTC_LIB", None)
    ran = subprocess.run([sys.executable, HERE / "emulated_drift.py", "300"], env=env, capture_output=True, text=True, timeout=300)
    if "nvrtc_missing" in ran.stderr:
        pytest.skip("NVRTC is not installed")
    assert ran.returncode == 0, ran.stdout + ran.stderr[-3000:]
    assert len(ran.stdout.splitlines()) == 3
