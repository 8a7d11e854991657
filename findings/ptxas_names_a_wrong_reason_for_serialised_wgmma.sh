#!/usr/bin/env bash
# The reason that ptxas gives for serialised wgmma instructions can be wrong.
# One would guess: "insufficient register resources for the wgmma pipeline" (C7511) means that the kernel has too many live values, and that
# fewer of them, or fewer threads a CTA, mend it.
# What happens: a kernel of 128 threads that uses 30 registers, of the 255 that it may, gets C7511. Its fault is another one: it multiplies an
# accumulator while the instruction that writes it may still run. NVRTC 12.3 named that for the same source (C7515, "non wgmma instructions
# defining accumulator registers"), 13.0 to 13.5 do not. Where the loop does not touch the accumulator, but sets it before the fence, they do.
# Why it matters: a serialised pipeline is several times as slow. Who believes the message halves the tile, which changes nothing.
# Seen with nvidia-cuda-nvrtc 13.0.88 and 13.5.37 (and nvidia-cuda-nvrtc-cu12 12.3.107). Needs no GPU.
source "$(dirname "$0")/common.bash"
install_nvrtc 13.0.88 13.5.37
PYTHONPATH=$here python3 - "$work" <<'PYTHON' || changed "see the lines above"
import re
import sys

from nvrtc import compile

SOURCE = """
extern "C" __global__ void __launch_bounds__(128) k(unsigned long long a, unsigned long long b, float* out, int n) {
  float d0 = 0, d1 = 0, d2 = 0, d3 = 0;
  asm volatile("wgmma.fence.sync.aligned;");
  for (int i = 0; i < n; ++i) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, %4, %5, 1, 1, 1, 0, 0;"
                 : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3) : "l"(a + i), "l"(b + i));
    d0 *= 1.5f;  // before wgmma.wait_group
  }
  asm volatile("wgmma.commit_group.sync.aligned;");
  asm volatile("wgmma.wait_group.sync.aligned 0;");
  out[threadIdx.x] = d0 + d1 + d2 + d3;
}
"""
as_found = True
for version in ("13.0.88", "13.5.37"):
    status, log = compile(version, SOURCE, "--ptxas-options=-v")
    text = log.decode().replace("\0", "")
    reason = next((line for line in text.splitlines() if "are serialized" in line), "not serialised")
    registers = int(re.search(r"Used (\d+) registers", text)[1])
    print(f"NVRTC {version}: {registers} registers; {reason}")
    as_found &= status == 0 and "insufficient register resources" in reason and registers < 64
sys.exit(0 if as_found else 1)
PYTHON
