#!/usr/bin/env bash
# Needs no GPU, and no CUDA toolkit on the loader's path.
#
# One would guess: libnvrtc.so.13 of NVIDIA's wheel, loaded by its path, finds libnvrtc-builtins beside itself, as the libraries of other versions do.
# What happens: the wheel of 13.0.88 has neither RPATH nor RUNPATH. 12.9.86, 13.1.115 and 13.5.37 have $ORIGIN.
# Why it matters: on a machine with a toolkit everything works, because the loader finds the builtins of that. Where the wheel is all there is, every
# compilation ends in NVRTC_ERROR_BUILTIN_OPERATION_FAILURE (7). Loading the builtins first, by their path, cures it.
source "$(dirname "$0")/common.bash"
install_nvrtc 13.0.88 13.1.115 13.5.37
fetch 12.9.86 nvidia-cuda-nvrtc-cu12==12.9.86
python3 - "$work" <<'PYTHON' || changed "see the lines above"
import ctypes
import glob
import subprocess
import sys

COMPILE = """
import ctypes, sys
for path in sys.argv[2:]: ctypes.CDLL(path)
nvrtc, program = ctypes.CDLL(sys.argv[1]), ctypes.c_void_p()
nvrtc.nvrtcCreateProgram(ctypes.byref(program), b'extern "C" __global__ void k(int* x) { *x = 1; }', b"k.cu", 0, None, None)
print(nvrtc.nvrtcCompileProgram(program, 1, (ctypes.c_char_p * 1)(b"--gpu-architecture=sm_90a")))
"""


def folder_is_searched(path):
    """Whether the library itself says that its folder is searched."""
    return "$ORIGIN" in subprocess.run(["readelf", "-d", path], text=True, stdout=subprocess.PIPE, check=True).stdout


found = {}
for version in ("12.9.86", "13.0.88", "13.1.115", "13.5.37"):
    nvrtc = glob.glob(f"{sys.argv[1]}/{version}/nvidia/*/lib/libnvrtc.so.1?")[0]
    builtins = glob.glob(f"{sys.argv[1]}/{version}/nvidia/*/lib/libnvrtc-builtins.so.*")[0]
    status = [subprocess.run([sys.executable, "-c", COMPILE, nvrtc, *first], text=True, stdout=subprocess.PIPE, env={}).stdout.strip() for first in ((), (builtins,))]
    found[version] = folder_is_searched(nvrtc)
    print(f"{version}: its own folder is {'' if found[version] else 'not '}searched; status {status[0]}, with the builtins loaded first {status[1]}")
    if status[1] != "0":
        sys.exit(1)
sys.exit(0 if found == {"12.9.86": True, "13.0.88": False, "13.1.115": True, "13.5.37": True} else 1)
PYTHON
