#!/usr/bin/env bash
# A setmaxnreg that ptxas ignores is neither an error nor a warning, not even with -Werror=all-warnings.
# One would guess: a kernel whose warpgroups hand registers to each other either gets them, or does not compile; and that -Werror=all-warnings,
# which NVRTC has from 13.1 on, makes whatever the compiler had to say about it an error.
# What happens: without __launch_bounds__ (or .maxntid) ptxas does not know how many registers a thread starts with. It drops the instructions,
# says so in a line of "ptxas info" (C7508), which one sees with --ptxas-options=-v only, and NVRTC succeeds.
# Why it matters: the warpgroup that asked for 232 registers has its even share, and spills or runs slower. Nothing is wrong but the time. A build
# that treats warnings as errors does not notice; it has to look for C7508 in the log of ptxas -v.
# Seen with nvidia-cuda-nvrtc 13.0.88 and 13.5.37. Needs no GPU.
source "$(dirname "$0")/common.bash"
install_nvrtc 13.0.88 13.5.37
PYTHONPATH=$here python3 - "$work" <<'PYTHON' || changed "see the lines above"
import sys

from nvrtc import compile

SOURCE = """
extern "C" __global__ void BOUNDS k(float* x) {
  if (threadIdx.x >= 128) { asm volatile("setmaxnreg.dec.sync.aligned.u32 40;"); x[threadIdx.x] = 1; }
  else { asm volatile("setmaxnreg.inc.sync.aligned.u32 232;"); x[threadIdx.x] = 2; }
}
"""
as_found = True
for version in ("13.0.88", "13.5.37"):
    strict = () if version.startswith("13.0") else ("-Werror=all-warnings",)  # which 13.0 does not know
    for bounds in ("", "__launch_bounds__(256, 1)"):
        status, log = compile(version, SOURCE.replace("BOUNDS", bounds), "--ptxas-options=-v", *strict)
        ignored = next((line for line in log.decode().splitlines() if "C7508" in line), "nothing about setmaxnreg")
        print(f"NVRTC {version} {' '.join(strict)}, launch bounds {bounds or 'none'}: status {status}; {ignored}")
        as_found &= status == 0 and ("C7508" in ignored) == (bounds == "")
sys.exit(0 if as_found else 1)
PYTHON
