#!/usr/bin/env bash
# ptxas refuses a wide wgmma in a kernel of 512 threads, although the branch that has it took 208 registers with setmaxnreg.
# One would guess: behind `setmaxnreg.inc 208` a branch is compiled for 208 registers, whatever a thread has at the launch. Two accumulators of
# 64 x 128, which need as many registers as one of 64 x 256, show that this is so: their branch uses more than the 128 of the launch.
# What happens: for the instruction alone ptxas compares with the registers of the launch. m64n256 needs 154, a thread of 512 has 128, and the
# compilation ends with an error (C7602) that asks for a higher register target.
# Why it matters: kernels give a producer's registers to those that multiply. With eight producing warps beside eight that multiply, accumulators
# of 256 columns must be split into two instructions, although registers suffice.
# Seen with ptxas of nvidia-cuda-nvcc 13.0.88 and 13.5.37, disassembled by nvidia-cuda-nvdisasm 13.5.37. Needs no GPU.
source "$(dirname "$0")/common.bash"
fetch nvdisasm nvidia-cuda-nvdisasm==13.5.37
for version in 13.0.88 13.5.37; do fetch "$version" "nvidia-cuda-nvcc==$version"; done

# kernel THREADS COLUMNS COUNT: PTX in which warps of 256 threads take 208 registers, and add COUNT products of 64 x COLUMNS to as many accumulators.
kernel() {
  local registers=$(($2 / 2)) i j
  cat <<PTX
.version 8.5
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out, .param .u64 a, .param .u64 b, .param .u32 steps) .maxntid $1, 1, 1 .minnctapersm 1 {
  .reg .pred %p, %q;
  .reg .b32 %x, %steps;
  .reg .b64 %out, %a, %b, %at;
  .reg .f32 $(for ((i = 0; i < $3; i++)); do printf '%%d%d_<%d>%s' "$i" "$registers" "$([[ $i == $(($3 - 1)) ]] && echo ';' || echo ', ')"; done)
  mov.u32 %x, %tid.x;
  setp.lt.u32 %p, %x, 256;
  @%p bra MULTIPLY;
  setmaxnreg.dec.sync.aligned.u32 40;
  ret;
MULTIPLY:
  setmaxnreg.inc.sync.aligned.u32 208;
  ld.param.u64 %out, [out]; ld.param.u64 %a, [a]; ld.param.u64 %b, [b]; ld.param.u32 %steps, [steps];
$(for ((i = 0; i < $3; i++)); do for ((j = 0; j < registers; j++)); do echo "  mov.f32 %d${i}_$j, 0f00000000;"; done; done)
NEXT:
  wgmma.fence.sync.aligned;
  setp.ne.u32 %q, %steps, 0;
$(for ((i = 0; i < $3; i++)); do
    echo "  wgmma.mma_async.sync.aligned.m64n$2k16.f32.bf16.bf16 {$(for ((j = 0; j < registers; j++)); do printf '%%d%d_%d%s' "$i" "$j" "$([[ $j == $((registers - 1)) ]] || echo ', ')"; done)}, %a, %b, 1, 1, 1, 0, 0;"
  done)
  wgmma.commit_group.sync.aligned;
  wgmma.wait_group.sync.aligned 0;
  sub.u32 %steps, %steps, 1;
  @%q bra NEXT;
  mul.wide.u32 %at, %x, 4;
  add.u64 %out, %out, %at;
$(for ((i = 0; i < $3; i++)); do for ((j = 0; j < registers; j++)); do echo "  st.global.f32 [%out + $(((i * registers + j) * 1024))], %d${i}_$j;"; done; done)
  ret;
}
PTX
}

as_found=yes
for version in 13.0.88 13.5.37; do
  for shape in "384 256 1" "512 128 2" "512 256 1"; do
    read -r threads columns count <<<"$shape"
    kernel "$threads" "$columns" "$count" >"$work/k.ptx"
    if said=$("$work/$version/nvidia/cu13/bin/ptxas" -arch=sm_90a "$work/k.ptx" -o "$work/k.cubin" 2>&1); then
      highest=$("$work/nvdisasm/nvidia/cu13/bin/nvdisasm" -c "$work/k.cubin" | grep -o '\bR[0-9]\+\b' | sort -V | tail -1)
      echo "ptxas $version, $threads threads, $count accumulators of 64 x $columns: registers up to $highest"
      [[ $threads == 384 || ($columns == 128 && ${highest#R} -ge 128) ]] || as_found=no
    else
      echo "ptxas $version, $threads threads, $count accumulators of 64 x $columns: $(grep -o '(C[0-9]*) [A-Za-z ]*([0-9]*)' <<<"$said" | head -1)"
      [[ $threads == 512 && $columns == 256 && $said == *C7602* ]] || as_found=no
    fi
  done
done
[[ $as_found == yes ]] || changed "see the lines above"
