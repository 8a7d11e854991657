// check_kernels.cuh -- helper kernels of a check: fill q, k and v; the FP64 oracle; the plain implementation. Written
// to be obviously right, not fast: one CTA per (request, query head) row, scores in global scratch. Shapes and formats
// are run-time values, so one compilation serves every problem.

constexpr int kCheckThreads = 512;
constexpr int kCheckMaxHeadDim = 256;

__device__ __forceinline__ int check_context(const LeanDecodeArgs& args, int request) {
  const int length = args.context_lengths[request];
  return length < 0 ? 0 : length > args.context_capacity ? args.context_capacity : length;
}

// grid.x strides over (request, query head) rows.
extern "C" __global__ void __launch_bounds__(kCheckThreads)
    check_fill_q(LeanDecodeArgs args, int format, int q_heads, int head_dim, int kind, check_u64 seed) {
  unsigned short* q = (unsigned short*)args.q;  // [batch, q_heads, head_dim]
  const long long rows = (long long)args.batch * q_heads;
  for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
    const int request = (int)(row / q_heads), head = (int)(row % q_heads);
    for (int column = threadIdx.x; column < head_dim; column += kCheckThreads) {
      q[request * args.q_stride_batch + head * args.q_stride_head + column] =
          check_element(kind, seed, kCheckQ, format, request, head, 0, column, head_dim);
    }
  }
}

