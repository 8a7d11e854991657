// check/kernels.cuh -- the kernels of a check: they fill q, k, v and the page table, and compute the FP64 oracle and
// the plain implementation. They are written to be obviously right, not fast: a CTA takes a row, of one request, query
// token and query head, and keeps its scores in global scratch. Shapes, formats and features are run-time values, so
// that one compilation serves every problem. Only a score expression needs one of its own, as a definition of
// CHECK_SCORE in front of this text.

#ifndef CHECK_SCORE
#define CHECK_SCORE(score, q_index, kv_index, head) (score)
#endif

constexpr int kCheckThreads = 512;
constexpr int kCheckMaxHeadDim = 640;

// The bits of an element of q, not turned.
__device__ __forceinline__ unsigned short check_query_bits(const CheckFeatures& check, int request, int head, int t,
                                                           int column) {
  return check_query_element(check.kind, check.seed, check.format, request, head, t, column, check.head_dim,
                             check.row_group, check.row_latent_columns);
}

// grid.x strides over (request, query token, query head) rows.
extern "C" __global__ void __launch_bounds__(kCheckThreads) check_fill_q(LeanDecodeArgs args, CheckFeatures check) {
  const long long rows = check_all_query_tokens(args, check) * check.q_heads;
  for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
    const int head = (int)(row % check.q_heads);
    const auto [request, t] = check_query_token_at(args, check, row / check.q_heads);
    const long long position = check_position(args, check, request, t);
    unsigned short* q = (unsigned short*)check_q_row(args, check, request, t, head);
    for (int column = threadIdx.x; column < check.head_dim; column += kCheckThreads) {
      const CheckTurned from = check_unturned(check.rope, check.first_rope_dim, check.rope_dim, position, column);
      const unsigned short bits = check_query_bits(check, request, head, t, from.column);
      q[column] = from.negative ? bits ^ 0x8000u : bits;
    }
  }
}

// Cosines and sines of quarter turns: [positions, rope_dim].
extern "C" __global__ void __launch_bounds__(kCheckThreads)
    check_fill_rope(CheckFeatures check, long long positions, float* table) {
  const int half = check.rope_dim / 2;
  for (long long i = (long long)blockIdx.x * kCheckThreads + threadIdx.x; i < positions * half;
       i += (long long)gridDim.x * kCheckThreads) {
    const long long position = i / half;
    const int pair = (int)(i % half), turns = check_quarter_turns(position, pair);
    float* row = table + position * check.rope_dim;
    row[pair] = turns == 0 ? 1.0f : turns == 2 ? -1.0f : 0.0f;
    row[half + pair] = turns == 1 ? 1.0f : turns == 3 ? -1.0f : 0.0f;
  }
}

// Whether each token has a scale that lies beside its row.
__device__ __forceinline__ bool check_scales_tokens(const CheckFeatures& check) {
  return check.kv_format != kCheckSame && check.row_bytes == 0 && check.kv_scale == kCheckScaleToken;
}

// The bits of an element of k_new or v_new, of 16 bits. Its row, once turned and converted, is what check_fill_kv
// writes into the cache.
__device__ __forceinline__ unsigned short check_new_element(const CheckFeatures& check, int tensor, int request,
                                                            int head, long long token, int column) {
  const int columns = tensor != kCheckV ? check.head_dim : check.v_head_dim;
  const CheckTurned from = check_unturned(tensor != kCheckV ? check.rope : kCheckNoRope, check.first_rope_dim,
                                          check.rope_dim, token, column);
  unsigned short bits;
  if (check.row_bytes > 0 && from.column < check.row_latent_columns) {
    const unsigned char byte = check_row_byte(check.kind, check.seed, check.row_latent_format, request, head, token,
                                              from.column, columns, check.row_group);
    const float scale = check_group_scale(check.kind, check.seed, request, head, token, from.column / check.row_group,
                                          check.row_plane > 0);
    bits =
        check_new_latent(check.row_latent_format, check.seed, byte, scale, request, head, token, from.column, columns);
  } else if (check.kv_format == kCheckSame || check.row_bytes > 0) {
    bits = check_element(check.kind, check.seed, tensor, check.format, request, head, token, from.column, columns);
  } else {
    float scale = check_kv_scale(check.kind, check.seed, tensor, check.kv_format, check.kv_scale, request, head, token);
    if (check.kv_format == kCheckFp4)
      scale *= check_byte_to_float(
          kCheckE4m3, check_block_scale(check.kind, check.seed, tensor, request, head, token, from.column / 16));
    const unsigned char byte =
        check_byte(check.kind, check.seed, tensor, check.kv_format, request, head, token, from.column, columns);
    bits = check_new_scaled(check.kind, check.seed, tensor, check.format, check.kv_format, byte, scale, request, head,
                            token, from.column, columns);
  }
  return from.negative ? bits ^ 0x8000u : bits;
}

