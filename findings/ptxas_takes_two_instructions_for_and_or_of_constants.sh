#!/usr/bin/env bash
# ptxas does not join an `and` and an `or` with constants into the one LOP3 that does both.
# One would guess: LOP3 computes any function of three inputs, so ptxas makes one of (x & 0x000f000f) | 0x64006400, and gives the second constant a
# register where the expression stands many times.
# What happens: an instruction holds one constant, and ptxas makes two LOP3 with one each, every time, however often the expression stands. PTX's
# own lop3.b32 with both constants gives one LOP3, and its second constant is moved to a register once.
# Why it matters: this expression turns two four-bit numbers into fp16 (1024 + x). Whoever unpacks four-bit weights or caches in CUDA C++ pays twice.
# Seen with ptxas of nvidia-cuda-nvcc 13.0.88 and 13.5.37, disassembled by nvidia-cuda-nvdisasm 13.5.37. Needs no GPU.
source "$(dirname "$0")/common.bash"
fetch nvdisasm nvidia-cuda-nvdisasm==13.5.37
for version in 13.0.88 13.5.37; do fetch "$version" "nvidia-cuda-nvcc==$version"; done

# kernel LINES: PTX that loads 16 words, changes each of them by LINES, where WORD stands for it, and stores them.
kernel() {
  cat <<PTX
.version 8.5
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 from, .param .u64 to) {
  .reg .b32 %r<16>;
  .reg .b64 %from, %to;
  ld.param.u64 %from, [from]; ld.param.u64 %to, [to];
$(for i in {0..15}; do echo "  ld.global.u32 %r$i, [%from + $((4 * i))];"; done)
$(for i in {0..15}; do echo "  ${1//WORD/%r$i}"; done)
$(for i in {0..15}; do echo "  st.global.u32 [%to + $((4 * i))], %r$i;"; done)
  ret;
}
PTX
}
kernel 'and.b32 WORD, WORD, 0x000f000f; or.b32 WORD, WORD, 0x64006400;' >"$work/and_or.ptx"
kernel 'lop3.b32 WORD, WORD, 0x000f000f, 0x64006400, 0xea;' >"$work/lop3.ptx"

as_found=yes
for version in 13.0.88 13.5.37; do
  for name in and_or lop3; do
    "$work/$version/nvidia/cu13/bin/ptxas" -arch=sm_90a "$work/$name.ptx" -o "$work/$name.cubin"
    instructions=$("$work/nvdisasm/nvidia/cu13/bin/nvdisasm" -c "$work/$name.cubin" | grep -c 'LOP3')
    echo "ptxas $version, $name: $instructions LOP3 for 16 words"
    if [[ $name == and_or ]]; then expected=32; else expected=16; fi
    [[ $instructions == "$expected" ]] || as_found=no
  done
done
[[ $as_found == yes ]] || changed "see the lines above"
