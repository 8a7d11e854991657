"""group_kernels.py -- the two small kernels of the baselines: the correction before a reduce-scatter, and the packing before an all-to-all.

Inference engines have one kernel for each of these jobs, too (vLLM: Triton), so that the baselines are no slower than theirs.
"""
import ctypes

import torch

from peers import cuda_driver, systems

SOURCE = r"""
typedef unsigned short u16;
typedef unsigned long long u64;

// o: [batch, heads, dim] bf16, of one rank. lse: [ranks, batch, heads], natural logarithms. out: [heads, batch, dim], o
// times its weight among all ranks. A warp a row; dim is a multiple of 4.
extern "C" __global__ void __launch_bounds__(128) correct(const u16* o, const float* lse, u16* out, int batch, int heads,
                                                           int dim, int rank, int ranks) {
  const int row = blockIdx.x * 4 + threadIdx.x / 32, rows = batch * heads;
  if (row >= rows) return;
  float most = __int_as_float(0xff800000), sum = 0;
  for (int r = 0; r < ranks; r++) most = fmaxf(most, lse[r * rows + row]);
  for (int r = 0; r < ranks; r++) sum += most > __int_as_float(0xff800000) ? expf(lse[r * rows + row] - most) : 0.0f;
  const float weight = sum > 0 ? expf(lse[rank * rows + row] - most) / sum : 0.0f;
  const int request = row / heads, head = row - request * heads;
  const uint2* from = (const uint2*)(o + (u64)row * dim);
  uint2* to = (uint2*)(out + ((u64)head * batch + request) * dim);
  for (int i = threadIdx.x % 32; i < dim / 4; i += 32) {
    const uint2 x = from[i];
    const float a = __uint_as_float(x.x << 16) * weight, b = __uint_as_float(x.x & 0xffff0000u) * weight,
                c = __uint_as_float(x.y << 16) * weight, d = __uint_as_float(x.y & 0xffff0000u) * weight;
    uint2 y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y.x) : "f"(b), "f"(a));
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y.y) : "f"(d), "f"(c));
    to[i] = y;
  }
}

// packed: for each rank a chunk of chunk_bytes, with o of its heads, [batch, heads / ranks, dim], and then lse,
// [batch, heads / ranks].
extern "C" __global__ void __launch_bounds__(128) pack(const u16* o, const float* lse, char* packed, int batch, int heads,
                                                        int dim, int ranks, long long chunk_bytes) {
  const int row = blockIdx.x * 4 + threadIdx.x / 32, rows = batch * heads;
  if (row >= rows) return;
  const int request = row / heads, head = row - request * heads, share = heads / ranks, to = head / share;
  const u64 place = (u64)request * share + (head - to * share);
  char* const chunk = packed + to * chunk_bytes;
  const uint2* from = (const uint2*)(o + (u64)row * dim);
  uint2* into = (uint2*)((u16*)chunk + place * dim);
  for (int i = threadIdx.x % 32; i < dim / 4; i += 32) into[i] = from[i];
  if (threadIdx.x % 32 == 0) ((float*)(chunk + (u64)batch * share * dim * 2))[place] = lse[row];
}
"""


class GroupKernels:
    """Both kernels, compiled for the current GPU."""

    def __init__(self):
        torch.cuda.current_stream()  # makes torch's context current
        arch = cuda_driver.architecture(*torch.cuda.get_device_capability())
        module = cuda_driver.Module(cuda_driver.compile_source(SOURCE, arch))
        self._correct, self._pack = module.kernel("correct"), module.kernel("pack")

    def correct(self, o, lses, out, rank):
        """out [heads, batch, dim] from o [batch, heads, dim] and lses [ranks, batch, heads]."""
        self._launch(self._correct, o, lses, out, ctypes.c_int(rank), ctypes.c_int(lses.shape[0]))

    def pack(self, o, lse, packed):
        """packed [ranks, chunk bytes] uint8 from o [batch, heads, dim] and lse [batch, heads]."""
        self._launch(self._pack, o, lse, packed, ctypes.c_int(packed.shape[0]), ctypes.c_longlong(packed.shape[1]))

    @staticmethod
    def _launch(kernel, o, lse, out, *more):
        batch, heads, dim = o.shape
        pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (o, lse, out)]
        cuda_driver.launch(kernel, -(-batch * heads // 4), 128, 0, systems.stream(), *pointers, ctypes.c_int(batch), ctypes.c_int(heads), ctypes.c_int(dim), *more)


def chunk_bytes(batch, heads, dim, ranks):
    """Bytes of the chunk for one rank, a multiple of 16."""
    return -(-batch * (heads // ranks) * (2 * dim + 4) // 16) * 16


def unpacked(packed, batch, heads, dim):
    """Views of a packed buffer [ranks, chunk bytes]: for each rank o [batch, heads / ranks, dim] and lse [batch, heads / ranks]."""
    share = heads // packed.shape[0]
    o_bytes = batch * share * dim * 2
    o = [chunk[:o_bytes].view(torch.bfloat16).view(batch, share, dim) for chunk in packed]
    lse = [chunk[o_bytes:o_bytes + batch * share * 4].view(torch.float32).view(batch, share) for chunk in packed]
    return o, lse