// Four bytes of a row with a format of its own, from byte `at` on, and behind it of its scales in the plane.
__device__ __forceinline__ unsigned check_row_word(const CheckFeatures& check, int request, int head, long long token,
                                                   int at) {
  const int latent = at - check.row_latent, group = (at - check.row_scales) / 4,
            rope = (at - check.row_rope) / 2 + check.row_latent_columns;
  unsigned word = 0;
  if (at >= check.row_bytes) {
    for (int j = 3; j >= 0; --j) {
      const int of_byte = at - check.row_bytes + j;
      const float scale = check_group_scale(check.kind, check.seed, request, head, token, of_byte, /*power=*/true);
      word = word << 8 | (of_byte < check.row_latent_columns / check.row_group ? check_float_bits(scale) >> 23 : 0u);
    }
    return word;
  }
  if (latent >= 0 && latent < check.row_latent_columns) {
    for (int j = 3; j >= 0; --j)
      word = word << 8 | check_row_byte(check.kind, check.seed, check.row_latent_format, request, head, token,
                                        latent + j, check.head_dim, check.row_group);
    return word;
  }
  if (check.row_plane == 0 && at >= check.row_scales && group < check.row_latent_columns / check.row_group)
    return check_float_bits(check_group_scale(check.kind, check.seed, request, head, token, group, /*power=*/false));
  for (int j = 1; j >= 0 && at >= check.row_rope && rope < check.head_dim; --j)
    word = word << 16 | check_element(check.kind, check.seed, kCheckLatent, check.format, request, head, token,
                                      rope + j, check.head_dim);
  return word;
}

// Whether these four bytes belong to a part of the row, and how many of their elements are not as in `expected`. Zeros
// of rotated columns may have either sign, because turning one may change it.
__device__ __forceinline__ bool check_is_stored(const CheckFeatures& check, int at) {
  const int rope_bytes = 2 * (check.head_dim - check.row_latent_columns),
            scale_bytes = check.row_plane > 0 ? 0 : check.row_latent_columns / check.row_group * 4;
  return at >= check.row_bytes || (at >= check.row_latent && at < check.row_latent + check.row_latent_columns) ||
         (at >= check.row_scales && at < check.row_scales + scale_bytes) ||
         (at >= check.row_rope && at < check.row_rope + rope_bytes);
}
__device__ __forceinline__ int check_wrong_elements(const CheckFeatures& check, int at, unsigned expected,
                                                    unsigned found) {
  const unsigned differs = expected ^ found;
  if (at >= check.row_rope && at < check.row_rope + 2 * (check.head_dim - check.row_latent_columns)) {
    const bool low_zeros = ((expected | found) & 0x7fffu) == 0u, high_zeros = ((expected | found) & 0x7fff0000u) == 0u;
    return ((differs & 0xffffu) != 0u && !low_zeros) + (differs >> 16 != 0u && !high_zeros);
  }
  if (check.row_plane == 0 && at >= check.row_scales &&
      at < check.row_scales + check.row_latent_columns / check.row_group * 4)
    return differs != 0u;
  return ((differs & 0xffu) != 0u) + ((differs >> 8 & 0xffu) != 0u) + ((differs >> 16 & 0xffu) != 0u) +
         (differs >> 24 != 0u);
}

enum CheckNewStep { kCheckPlantNew = 0, kCheckSpoilCached = 1, kCheckCountWrong = 2 };

