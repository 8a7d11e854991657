# What the scripts of this folder share. A script sources it, and then has the folder $work, which is removed at its end, and these functions.
# It sets: here (this folder), work, and after need_nvcc: nvcc.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# changed WHAT: the behaviour is another one now.
changed() { echo "CHANGED: $*" >&2; exit 1; }

# fetch FOLDER PACKAGE...: pinned packages of the Python index, unpacked into $work/FOLDER.
fetch() {
  PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --disable-pip-version-check --no-deps --target "$work/$1" "${@:2}" </dev/null
}

# install_nvrtc VERSION...: NVIDIA's wheels, where nvrtc.py looks for them.
install_nvrtc() {
  local version
  for version in "$@"; do fetch "$version" "nvidia-cuda-nvrtc==$version"; done
}

# need_gpu CC: exits 77 where there is no GPU of this compute capability (without a dot) or a later one.
need_gpu() {
  local capability
  capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d .) || true
  [[ -n "$capability" && "$capability" -ge "$1" ]] || { echo "needs a GPU of compute capability $1"; exit 77; }
}

# need_nvcc: sets nvcc to that of CUDA 13.0 on the PATH, or else to that of NVIDIA's wheels.
need_nvcc() {
  nvcc=$(command -v nvcc || true)
  if [[ -n "$nvcc" ]] && "$nvcc" --version | grep -q 'release 13\.0'; then return; fi
  fetch nvcc nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85
  nvcc=$work/nvcc/nvidia/cu13/bin/nvcc
}
