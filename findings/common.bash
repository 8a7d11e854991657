# What the scripts of this folder share. A script sources it, and then has the folder $work, which is removed at its end, and these functions.
# It sets: work, and after need_nvcc: nvcc.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# changed WHAT: the behaviour is another one now.
changed() { echo "CHANGED: $*" >&2; exit 1; }

# install PACKAGE...: pinned packages of the Python index, into a virtual environment; $python is its interpreter. With FINDINGS_PYTHON, an
# interpreter that has them already, for machines without a network.
install() {
  if [[ -n "${FINDINGS_PYTHON:-}" ]]; then python=$FINDINGS_PYTHON; return; fi
  python3 -m venv "$work/venv"
  python=$work/venv/bin/python
  "$python" -m pip install --quiet --disable-pip-version-check "$@" </dev/null
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
  python3 -m venv "$work/nvcc"
  "$work/nvcc/bin/python" -m pip install --quiet --disable-pip-version-check nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 \
    nvidia-cuda-crt==13.0.88 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85 </dev/null
  nvcc=$(echo "$work"/nvcc/lib/python3*/site-packages/nvidia/cu13/bin/nvcc)
}