// Does one of three things with the query tokens' K and V: writes k_new and v_new, overwrites their rows in the cache
// with what no data is, or counts the elements of those rows that are not what they should be. grid.x strides over
// (request, query token, KV head).
extern "C" __global__ void __launch_bounds__(kCheckThreads)
    check_new_rows(LeanDecodeArgs args, CheckFeatures check, int step, unsigned long long* wrong) {
  const long long rows = check_all_query_tokens(args, check) * args.kv_heads;
  for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
    const int head = (int)(row % args.kv_heads);
    const auto [request, t] = check_query_token_at(args, check, row / args.kv_heads);
    const long long position = check_position(args, check, request, t);
    if (position < 0) continue;
    // Nothing is written into a hole, or where another rank has the token. What is planted is what would be.
    const long long token = check_token_at(args, check, request, position);
    if (step != kCheckPlantNew && (token < 0 || check_in_hole(args, check, request, token))) continue;
    if (check.row_bytes > 0 && step != kCheckPlantNew) {
      const char* const there = (char*)args.k + check_k_offset(args, check, request, head, token);
      for (int i = threadIdx.x; i < (check.row_bytes + check.row_plane) / 4; i += kCheckThreads) {
        if (!check_is_stored(check, 4 * i)) continue;
        unsigned& word = *(unsigned*)check_row_at(check, there, token, 4 * i);
        if (step == kCheckSpoilCached) word = 0xffffffffu;
        const int differ =
            check_wrong_elements(check, 4 * i, check_row_word(check, request, head, position, 4 * i), word);
        if (step == kCheckCountWrong && differ > 0) atomicAdd(wrong, (unsigned long long)differ);
      }
      continue;
    }
    for (int i = threadIdx.x; i < check_stored_columns(check); i += kCheckThreads) {
      const bool keys = i < check.head_dim;
      const int tensor = keys ? check_key_tensor(check) : kCheckV, column = keys ? i : i - check.head_dim;
      const int columns = keys ? check.head_dim : check.v_head_dim;
      if (step == kCheckPlantNew) {
        ((unsigned short*)check_new_row(args, check, tensor, request, t, head))[column] =
            check_new_element(check, tensor, request, head, position, column);
        continue;
      }
      if (column == 0 && check_scales_tokens(check)) {
        unsigned& scale =
            ((unsigned*)(keys ? args.k_scale : args.v_scale))[check_scale_offset(args, check, request, head, token)];
        if (step == kCheckSpoilCached) scale = 0xffffffffu;
        if (step == kCheckCountWrong &&
            scale != check_float_bits(check_kv_scale(check.kind, check.seed, tensor, check.kv_format, check.kv_scale,
                                                     request, head, position)))
          atomicAdd(wrong, 1ull);
      }
      if (column % 16 == 0 && check.kv_format == kCheckFp4) {
        unsigned char& scale = *check_block_scale_at(args, check, keys, request, head, token, column);
        if (step == kCheckSpoilCached) scale = 0xffu;
        if (step == kCheckCountWrong &&
            scale != check_block_scale(check.kind, check.seed, tensor, request, head, position, column / 16))
          atomicAdd(wrong, 1ull);
      }
      const bool nibble = check_has_nibbles(check);
      const long long offset = (keys ? check_k_offset(args, check, request, head, token)
                                     : check_v_offset(args, check, request, head, token)) +
                               (nibble ? column / 2 : column);
      const void* cache = keys ? args.k : args.v;
      const unsigned bits_mask = check.kv_format == kCheckSame ? 0x7fffu : nibble ? 7u : 0x7fu;
      unsigned expected, found;
      if (check.kv_format == kCheckSame) {
        unsigned short& there = ((unsigned short*)cache)[offset];
        if (step == kCheckSpoilCached) there = 0xffffu;
        expected =
            check_element(check.kind, check.seed, tensor, check.format, request, head, position, column, columns);
        found = there;
      } else {
        unsigned char& there = ((unsigned char*)cache)[offset];
        if (step == kCheckSpoilCached) there = check.kv_format == kCheckInt8 ? 0x80u : 0xffu;
        expected =
            check_byte(check.kind, check.seed, tensor, check.kv_format, request, head, position, column, columns);
        found = nibble ? there >> column % 2 * 4 & 15u : there;
      }
      // Turning a zero may change its sign.
      const bool zeros = check.kv_format != kCheckInt8 && check.kv_format != kCheckInt4 &&
                         (expected & bits_mask) == 0u && (found & bits_mask) == 0u;
      if (step == kCheckCountWrong && found != expected && !zeros) atomicAdd(wrong, 1ull);
    }
  }
}

// Writes the spans of all query tokens, before the page table. A thread takes one.
extern "C" __global__ void __launch_bounds__(kCheckThreads) check_fill_spans(LeanDecodeArgs args, CheckFeatures check) {
  const long long tokens = check_all_query_tokens(args, check);
  for (long long i = (long long)blockIdx.x * kCheckThreads + threadIdx.x; i < tokens;
       i += (long long)gridDim.x * kCheckThreads) {
    const auto [request, t] = check_query_token_at(args, check, i);
    const CheckSpan span = check_span(check.seed, request, check_position(args, check, request, t));
    ((LeanSpan*)args.spans)[i] = {span.first, span.end};
  }
}

