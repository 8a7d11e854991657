#!/usr/bin/env bash
# ptxas puts a loop over the lanes of a warp around a tensor copy, even where one thread alone makes it.
# One would guess: behind `if (threadIdx.x == 0)` one lane is left, so its operands go to uniform registers once, and one UTMALDG follows.
# What happens: ptxas does not conclude that from the thread's index. The copy stands in a loop (ELECT, R2UR, UTMALDG, BRA.U.ANY) that would take the
# lanes one by one. Only where the thread was chosen by elect.sync is there no loop. Branches around both are the same otherwise.
# Why it matters: the loop is about ten instructions with long latencies for each copy. Where steps are made of many small boxes, as the pages of a
# KV cache are, a warp that requests them is busy with little else.
# Seen with ptxas of nvidia-cuda-nvcc 13.0.88 and 13.5.37, disassembled by nvidia-cuda-nvdisasm 13.5.37. Needs no GPU.
source "$(dirname "$0")/common.bash"
fetch nvdisasm nvidia-cuda-nvdisasm==13.5.37
for version in 13.0.88 13.5.37; do fetch "$version" "nvidia-cuda-nvcc==$version"; done

# kernel CHOICE: PTX of a kernel in which CHOICE sets %p for the thread that makes four tensor copies, of rows whose numbers it reads.
kernel() {
  cat <<PTX
.version 8.5
.target sm_90a
.address_size 64
.visible .entry k(.param .align 64 .b8 map[128], .param .u64 rows) {
  .reg .pred %p;
  .reg .b32 %x, %row<4>, %at, %barrier;
  .reg .b64 %rows, %map;
  .shared .align 1024 .b8 data[8192];
  .shared .align 8 .b64 arrived;
  mov.u32 %x, %tid.x;
  $1
  @!%p bra DONE;
  ld.param.u64 %rows, [rows];
  mov.u64 %map, map;
  mov.u32 %barrier, arrived;
$(for i in 0 1 2 3; do
    echo "  ld.global.u32 %row$i, [%rows + $((4 * i))];"
    echo "  mov.u32 %at, data; add.u32 %at, %at, $((2048 * i));"
    echo "  cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%at], [%map, {0, %row$i}], [%barrier];"
  done)
DONE:
  ret;
}
PTX
}
kernel 'setp.eq.u32 %p, %x, 0;' >"$work/first_thread.ptx"
kernel 'elect.sync _|%p, 0xffffffff;' >"$work/elected.ptx"

as_found=yes
for version in 13.0.88 13.5.37; do
  for name in first_thread elected; do
    "$work/$version/nvidia/cu13/bin/ptxas" -arch=sm_90a "$work/$name.ptx" -o "$work/$name.cubin"
    "$work/nvdisasm/nvidia/cu13/bin/nvdisasm" -c "$work/$name.cubin" >"$work/$name.sass"
    copies=$(grep -c UTMALDG "$work/$name.sass") loops=$(grep -c 'BRA.U.ANY' "$work/$name.sass" || true)
    echo "ptxas $version, $name: $copies copies, $loops loops over lanes"
    if [[ $name == elected ]]; then expected=0; else expected=$copies; fi
    [[ $copies == 4 && $loops == "$expected" ]] || as_found=no
  done
done
[[ $as_found == yes ]] || changed "see the lines above"
