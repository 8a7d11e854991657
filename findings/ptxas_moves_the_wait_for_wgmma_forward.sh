#!/usr/bin/env bash
# ptxas executes wgmma.wait_group before arithmetic that stands in front of it in PTX.
# One would guess: instructions between wgmma.commit_group and wgmma.wait_group run while the matrix unit works, because they stand there and use
# none of its registers. So a softmax written before the wait overlaps the product.
# What happens: within a basic block ptxas schedules the wait right behind the product, and all independent arithmetic behind the wait, also where
# every statement is `asm volatile` in CUDA C++. Nothing overlaps, and neither a warning nor the PTX shows it. Where a basic block ends between the
# arithmetic and the wait, for instance by a branch that is never taken, the wait stays behind the arithmetic.
# Why it matters: products and softmax of attention take turns instead of overlapping. The result is right, only the time is not.
# Seen with ptxas of nvidia-cuda-nvcc 13.0.88 and 13.5.37, disassembled by nvidia-cuda-nvdisasm 13.5.37. Needs no GPU.
source "$(dirname "$0")/common.bash"
fetch nvdisasm nvidia-cuda-nvdisasm==13.5.37
for version in 13.0.88 13.5.37; do fetch "$version" "nvidia-cuda-nvcc==$version"; done

# kernel BEFORE_WAIT: PTX with one product, 16 dependent exponentials of a number that is not the product's, BEFORE_WAIT, and the wait.
kernel() {
  cat <<PTX
.version 8.5
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 from, .param .u64 to, .param .u64 a, .param .u64 b) .maxntid 128 {
  .reg .f32 %d<4>, %x;
  .reg .b64 %from, %to, %a, %b;
  .reg .pred %p;
  ld.param.u64 %from, [from]; ld.param.u64 %to, [to]; ld.param.u64 %a, [a]; ld.param.u64 %b, [b];
  ld.global.f32 %x, [%from];
  mov.f32 %d0, 0f00000000; mov.f32 %d1, 0f00000000; mov.f32 %d2, 0f00000000; mov.f32 %d3, 0f00000000;
  wgmma.fence.sync.aligned;
  wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%d0, %d1, %d2, %d3}, %a, %b, 1, 1, 1, 0, 0;
  wgmma.commit_group.sync.aligned;
$(for _ in {1..16}; do echo '  ex2.approx.f32 %x, %x;'; done)
$1
  wgmma.wait_group.sync.aligned 0;
  add.f32 %x, %x, %d0;
  st.global.f32 [%to], %x;
  ret;
}
PTX
}
kernel '' >"$work/one_block.ptx"
kernel '  setp.lt.f32 %p, %x, 0f40000000; @%p bra NEXT; st.global.f32 [%to + 4096], %x; bar.sync 0;
NEXT:' >"$work/two_blocks.ptx"

as_found=yes
for version in 13.0.88 13.5.37; do
  for name in one_block two_blocks; do
    "$work/$version/nvidia/cu13/bin/ptxas" -arch=sm_90a "$work/$name.ptx" -o "$work/$name.cubin"
    # Of the exponentials (MUFU.EX2), those between the product (HGMMA) and the wait (WARPGROUP.DEPBAR).
    overlapped=$("$work/nvdisasm/nvidia/cu13/bin/nvdisasm" -c "$work/$name.cubin" |
      awk '/HGMMA/ { counts = 1 } /WARPGROUP.DEPBAR/ { print n + 0; exit } counts && /MUFU.EX2/ { n++ }')
    echo "ptxas $version, $name: $overlapped of 16 exponentials are issued before the wait"
    if [[ $name == one_block ]]; then expected=0; else expected=16; fi
    [[ $overlapped == "$expected" ]] || as_found=no
  done
done
[[ $as_found == yes ]] || changed "see the lines above"