// Fills the page table: with pages or holes for what a request may read, and with numbers that no pool has everywhere
// else.
// pages: [batch, max_pages], all different.
extern "C" __global__ void __launch_bounds__(kCheckThreads)
    check_fill_table(LeanDecodeArgs args, CheckFeatures check, const int* pages) {
  const long long entries = (long long)args.batch * check.max_pages;
  for (long long i = (long long)blockIdx.x * kCheckThreads + threadIdx.x; i < entries;
       i += (long long)gridDim.x * kCheckThreads) {
    const int request = (int)(i / check.max_pages), entry = (int)(i % check.max_pages);
    const long long first = (long long)entry * check.page_size, end = first + check.page_size;
    int page = (entry & 1) != 0 ? -1 : 0x7fffffff;
    if (check_live(args, check, request, first, end)) {
      const int owner = request + check.data_request;
      page = check_is_hole(check.seed, owner, entry, check.hole_every)
                 ? check_hole_number(check.seed, owner, entry, args.pool_pages)
                 : pages[end <= check_shared_tokens(args, check) ? entry : i];
    }
    ((int*)args.page_table)[request * args.page_table_stride + entry] = page;
  }
}

// Writes the lists of what query tokens have selected, and their counts, after the page table. What stands behind the
// entries that count is the block at the start. grid.x strides over (request, query token, list).
extern "C" __global__ void __launch_bounds__(kCheckThreads)
    check_fill_selection(LeanDecodeArgs args, CheckFeatures check) {
  const long long lists = (long long)args.batch * check.q_len * check.selection_heads;
  for (long long i = blockIdx.x; i < lists; i += gridDim.x) {
    const int head = (int)(i % check.selection_heads), t = (int)(i / check.selection_heads % check.q_len);
    const int request = (int)(i / check.selection_heads / check.q_len);
    const int count = check_entries(args, check, request, t);
    int* list = (int*)args.selection + request * args.selection_stride_batch + t * args.selection_stride_token +
                head * args.selection_stride_head;
    for (int index = threadIdx.x; index < args.selection_capacity; index += kCheckThreads) {
      int block = index < count ? check_entry(args, check, request, t, head, index) : 0;
      if (check.selection_in_pool && index < count && block >= 0) {
        const int blocks_of_page = check.page_size / check.selection_block;
        const int page = args.page_table[request * args.page_table_stride + block / blocks_of_page];
        block = page < 0 || page >= args.pool_pages ? -1 : page * blocks_of_page + block % blocks_of_page;
      }
      list[index] = block;
    }
    if (head == 0 && threadIdx.x == 0) ((int*)args.selected_counts)[request * check.q_len + t] = count;
  }
}

// Elements of 16 bytes, and the bytes in which strides count.
__device__ __forceinline__ int check_elements_of_16(const CheckFeatures& check) {
  return check.kv_format == kCheckSame ? 8 : check_has_nibbles(check) ? 32 : 16;
}
__device__ __forceinline__ int check_stride_bytes(const CheckFeatures& check) {
  return check.kv_format == kCheckSame ? 2 : 1;
}

// Rows of which scales are a part are aligned to 4 bytes only.
__device__ __forceinline__ uint4 check_load_16(const void* from) {
  if (((unsigned long long)from & 15u) == 0u) return *(const uint4*)from;
  const unsigned* const words = (const unsigned*)from;
  return make_uint4(words[0], words[1], words[2], words[3]);
}
__device__ __forceinline__ void check_store_16(void* to, const uint4& x) {
  unsigned* const words = (unsigned*)to;
  if (((unsigned long long)to & 15u) == 0u) {
    *(uint4*)to = x;
  } else {
    words[0] = x.x, words[1] = x.y, words[2] = x.z, words[3] = x.w;
  }
}

