#!/usr/bin/env bash
# The log of NVRTC has a NUL within the length that it states, once ptxas has written into it.
# One would guess: nvrtcGetProgramLogSize counts "the trailing NULL", as its manual says, so that a string of size - 1 characters is the log.
# What happens: for a compilation to a cubin with --ptxas-options=-v the last two bytes are NUL. The last of the size - 1 characters is one, too.
# For a compilation to PTX with a warning, which ptxas has no part in, the last byte alone is.
# Why it matters: a std::string or a Python string of that length prints, stores and compares with a NUL at its end. It becomes \u0000 in JSON and a
# replacement character (U+FFFD) on many terminals and web pages, and "ends with a newline" is false. Strip NULs, or treat the buffer as a C string.
# Seen with nvidia-cuda-nvrtc 13.0.88 and 13.5.37. Needs no GPU.
source "$(dirname "$0")/common.bash"
install_nvrtc 13.0.88 13.5.37
PYTHONPATH=$here python3 - "$work" <<'PYTHON' || changed "see the lines above"
import sys

from nvrtc import compile

SOURCE = 'extern "C" __global__ void k(int* x) { int unused; *x = 1; }'
as_found = True
for version in ("13.0.88", "13.5.37"):
    for options, expected in ((("--gpu-architecture=sm_90a", "--ptxas-options=-v"), 2), (("--gpu-architecture=compute_90a",), 1)):
        status, log = compile(version, SOURCE, *options)
        terminators = len(log) - len(log.rstrip(b"\0"))
        print(f"NVRTC {version}, {' '.join(options)}: the log of {len(log)} bytes ends in {log[-12:]!r}, {terminators} NUL")
        as_found &= status == 0 and terminators == expected
sys.exit(0 if as_found else 1)
PYTHON