// Eight elements that follow each other in a row, packed.
__device__ __forceinline__ uint4 check_chunk(int kind, check_u64 seed, int tensor, int format, int request, int head,
                                             long long token, int column, int head_dim) {
  unsigned words[4];
  for (int i = 0; i < 4; ++i) {
    const unsigned low = check_element(kind, seed, tensor, format, request, head, token, column + 2 * i, head_dim);
    const unsigned high = check_element(kind, seed, tensor, format, request, head, token, column + 2 * i + 1, head_dim);
    words[i] = low | (high << 16);
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

// K and V below each context length, eight elements a thread; grid.y strides over (request, KV head), grid.x over
// chunks.
extern "C" __global__ void __launch_bounds__(kCheckThreads)
    check_fill_kv(LeanDecodeArgs args, int format, int head_dim, int kind, check_u64 seed) {
  const long long rows = (long long)args.batch * args.kv_heads;
  const int chunks_per_token = head_dim / 8;
  for (long long row = blockIdx.y; row < rows; row += gridDim.y) {
    const int request = (int)(row / args.kv_heads), head = (int)(row % args.kv_heads);
    unsigned short* k = (unsigned short*)args.k + request * args.k_stride_batch + head * args.k_stride_head;
    unsigned short* v = (unsigned short*)args.v + request * args.v_stride_batch + head * args.v_stride_head;
    const long long chunks = (long long)check_context(args, request) * chunks_per_token;
    const long long step = (long long)gridDim.x * kCheckThreads;
    for (long long chunk = (long long)blockIdx.x * kCheckThreads + threadIdx.x; chunk < chunks; chunk += step) {
      const long long token = chunk / chunks_per_token;
      const int column = (int)(chunk % chunks_per_token) * 8;
      *(uint4*)(k + token * args.k_stride_token + column) =
          check_chunk(kind, seed, kCheckK, format, request, head, token, column, head_dim);
      *(uint4*)(v + token * args.v_stride_token + column) =
          check_chunk(kind, seed, kCheckV, format, request, head, token, column, head_dim);
    }
  }
}

struct CheckAdd {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
struct CheckMax {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a > b ? a : b;
  }
};

// Reduction over the CTA, the same value in every thread. scratch: [kCheckThreads].
template <class T, class Op>
__device__ T check_reduce(T value, T* scratch, Op op) {
  __syncthreads();
  scratch[threadIdx.x] = value;
  for (int half = kCheckThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) scratch[threadIdx.x] = op(scratch[threadIdx.x], scratch[threadIdx.x + half]);
  }
  __syncthreads();
  return scratch[0];
}

// O and LSE of one row in the arithmetic of T: double is the oracle; float with rounded weights is the plain
// implementation.
template <class T>
struct CheckArithmetic;
template <>
struct CheckArithmetic<double> {
  __device__ static double weight(double x) { return exp(x); }
  __device__ static double rounded(double x, int) { return x; }
  __device__ static double logarithm(double x) { return log(x); }
};
template <>
struct CheckArithmetic<float> {
  __device__ static float weight(float x) { return expf(x); }
  __device__ static float rounded(float x, int format) { return check_to_float(format, check_from_float(format, x)); }
  __device__ static float logarithm(float x) { return logf(x); }
};

template <class T>
struct CheckRow {
  T o;  // column threadIdx.x, for threadIdx.x < head_dim
  T lse;
};

// weights: [longest] scratch of this CTA.
template <class T>
__device__ CheckRow<T> check_attend(const LeanDecodeArgs& args, int format, int q_heads, int head_dim, int request,
                                    int head, T* weights) {
  __shared__ T q_row[kCheckMaxHeadDim];
  __shared__ T scratch[kCheckThreads];
  typedef CheckArithmetic<T> Arithmetic;
  const int kv_head = head / (q_heads / args.kv_heads);
  const unsigned short* q = (const unsigned short*)args.q + request * args.q_stride_batch + head * args.q_stride_head;
  const unsigned short* k =
      (const unsigned short*)args.k + request * args.k_stride_batch + kv_head * args.k_stride_head;
  const unsigned short* v =
      (const unsigned short*)args.v + request * args.v_stride_batch + kv_head * args.v_stride_head;
  const int context = check_context(args, request);
  const T infinity = (T)check_bits_float(0x7f800000u);
  CheckRow<T> result;
  result.o = 0;
  result.lse = -infinity;
  if (context == 0) return result;

  for (int column = threadIdx.x; column < head_dim; column += kCheckThreads)
    q_row[column] = (T)check_to_float(format, q[column]);
  __syncthreads();
  const T scale = (T)args.scale_log2 * (T)0.69314718055994530942;

  T largest = -infinity;
  for (int token = threadIdx.x; token < context; token += kCheckThreads) {
    const uint4* row = (const uint4*)(k + token * args.k_stride_token);
    T score = 0;
    for (int chunk = 0; chunk < head_dim / 8; ++chunk) {
      const uint4 packed = row[chunk];
      const unsigned words[4] = {packed.x, packed.y, packed.z, packed.w};
      for (int i = 0; i < 4; ++i) {
        score += q_row[chunk * 8 + 2 * i] * (T)check_to_float(format, (unsigned short)(words[i] & 0xffffu));
        score += q_row[chunk * 8 + 2 * i + 1] * (T)check_to_float(format, (unsigned short)(words[i] >> 16));
      }
    }
    score *= scale;
    weights[token] = score;
    largest = score > largest ? score : largest;
  }
  largest = check_reduce(largest, scratch, CheckMax());

  T sum = 0;
  for (int token = threadIdx.x; token < context; token += kCheckThreads) {
    const T weight = Arithmetic::weight(weights[token] - largest);
    sum += weight;
    weights[token] = Arithmetic::rounded(weight, format);
  }
  sum = check_reduce(sum, scratch, CheckAdd());  // its barriers also publish the weights to the CTA

  const int slices = kCheckThreads / head_dim;
  const int slice = threadIdx.x / head_dim, column = threadIdx.x % head_dim;
  T o = 0;
  if (slice < slices) {
#pragma unroll 8
    for (int token = slice; token < context; token += slices) {
      o += weights[token] * (T)check_to_float(format, v[token * args.v_stride_token + column]);
    }
  }
  __syncthreads();
  scratch[threadIdx.x] = o;
  __syncthreads();
  if (threadIdx.x < head_dim) {
    o = 0;
    for (int i = 0; i < slices; ++i) o += scratch[i * head_dim + threadIdx.x];
    result.o = o / sum;
  }
  result.lse = largest + Arithmetic::logarithm(sum);
  return result;
}

// grid.x = rows. weights: [rows, longest]; o: [batch, q_heads, head_dim]; lse: [batch, q_heads], natural log.
extern "C" __global__ void __launch_bounds__(kCheckThreads)
    check_oracle(LeanDecodeArgs args, int format, int q_heads, int head_dim, long long first_row, long long longest,
                 double* weights, double* o, double* lse) {
  const long long row = first_row + blockIdx.x;
  const CheckRow<double> result = check_attend<double>(args, format, q_heads, head_dim, (int)(row / q_heads),
                                                       (int)(row % q_heads), weights + blockIdx.x * longest);
  if (threadIdx.x < head_dim) o[row * head_dim + threadIdx.x] = result.o;
  if (threadIdx.x == 0) lse[row] = result.lse;
}

// As check_oracle; o: bits of the format, [batch, q_heads, head_dim].
extern "C" __global__ void __launch_bounds__(kCheckThreads)
    check_plain(LeanDecodeArgs args, int format, int q_heads, int head_dim, long long first_row, long long longest,
                float* weights, unsigned short* o) {
  const long long row = first_row + blockIdx.x;
  const CheckRow<float> result = check_attend<float>(args, format, q_heads, head_dim, (int)(row / q_heads),
                                                     (int)(row % q_heads), weights + blockIdx.x * longest);
  if (threadIdx.x < head_dim) o[row * head_dim + threadIdx.x] = check_from_float(format, result.o);
}