// 16 bytes of neighbouring elements of a row.
__device__ __forceinline__ uint4 check_chunk(const CheckFeatures& check, int tensor, int request, int head,
                                             long long token, int column, int head_dim) {
  unsigned words[4];
  for (int i = 0; i < 4; ++i) {
    unsigned word = 0;
    if (check.kv_format == kCheckSame) {
      for (int j = 1; j >= 0; --j)
        word = word << 16 | check_element(check.kind, check.seed, tensor, check.format, request, head, token,
                                          column + 2 * i + j, head_dim);
    } else if (check_has_nibbles(check)) {
      for (int j = 7; j >= 0; --j)
        word = word << 4 | check_byte(check.kind, check.seed, tensor, check.kv_format, request, head, token,
                                      column + 8 * i + j, head_dim);
    } else {
      for (int j = 3; j >= 0; --j)
        word = word << 8 | check_byte(check.kind, check.seed, tensor, check.kv_format, request, head, token,
                                      column + 4 * i + j, head_dim);
    }
    words[i] = word;
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

// The value of a column of such a row, whose scales begin there. One of a plane is an exponent of two plus 127, or NaN.
template <class T>
__device__ __forceinline__ T check_row_value(const CheckFeatures& check, const unsigned char* row,
                                             const unsigned char* scales, int column) {
  if (column >= check.row_latent_columns)
    return (T)check_to_float(check.format,
                             ((const unsigned short*)(row + check.row_rope))[column - check.row_latent_columns]);
  const int group = column / check.row_group;
  const T scale = check.row_plane == 0   ? (T)((const float*)scales)[group]
                  : scales[group] == 255 ? (T)check_bits_float(0x7fc00000u)
                                         : (T)exp2((double)scales[group] - 127);
  return (T)check_byte_to_float(check.row_latent_format, row[check.row_latent + column]) * scale;
}

// Writes K, V and the scales of tokens or blocks where some query token may read them, 16 bytes a thread. grid.y
// strides over (request, KV head), and grid.x over chunks. Pages that requests share are written more than once, with
// the same bytes.
extern "C" __global__ void __launch_bounds__(kCheckThreads) check_fill_kv(LeanDecodeArgs args, CheckFeatures check) {
  const long long rows = (long long)args.batch * args.kv_heads;
  const int chunk_elements = check_elements_of_16(check), stride_bytes = check_stride_bytes(check);
  const int widest = check.head_dim > check.v_head_dim ? check.head_dim : check.v_head_dim;
  const int row_bytes = check.row_bytes + check.row_plane;
  const int chunks_per_token = check.row_bytes > 0 ? (row_bytes + 15) / 16 : widest / chunk_elements;
  const int shared = check_shared_tokens(args, check);
  for (long long row = blockIdx.y; row < rows; row += gridDim.y) {
    const int request = (int)(row / args.kv_heads), head = (int)(row % args.kv_heads);
    // Of requests that follow each other, those whose rows nobody reads have NaN in front of the others.
    if (check.packed_kv && check_query_tokens(args, check, request) == 0) continue;
    const long long chunks = (long long)check_held(args, check, request) * chunks_per_token;
    const long long step = (long long)gridDim.x * kCheckThreads;
    for (long long chunk = (long long)blockIdx.x * kCheckThreads + threadIdx.x; chunk < chunks; chunk += step) {
      const long long token = chunk / chunks_per_token;
      const int at = (int)(chunk % chunks_per_token) * 16, column = at / 16 * chunk_elements;
      // A page is read as a whole or not at all. What a dense cache holds before the window's first run is never read.
      const long long page = check.page_size == 0 ? 1 : check.page_size, first = token / page * page;
      if (!check_live(args, check, request, first, first + page)) continue;
      if (check_in_hole(args, check, request, token)) continue;
      const int owner = token < shared ? 0 : request + check.data_request;
      const long long position = check_token_position(args, check, request, token);  // by which its data is drawn
      if (check.row_bytes > 0) {
        const char* const there = (char*)args.k + check_k_offset(args, check, request, head, token);
        for (int word = at; word < at + 16 && word < row_bytes; word += 4)
          *(unsigned*)check_row_at(check, there, token, word) = check_row_word(check, owner, head, position, word);
        continue;
      }
      if (column < check.head_dim) {
        check_store_16((char*)args.k + check_k_offset(args, check, request, head, token) * stride_bytes + at,
                       check_chunk(check, check_key_tensor(check), owner, head, position, column, check.head_dim));
        for (int block = column / 16; check.kv_format == kCheckFp4 && block < column / 16 + 2; ++block)
          *check_block_scale_at(args, check, true, request, head, token, block * 16) =
              check_block_scale(check.kind, check.seed, check_key_tensor(check), owner, head, position, block);
      }
      if (column < check.v_head_dim && !check.latent) {
        check_store_16((char*)args.v + check_v_offset(args, check, request, head, token) * stride_bytes + at,
                       check_chunk(check, kCheckV, owner, head, position, column, check.v_head_dim));
        for (int block = column / 16; check.kv_format == kCheckFp4 && block < column / 16 + 2; ++block)
          *check_block_scale_at(args, check, false, request, head, token, block * 16) =
              check_block_scale(check.kind, check.seed, kCheckV, owner, head, position, block);
      }
      if (column == 0 && check_scales_tokens(check)) {
        const long long offset = check_scale_offset(args, check, request, head, token);
        ((float*)args.k_scale)[offset] = check_kv_scale(check.kind, check.seed, check_key_tensor(check),
                                                        check.kv_format, check.kv_scale, owner, head, position);
        if (check.latent) continue;
        ((float*)args.v_scale)[offset] =
            check_kv_scale(check.kind, check.seed, kCheckV, check.kv_format, check.kv_scale, owner, head, position);
      }
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

// Reduces over the CTA. Every thread returns the same value. scratch: [kCheckThreads].
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

// O and LSE of one row in the arithmetic of T. The oracle uses double, and the plain implementation float with rounded
// weights.
template <class T>
struct CheckArithmetic;
template <>
struct CheckArithmetic<double> {
  __device__ static double weight(double x) { return exp(x); }
  __device__ static double rounded(double x, int) { return x; }
  __device__ static double logarithm(double x) { return log(x); }
  __device__ static double tangent(double x) { return tanh(x); }
};
template <>
struct CheckArithmetic<float> {
  __device__ static float weight(float x) { return expf(x); }
  __device__ static float rounded(float x, int format) { return check_to_float(format, check_from_float(format, x)); }
  __device__ static float logarithm(float x) { return logf(x); }
  __device__ static float tangent(float x) { return tanhf(x); }
};

template <class T>
struct CheckRow {
  T o;  // column threadIdx.x, for threadIdx.x < v_head_dim
  T lse;
};

// Whether query token `t` of `query_tokens`, which are the last of `context` tokens, sees token j. word: that of the
// tree mask. span: the one it is in.
__device__ __forceinline__ bool check_visible(const CheckFeatures& check, int context, int query_tokens, int t,
                                              unsigned word, const LeanSpan& span, int j) {
  const long long position = (long long)context - query_tokens + t, first = (long long)context - query_tokens;
  if (check.mask == kCheckTree && check.q_len > 1) return j < first || ((word >> (int)(j - first)) & 1u) != 0u;
  if (j >= span.first && j < span.end) return true;
  const bool causal = check.mask != kCheckFull || check.q_len == 1;
  if (causal && j > position) return false;
  if (check.window == 0 || j < check.sink_tokens) return true;
  return j > position - check.window && j < position + check.window;
}

// q . k of one token, whose key is at `row`. zero: its zero point. block_scales: those of its blocks, if any. token: of
// its cache.
template <class T>
__device__ T check_dot(const CheckFeatures& check, const T* q_row, const char* row, int zero,
                       const unsigned char* block_scales, long long token) {
  T score = 0;
  if (check.row_bytes > 0) {
    const unsigned char* const scales = check_row_scales(check, row, token);
    for (int column = 0; column < check.head_dim; ++column)
      score += q_row[column] * check_row_value<T>(check, (const unsigned char*)row, scales, column);
    return score;
  }
  const int chunk_elements = check_elements_of_16(check);
  for (int chunk = 0; chunk < check.head_dim / chunk_elements; ++chunk) {
    const uint4 packed = check_load_16(row + 16 * chunk);
    const unsigned words[4] = {packed.x, packed.y, packed.z, packed.w};
    const T* q = q_row + chunk * chunk_elements;
    for (int i = 0; i < 4; ++i) {
      if (check.kv_format == kCheckSame) {
        score += q[2 * i] * (T)check_to_float(check.format, (unsigned short)(words[i] & 0xffffu));
        score += q[2 * i + 1] * (T)check_to_float(check.format, (unsigned short)(words[i] >> 16));
      } else if (check.kv_format == kCheckInt4) {
        for (int j = 0; j < 8; ++j) score += q[8 * i + j] * (T)((int)(words[i] >> 4 * j & 15u) - zero);
      } else if (check.kv_format == kCheckFp4) {
        const T scale = (T)check_byte_to_float(kCheckE4m3, block_scales[2 * chunk + i / 2]);
        for (int j = 0; j < 8; ++j)
          score += q[8 * i + j] * scale * (T)check_byte_to_float(kCheckFp4, (unsigned char)(words[i] >> 4 * j & 15u));
      } else {
        for (int j = 0; j < 4; ++j)
          score += q[4 * i + j] * (T)check_byte_to_float(check.kv_format, (unsigned char)((words[i] >> 8 * j) & 0xffu));
      }
    }
  }
  return score;
}

// weights: [longest] scratch of this CTA.
template <class T>
__device__ CheckRow<T> check_attend(const LeanDecodeArgs& args, const CheckFeatures& check, int request, int t,
                                    int head, T* weights) {
  __shared__ T q_row[kCheckMaxHeadDim];
  __shared__ T scratch[kCheckThreads];
  typedef CheckArithmetic<T> Arithmetic;
  const int kv_head = head / (check.q_heads / args.kv_heads);
  const int context = check_context(args, check, request), query_tokens = check_query_tokens(args, check, request);
  const int position = (int)check_position(args, check, request, t);
  const T infinity = (T)check_bits_float(0x7f800000u);
  CheckRow<T> result;
  result.o = 0;
  result.lse = check.sink_logits ? (T)args.sink_logits[head] : -infinity;
  if (context == 0 && !check.second_cache) return result;

  const unsigned short* q = check_q_row(args, check, request, t, head);
  for (int column = threadIdx.x; column < check.head_dim; column += kCheckThreads) {
    // The row that turning gives, instead of the one before.
    const unsigned short bits =
        check.rope == kCheckNoRope ? q[column] : check_query_bits(check, request, head, t, column);
    q_row[column] = (T)check_to_float(check.format, bits);
  }
  __syncthreads();

  const bool scaled_k = check.kv_format != kCheckSame && args.k_scale != nullptr;
  const bool scaled_v = check.kv_format != kCheckSame && args.v_scale != nullptr;
  const bool by_token = check.kv_scale == kCheckScaleToken;
  // A plain kernel multiplies one-byte values, made fp16, by fp16 weights.
  const int weight_format = check.kv_format == kCheckSame || check.row_bytes > 0 ? check.format : kCheckFp16;
  const unsigned word =
      check.mask == kCheckTree && check.q_len > 1 ? args.tree_mask[check_query_token(args, check, request, t)] : 0u;
  const LeanSpan span = check.spans ? args.spans[check_query_token(args, check, request, t)] : LeanSpan{0, 0};
  const int stride_bytes = check_stride_bytes(check);
  // Words of scales that have zero points in them.
  const bool with_zeros = check.kv_format == kCheckInt4;

  const int reads = check_reads(args, check, request, t);
  T largest = -infinity;
  for (int read = threadIdx.x; read < reads; read += kCheckThreads) {
    const int token = check_read_token(args, check, request, t, kv_head, read);
    T score = -infinity;
    if (token < -1) {
      const long long offset = check_second_offset(args, check, request, kv_head, -2 - token, args.k_stride_batch,
                                                   args.k_stride_head, args.k_stride_token);
      if (offset >= 0) {
        score = check_dot<T>(check, q_row, (const char*)args.second_k + offset * stride_bytes, 0, nullptr, -2 - token) *
                (T)check.scale;
        if (check.soft_cap != 0) score = (T)check.soft_cap * Arithmetic::tangent(score / (T)check.soft_cap);
      }
    } else if (token >= 0 && !check_in_hole(args, check, request, token) &&
               (check.selection_in_pool || check_visible(check, context, query_tokens, t, word, span, token))) {
      const long long offset = check_k_offset(args, check, request, kv_head, token);
      float unit = 1.0f;
      if (scaled_k) unit = args.k_scale[check_scale_offset(args, check, request, kv_head, token)];
      const int zero = with_zeros ? check_zero_of_word(unit) : 0;
      const unsigned char* const block_scales =
          check.kv_format == kCheckFp4 ? check_block_scale_at(args, check, true, request, kv_head, token, 0) : nullptr;
      score = check_dot<T>(check, q_row, (const char*)args.k + offset * stride_bytes, zero, block_scales, token) *
              (T)check.scale;
      if (scaled_k) score *= (T)(with_zeros ? check_scale_of_word(unit) : unit);
      if (check.soft_cap != 0) score = (T)check.soft_cap * Arithmetic::tangent(score / (T)check.soft_cap);
      if (check.alibi) score += (T)args.alibi_slopes[head] * (T)(token - position);
      score = (T)(CHECK_SCORE(score, position, token, head));
    }
    weights[read] = score;
    largest = score > largest ? score : largest;
  }
  largest = check_reduce(largest, scratch, CheckMax());
  if (largest == -infinity) return result;
  const T highest = result.lse > largest ? result.lse : largest;

  // Weights are rounded before they meet the scales of V, so that the error does not depend on where these lie.
  T sum = 0;
  for (int read = threadIdx.x; read < reads; read += kCheckThreads) {
    const T weight = Arithmetic::weight(weights[read] - highest);
    sum += weight;
    weights[read] = Arithmetic::rounded(weight, weight_format);
  }
  sum = check_reduce(sum, scratch, CheckAdd());  // its barriers also publish the weights to the CTA
  sum += Arithmetic::weight(result.lse - highest);

  const int slices = kCheckThreads / check.v_head_dim;
  const int slice = threadIdx.x / check.v_head_dim, column = threadIdx.x % check.v_head_dim;
  T o = 0;
  if (slice < slices) {
#pragma unroll 1  // more would take the compiler longer than they save
    for (int read = slice; read < reads; read += slices) {
      T weight = weights[read];
      if (weight == 0) continue;  // never seen, and perhaps NaN there
      const int token = check_read_token(args, check, request, t, kv_head, read);
      float unit = 1.0f;
      if (scaled_v && by_token) unit = args.v_scale[check_scale_offset(args, check, request, kv_head, token)];
      weight *= (T)(with_zeros ? check_scale_of_word(unit) : unit);
      const bool second = token < -1;
      const void* const v = second ? args.second_v : args.v;
      const long long row = second ? check_second_offset(args, check, request, kv_head, -2 - token, args.v_stride_batch,
                                                         args.v_stride_head, args.v_stride_token)
                                   : check_v_offset(args, check, request, kv_head, token),
                      offset = row + column;
      if (check.row_bytes > 0) {
        const unsigned char* const there = (const unsigned char*)v + row;
        o += weight *
             check_row_value<T>(check, there, check_row_scales(check, there, second ? -2 - token : token), column);
        continue;
      }
      if (with_zeros) {
        const int byte = ((const unsigned char*)v)[row + column / 2];
        o += weight * (T)((byte >> column % 2 * 4 & 15) - check_zero_of_word(unit));
        continue;
      }
      if (check.kv_format == kCheckFp4) {
        const int byte = ((const unsigned char*)v)[row + column / 2];
        o += weight * (T)check_byte_to_float(kCheckFp4, (unsigned char)(byte >> column % 2 * 4 & 15)) *
             (T)check_byte_to_float(kCheckE4m3,
                                    *check_block_scale_at(args, check, false, request, kv_head, token, column));
        continue;
      }
      o += weight * (T)(stride_bytes == 2 ? check_to_float(check.format, ((const unsigned short*)v)[offset])
                                          : check_byte_to_float(check.kv_format, ((const unsigned char*)v)[offset]));
    }
  }
  __syncthreads();
  scratch[threadIdx.x] = o;
  __syncthreads();
  if (threadIdx.x < check.v_head_dim) {
    o = 0;
    for (int i = 0; i < slices; ++i) o += scratch[i * check.v_head_dim + threadIdx.x];
    if (scaled_v && !by_token) o *= (T)args.v_scale[check_scale_offset(args, check, request, kv_head, 0)];
    result.o = o / sum;
  }
  result.lse = highest + Arithmetic::logarithm(sum);
  return result;
}

// The row of [query tokens, q_heads] that this CTA takes.
template <class T>
__device__ __forceinline__ CheckRow<T> check_attend_row(const LeanDecodeArgs& args, const CheckFeatures& check,
                                                        long long row, T* weights) {
  const auto [request, t] = check_query_token_at(args, check, row / check.q_heads);
  return check_attend<T>(args, check, request, t, (int)(row % check.q_heads), weights);
}

// grid.x = rows. weights: [rows, longest]; o: [query tokens, q_heads, v_head_dim]; lse: [query tokens, q_heads],
// natural log.
extern "C" __global__ void __launch_bounds__(kCheckThreads)
    check_oracle(LeanDecodeArgs args, CheckFeatures check, long long first_row, long long longest, double* weights,
                 double* o, double* lse) {
  const long long row = first_row + blockIdx.x;
  const CheckRow<double> result = check_attend_row<double>(args, check, row, weights + blockIdx.x * longest);
  if (threadIdx.x < check.v_head_dim) o[row * check.v_head_dim + threadIdx.x] = result.o;
  if (threadIdx.x == 0) lse[row] = result.lse;
}

// As check_oracle, but o are the bits of the format: [query tokens, q_heads, v_head_dim].
extern "C" __global__ void __launch_bounds__(kCheckThreads)
    check_plain(LeanDecodeArgs args, CheckFeatures check, long long first_row, long long longest, float* weights,
                unsigned short* o) {
  const long long row = first_row + blockIdx.x;
  const CheckRow<float> result = check_attend_row<float>(args, check, row, weights + blockIdx.x * longest);
  if (threadIdx.x < check.v_head_dim)
    o[row * check.v_head_dim + threadIdx.x] = check_from_float(check.format, result.o);
}
