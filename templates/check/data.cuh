// check/data.cuh -- the contents of a decode case as a pure function of (seed, tensor, request, head, token, column),
// and the 16-bit and one-byte formats in software. Host and device compile this file and compute the same bits, so a
// check never copies a tensor.
#if defined(__CUDACC__)
#define CHECK_HD __host__ __device__ __forceinline__
#else
#define CHECK_HD inline
#endif

typedef unsigned long long check_u64;

enum CheckKind {
  kCheckUniform = 0,
  kCheckPeaked = 1,
  kCheckExtreme = 2,
  kCheckCoverage = 3,
  kCheckOnes = 4,
  kCheckWritten = 5
};
enum CheckTensor { kCheckQ = 1, kCheckK = 2, kCheckV = 3, kCheckLatent = 4 };  // kCheckLatent: K, of which V is a part
enum CheckFormat { kCheckBf16 = 0, kCheckFp16 = 1 };
enum CheckKvFormat { kCheckSame = 0, kCheckE4m3 = 1, kCheckE5m2 = 2, kCheckInt8 = 3, kCheckInt4 = 4, kCheckFp4 = 5 };
enum CheckKvScale { kCheckScaleTensor = 0, kCheckScaleHead = 1, kCheckScaleToken = 2 };
enum CheckRope { kCheckNoRope = 0, kCheckHalfSplit = 1, kCheckInterleaved = 2 };
enum CheckMask { kCheckCausal = 0, kCheckTree = 1, kCheckFull = 2 };

union CheckWord {
  float value;
  unsigned bits;
};

CHECK_HD unsigned check_float_bits(float value) {
  CheckWord word;
  word.value = value;
  return word.bits;
}

CHECK_HD float check_bits_float(unsigned bits) {
  CheckWord word;
  word.bits = bits;
  return word.value;
}

CHECK_HD float check_to_float(int format, unsigned short bits) {
  const unsigned wide = bits;
  if (format == kCheckBf16) return check_bits_float(wide << 16);
  const unsigned sign = (wide & 0x8000u) << 16;
  const unsigned exponent = (wide >> 10) & 31u;
  const unsigned fraction = wide & 0x3ffu;
  if (exponent == 31u) return check_bits_float(sign | 0x7f800000u | (fraction << 13));
  if (exponent == 0u) {
    const float magnitude = (float)fraction * 5.9604644775390625e-8f;  // 2^-24, exact
    return sign != 0u ? -magnitude : magnitude;
  }
  return check_bits_float(sign | ((exponent + 112u) << 23) | (fraction << 13));
}

// Rounds to nearest even. Overflow gives infinity, and a NaN stays one.
CHECK_HD unsigned short check_from_float(int format, float value) {
  const unsigned bits = check_float_bits(value);
  const unsigned magnitude = bits & 0x7fffffffu;
  if (format == kCheckBf16) {
    if (magnitude > 0x7f800000u) return (unsigned short)((bits >> 16) | 0x40u);
    return (unsigned short)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
  }
  const unsigned sign = (bits >> 16) & 0x8000u;
  if (magnitude > 0x7f800000u) return (unsigned short)(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return (unsigned short)(sign | 0x7c00u);  // from 65520 on
  if (magnitude < 0x38800000u) {
    // Below 2^-14 fp16 is a fixed-point format with steps of 2^-24. That is the ulp of numbers in [0.5, 1), so the
    // addition rounds.
    return (unsigned short)(sign | (check_float_bits(check_bits_float(magnitude) + 0.5f) - 0x3f000000u));
  }
  return (unsigned short)(sign | ((magnitude + 0xc8000fffu + ((magnitude >> 13) & 1u)) >> 13));
}

// The value of a byte of a KV cache, by the definition of its format (OCP 8-bit floating point). e4m3 has no infinity,
// and is NaN only where all bits but the sign are set. e5m2 is the upper half of an fp16. Of e2m1 it is that of four
// bits (OCP microscaling formats).
CHECK_HD float check_byte_to_float(int kv_format, unsigned char byte) {
  const unsigned bits = byte;
  if (kv_format == kCheckFp4) {
    const unsigned exponent = bits >> 1 & 3u, fraction = bits & 1u;
    const float value =
        exponent == 0u ? (float)fraction * 0.5f : check_bits_float(((exponent + 126u) << 23) | (fraction << 22));
    return bits >= 8u ? -value : value;
  }
  if (kv_format == kCheckInt8) return (float)(int)bits - (bits >= 128u ? 256.0f : 0.0f);
  if (kv_format == kCheckE5m2) return check_to_float(kCheckFp16, (unsigned short)(bits << 8));
  const unsigned magnitude = bits & 0x7fu, exponent = magnitude >> 3, fraction = magnitude & 7u;
  if (magnitude == 0x7fu) return check_bits_float(0x7fc00000u | (bits << 24));
  const float value = exponent == 0u ? (float)fraction * 0.001953125f  // 2^-9
                                     : check_bits_float(((exponent + 120u) << 23) | (fraction << 20));
  return bits >= 128u ? -value : value;
}

// The byte nearest to a value that is far from its format's limits. Ties go to even. int8 counts 64ths. Of e2m1 it is
// four bits, and values have no limit.
CHECK_HD unsigned char check_byte_from_float(int kv_format, float value) {
  if (kv_format == kCheckFp4) {
    const float size = value < 0.0f ? -value : value;
    // Half way to the next number; a tie goes down from numbers of even bits.
    const float ties[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
    unsigned code = 0;
    for (unsigned i = 0; i < 7u; ++i) code += size > ties[i] || (size == ties[i] && i % 2u == 1u);
    return (unsigned char)(code | (check_float_bits(value) >> 31 << 3));
  }
  if (kv_format == kCheckInt8) {
    const float scaled = value * 64.0f;
    const int rounded = (int)(scaled + (scaled < 0.0f ? -0.5f : 0.5f));
    return (unsigned char)(rounded < -127 ? -127 : rounded > 127 ? 127 : rounded);
  }
  // The fp16 of the same fraction bits as e4m3 has an exponent that is larger by 8.
  const unsigned half = check_from_float(kCheckFp16, kv_format == kCheckE4m3 ? value * 0.00390625f : value);
  const unsigned magnitude = half & 0x7fffu, shift = kv_format == kCheckE4m3 ? 7u : 8u;
  const unsigned rounded = (magnitude + (1u << (shift - 1u)) - 1u + ((magnitude >> shift) & 1u)) >> shift;
  return (unsigned char)((half >> 15 << 7) | rounded);
}

// A bijection of 64-bit words with full avalanche (the finalizer of SplitMix64).
CHECK_HD check_u64 check_mix(check_u64 x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

CHECK_HD check_u64 check_row_key(check_u64 seed, int tensor, int request, int head) {
  const check_u64 row = ((check_u64)(unsigned)request << 32) | (unsigned)head;
  return check_mix(check_mix(seed * 4u + (check_u64)tensor) + row * 0x9e3779b97f4a7c15ull);
}

CHECK_HD check_u64 check_hash(check_u64 key, check_u64 index) {
  return check_mix(key + (index + 1u) * 0x9e3779b97f4a7c15ull);
}

// A uniform number with unit variance. The only rounding is that of the last product.
CHECK_HD float check_uniform(check_u64 hash) {
  const int centred = (int)(2u * (unsigned)(hash >> 41) + 1u) - (1 << 23);
  return ((float)centred * 1.1920928955078125e-7f) * 1.7320508f;
}

// An element before it is rounded to its format. `head` is a query head for q and a KV head otherwise, `token` is a
// query token for q, and `head_dim` is the tensor's own.
CHECK_HD float check_value(int kind, check_u64 seed, int tensor, int request, int head, long long token, int column,
                           int head_dim) {
  const check_u64 key = check_row_key(seed, tensor, request, head);
  const check_u64 hash = check_hash(key, (check_u64)token * (unsigned)head_dim + (unsigned)column);
  if (kind == kCheckCoverage && tensor == kCheckK) return 0.0f;
  if (kind == kCheckCoverage && tensor == kCheckV) return (int)((token >> 4) % head_dim) == column ? 1.0f : 0.0f;
  // Keys that are values cannot all be 0. With one in 16 columns, every part of V shows a token.
  if (kind == kCheckCoverage && tensor == kCheckLatent) return ((token >> 4) + column) % 16 == 0 ? 1.0f : 0.0f;
  if (kind == kCheckOnes) return tensor == kCheckQ ? 64.0f : tensor == kCheckV ? 1.0f : -64.0f;
  if (kind == kCheckExtreme && tensor != kCheckV) {
    // q is one sign pattern times +-64. A key agrees with it in a fraction of the columns that the token draws: all of
    // them, none, or anything between. Scores are multiples of 4096 below 2^24, and so exact in fp32 in any order of
    // summation.
    bool negative = (check_hash(check_mix(seed), (unsigned)column) & 1u) != 0u;
    if (tensor == kCheckQ) {
      negative = negative != ((key & 1u) != 0u);
    } else {
      const check_u64 draw = check_hash(~key, (check_u64)token);
      const unsigned which = (unsigned)(draw & 7u);
      const unsigned flips = which == 0u ? 0u : which == 1u ? 256u : (unsigned)(draw >> 32) & 255u;
      negative = negative != (((unsigned)(hash >> 32) & 255u) < flips);
    }
    return negative ? -64.0f : 64.0f;
  }
  const float value = check_uniform(hash);
  return kind == kCheckPeaked && tensor == kCheckQ ? value * 8.0f : value;
}

// The bits of the element in a 16-bit format.
CHECK_HD unsigned short check_element(int kind, check_u64 seed, int tensor, int format, int request, int head,
                                      long long token, int column, int head_dim) {
  return check_from_float(format, check_value(kind, seed, tensor, request, head, token, column, head_dim));
}

// Whether the scores are sums of exact multiples, which nothing may round. int8 then counts whole numbers, and scales
// are powers of two.
CHECK_HD bool check_exact_keys(int kind) { return kind == kCheckExtreme || kind == kCheckOnes; }

// Data of kind "written" is what a kernel that quantises rows leaves: in each row whose scale is its own, some element
// has the largest magnitude of its format and, of four bits, one is 0 and another 15. Scales have few bits, so that
// their products with elements are numbers of q's type, or so near to one that they become the same elements again.
CHECK_HD int check_drawn_column(int kind, check_u64 seed, int tensor, int request, int head, long long token,
                                int head_dim) {
  if (kind != kCheckWritten) return -1;
  const check_u64 draw = check_hash(check_row_key(seed, 59 + tensor, request, head), (check_u64)token);
  return (int)((unsigned)(draw >> 40) % (unsigned)head_dim);
}
CHECK_HD int check_largest_byte(int kv_format) {
  if (kv_format == kCheckFp4) return 7;
  return kv_format == kCheckE4m3 ? 0x7e : kv_format == kCheckE5m2 ? 0x7b : 127;
}
// What values are multiplied by before they become bytes, so that few are near the format's smallest.
CHECK_HD float check_written_span(int kind, int kv_format) {
  if (kind != kCheckWritten) return 1.0f;
  return kv_format == kCheckE4m3 ? 256.0f : kv_format == kCheckE5m2 ? 32768.0f : 1.0f;
}

// A token's row of four-bit elements is one of these: spread over all values; near the zero point, so that what a
// product takes away for that is nearly all of it; or the same but for one element as far away as there is. The zero
// point is any.
struct CheckNibbles {
  int zero;     // point
  int outlier;  // column; below 0: none
  float unit;   // the scale that gives check_value back
};
CHECK_HD CheckNibbles check_nibbles(int kind, check_u64 seed, int tensor, int request, int head, long long token,
                                    int head_dim) {
  const bool keys = tensor != kCheckV;
  const unsigned draw = (unsigned)(check_hash(check_row_key(seed, 53 + tensor, request, head), (check_u64)token) >> 32);
  CheckNibbles row;
  row.zero = kind == kCheckCoverage ? (int)(draw % 15u) : (int)(draw & 15u);
  row.outlier = -1;
  row.unit = 1.0f;
  if (kind == kCheckCoverage) return row;
  if (kind == kCheckOnes || (kind == kCheckExtreme && keys)) {
    row.zero = 8;
    if (keys) row.unit = 16.0f;
    return row;
  }
  const unsigned spread = kind == kCheckWritten ? 0u : draw >> 4 & 3u;
  row.unit = spread < 2u ? 0.25f : 2.0f;
  if (spread == 3u) row.outlier = (int)((draw >> 8) % (unsigned)head_dim);
  return row;
}

// An element of such a row, 0 to 15.
CHECK_HD unsigned char check_nibble(int kind, check_u64 seed, int tensor, int request, int head, long long token,
                                    int column, int head_dim) {
  const CheckNibbles row = check_nibbles(kind, seed, tensor, request, head, token, head_dim);
  if (column == row.outlier) return row.zero < 8 ? 15 : 0;
  const int drawn = check_drawn_column(kind, seed, tensor, request, head, token, head_dim);
  if (drawn >= 0 && column == drawn) return 0;
  if (drawn >= 0 && column == (drawn + head_dim / 2) % head_dim) return 15;
  const float steps = check_value(kind, seed, tensor, request, head, token, column, head_dim) / row.unit;
  const int element = row.zero + (int)(steps + (steps < 0.0f ? -0.5f : 0.5f));
  return (unsigned char)(element < 0 ? 0 : element > 15 ? 15 : element);
}

// Where blocks of 16 columns have scales of e4m3, those of a tensor lie around 2^(exponent - 7), 2^-9 to 2^8, which the
// scale of the tensor undoes. Values that are exact, 1 in V and 64 in K, become it with each power of two.
CHECK_HD bool check_exact_blocks(int kind, int tensor) {
  return kind == kCheckCoverage || kind == kCheckOnes || (kind == kCheckExtreme && tensor != kCheckV);
}
CHECK_HD int check_block_exponent(check_u64 seed, int tensor) {
  return (int)((unsigned)(check_hash(check_mix(seed + 71u), (unsigned)tensor) >> 40) & 15u);
}
CHECK_HD unsigned char check_block_scale(int kind, check_u64 seed, int tensor, int request, int head, long long token,
                                         int block) {
  const unsigned draw =
      (unsigned)(check_hash(check_row_key(seed, 67 + tensor, request, head), (check_u64)token * 64u + block) >> 32);
  if (check_exact_blocks(kind, tensor)) return (unsigned char)(8u * (5u + (draw & 3u)));
  const int byte = 8 * check_block_exponent(seed, tensor) + (int)(draw % 24u) - 8;
  return (unsigned char)(byte < 1 ? 1 : byte > 0x7e ? 0x7e : byte);
}
// The unit of elements, in which the scale of their tensor or head counts.
CHECK_HD float check_fp4_unit(int kind, check_u64 seed, int tensor) {
  if (kind == kCheckCoverage) return 1.0f;
  if (check_exact_blocks(kind, tensor)) return tensor == kCheckV ? 1.0f : 64.0f;
  return check_bits_float((unsigned)(127 + 6 - check_block_exponent(seed, tensor)) << 23);
}
// An element, four bits. Written blocks have one of the largest magnitude.
CHECK_HD unsigned char check_fp4(int kind, check_u64 seed, int tensor, int request, int head, long long token,
                                 int column, int head_dim) {
  const float value = check_value(kind, seed, tensor, request, head, token, column, head_dim);
  const int block = column / 16;
  if (column % 16 == check_drawn_column(kind, seed, tensor, request, head, token * 64 + block, 16))
    return value < 0.0f ? 15 : 7;
  const float scale =
      check_byte_to_float(kCheckE4m3, check_block_scale(kind, seed, tensor, request, head, token, block));
  return check_byte_from_float(kCheckFp4, value / (scale * check_fp4_unit(kind, seed, tensor)));
}

// The scale and the zero point of a word that has both.
CHECK_HD float check_scale_of_word(float word) { return check_bits_float(check_float_bits(word) & ~15u); }
CHECK_HD int check_zero_of_word(float word) { return (int)(check_float_bits(word) & 15u); }

// The byte of the element in a cache of one-byte elements, or the four bits of another one. check_kv_scale undoes the
// unit of int8.
CHECK_HD unsigned char check_byte(int kind, check_u64 seed, int tensor, int kv_format, int request, int head,
                                  long long token, int column, int head_dim) {
  if (kv_format == kCheckInt4) return check_nibble(kind, seed, tensor, request, head, token, column, head_dim);
  if (kv_format == kCheckFp4) return check_fp4(kind, seed, tensor, request, head, token, column, head_dim);
  const float value = check_value(kind, seed, tensor, request, head, token, column, head_dim);
  if (column == check_drawn_column(kind, seed, tensor, request, head, token, head_dim)) {
    const int largest = check_largest_byte(kv_format);
    return (unsigned char)(value >= 0.0f ? largest : kv_format == kCheckInt8 ? -largest : largest | 0x80);
  }
  const bool whole = kv_format == kCheckInt8 && tensor != kCheckV && check_exact_keys(kind);
  return check_byte_from_float(kv_format, whole ? value * 0.015625f : value * check_written_span(kind, kv_format));
}

// The unit of elements, in which scales count.
CHECK_HD float check_kv_unit(int kind, check_u64 seed, int tensor, int kv_format, int request, int head,
                             long long token) {
  if (kv_format == kCheckInt4) return check_nibbles(kind, seed, tensor, request, head, token, 1).unit;
  if (kv_format == kCheckFp4) return check_fp4_unit(kind, seed, tensor);
  if (kv_format == kCheckInt8 && !(tensor != kCheckV && check_exact_keys(kind))) return 0.015625f;
  return 1.0f / check_written_span(kind, kv_format);
}

// The scale of an element's tensor, head or token. It is random, around the one that gives check_value back.
CHECK_HD float check_plain_scale(int kind, check_u64 seed, int tensor, int kv_format, int granularity, int request,
                                 int head, long long token) {
  const check_u64 key = check_row_key(~seed, tensor, granularity == kCheckScaleToken ? request : 0,
                                      granularity == kCheckScaleTensor ? 0 : head);
  const check_u64 hash = check_hash(key, granularity == kCheckScaleToken ? (check_u64)token : 0u);
  const bool keys = tensor != kCheckV;
  const float unit = check_kv_unit(kind, seed, tensor, kv_format, request, head, token);
  if (kind == kCheckOnes) return unit;
  if (check_exact_keys(kind)) return (hash & 1u) != 0u ? unit : unit * 0.5f;
  float near_one = 0.5f + (float)(unsigned)(hash >> 41) * 1.1920928955078125e-7f;
  if (kind == kCheckWritten)
    near_one = kv_format == kCheckInt8 ? 1.0f : check_bits_float(check_float_bits(near_one) & 0xfff00000u);
  if (keys || granularity != kCheckScaleToken) return unit * near_one;
  // Values lie anywhere from 1e-4 to 1e3: those of a request near each other, or, of every second one, spread.
  const check_u64 draw = check_hash(check_mix(seed + 31u), (unsigned)request);
  const int middle = (int)((unsigned)(draw >> 40) % 23u) - 13;
  const int exponent = middle + ((draw & 1u) != 0u ? (int)((unsigned)(hash & 0xffffu) % 17u) - 8 : 0);
  // Written scales are those of numbers of fp16, and none is the smallest that there is.
  const int least = kind == kCheckWritten ? 0 : -13, most = kind == kCheckWritten ? 5 : 9;
  const int limited = exponent < least ? least : exponent > most ? most : exponent;
  return unit * near_one * check_bits_float((unsigned)(127 + limited) << 23);
}
// With the zero point in its last four bits where elements have four.
CHECK_HD float check_kv_scale(int kind, check_u64 seed, int tensor, int kv_format, int granularity, int request,
                              int head, long long token) {
  const float scale = check_plain_scale(kind, seed, tensor, kv_format, granularity, request, head, token);
  if (kv_format != kCheckInt4) return scale;
  const int zero = check_nibbles(kind, seed, tensor, request, head, token, 1).zero;
  return check_bits_float((check_float_bits(scale) & ~15u) | (unsigned)zero);
}

// The bits, of q's type, of an element of a new row that becomes this byte, or these four bits, with this scale, that
// of its block included. Where the row's scale follows from its elements, all but the largest are up to three numbers
// nearer to 0, from which they are still nearest to the byte. One of int8 may be half as far from the next.
CHECK_HD unsigned short check_new_scaled(int kind, check_u64 seed, int tensor, int format, int kv_format,
                                         unsigned char byte, float scale, int request, int head, long long token,
                                         int column, int head_dim) {
  const bool nibble = kv_format == kCheckInt4;
  const int steps = (int)byte - check_zero_of_word(scale), magnitude = byte & (kv_format == kCheckFp4 ? 7 : 0x7f);
  const unsigned short bits = check_from_float(
      format, nibble ? (float)steps * check_scale_of_word(scale) : check_byte_to_float(kv_format, byte) * scale);
  const bool exact = nibble ? steps == 0 || byte == 0 || byte == 15
                            : kv_format == kCheckInt8 || magnitude == 0 || magnitude >= check_largest_byte(kv_format);
  if (kind != kCheckWritten || exact) return bits;
  const check_u64 hash = check_hash(check_row_key(seed, 61 + tensor, request, head),
                                    (check_u64)token * (unsigned)head_dim + (unsigned)column);
  return (unsigned short)(bits - (unsigned)(hash & 3u));
}

// Where rows have a format of their own, a group of latent columns is as engines quantise it: its largest magnitude is
// the largest of the format, 448 of e4m3. So values are multiplied by so much before they become bytes, and one column
// of a group that could lack a 448 gets one. A power of two that undoes it is a factor of the scales.
CHECK_HD float check_row_span(int kind) {
  return kind == kCheckCoverage ? 448.0f : check_exact_keys(kind) ? 7.0f : 256.0f;
}

// The byte of a latent column of such a row. group: columns that share a scale.
CHECK_HD unsigned char check_row_byte(int kind, check_u64 seed, int kv_format, int request, int head, long long token,
                                      int column, int head_dim, int group) {
  const float value = check_value(kind, seed, kCheckLatent, request, head, token, column, head_dim);
  const check_u64 draw = check_hash(check_row_key(seed, 43, request, head), (check_u64)token * 64u + column / group);
  const bool largest = !check_exact_keys(kind) && kind != kCheckCoverage && (int)(draw >> 40) % group == column % group;
  return check_byte_from_float(kv_format, largest ? (value < 0.0f ? -448.0f : 448.0f) : value * check_row_span(kind));
}

// The power of two that the scales of a group count in, times 256, from 2^-13 to 2^9. All groups have the same, or each
// has its own, in every second case. It is that of all rows, so that q can undo it: else a group of large scales would
// decide all scores.
CHECK_HD float check_group_unit(int kind, check_u64 seed, int group) {
  if (check_exact_keys(kind)) return 1.0f;
  const bool apart = (check_mix(seed + 37u) & 1u) != 0u;
  const check_u64 draw = check_hash(check_mix(seed + 41u), apart ? (unsigned)group : 0u);
  return check_bits_float((unsigned)(127 - 13 + (int)((unsigned)(draw >> 40) % 23u)) << 23);
}

// The scale of a group of a row: four significant bits, so that its products with fp8 values are bf16 numbers, from
// about 5e-7 to 4. Scores that are exact have factors of 56 and 28. power: it must be a power of two.
CHECK_HD float check_group_scale(int kind, check_u64 seed, int request, int head, long long token, int group,
                                 bool power) {
  if (kind == kCheckOnes) return 0.125f;
  const check_u64 hash =
      check_hash(check_row_key(~seed, kCheckLatent, request, head), (check_u64)token * 64u + (unsigned)group);
  if (check_exact_keys(kind)) return (hash & 1u) != 0u ? 0.125f : 0.0625f;
  const float undone = kind == kCheckCoverage ? 0.001953125f : 0.00390625f;  // check_row_span, as a power of two
  const float factor = power ? (float)(1u + (unsigned)(hash & 1u)) : 1.0f + (float)(unsigned)(hash & 7u) * 0.125f;
  return check_group_unit(kind, seed, group) * factor * undone;
}

// The bits, of bf16, of a latent column of a new row that becomes this byte of a group with this scale once the row is
// quantised: those of their product or, where the byte is not the largest of its format, of up to three bf16 numbers
// below. These are still nearest to the byte, from which the next one is at least 1/16 of its value away.
CHECK_HD unsigned short check_new_latent(int kv_format, check_u64 seed, unsigned char byte, float scale, int request,
                                         int head, long long token, int column, int head_dim) {
  const unsigned short bits = check_from_float(kCheckBf16, check_byte_to_float(kv_format, byte) * scale);
  if ((byte & 0x7fu) == 0u || (byte & 0x7fu) == 0x7eu) return bits;
  const check_u64 hash =
      check_hash(check_row_key(seed, 47, request, head), (check_u64)token * (unsigned)head_dim + (unsigned)column);
  return (unsigned short)(bits - (unsigned)(hash & 3u));
}

// What a column of q is multiplied by. group: columns that share a scale, 0 where rows have no format of their own.
CHECK_HD float check_query_unit(int kind, check_u64 seed, int group, int latent_columns, int column) {
  return group == 0 || column >= latent_columns ? 1.0f : 1.0f / check_group_unit(kind, seed, column / group);
}

// The bits of an element of q.
CHECK_HD unsigned short check_query_element(int kind, check_u64 seed, int format, int request, int head,
                                            long long token, int column, int head_dim, int group, int latent_columns) {
  return check_from_float(format, check_value(kind, seed, kCheckQ, request, head, token, column, head_dim) *
                                      check_query_unit(kind, seed, group, latent_columns, column));
}

// Whether an entry of a request's part of the page table is a hole, where one of so many is, and the number that stands
// there: one of those nearest to the pool's, or farthest from them.
CHECK_HD bool check_is_hole(check_u64 seed, int request, long long entry, int hole_every) {
  if (hole_every == 0) return false;
  return (unsigned)(check_hash(check_row_key(seed, 23, request, 0), (check_u64)entry) >> 40) % (unsigned)hole_every ==
         0u;
}
CHECK_HD int check_hole_number(check_u64 seed, int request, long long entry, int pool_pages) {
  const unsigned which = (unsigned)check_hash(check_row_key(seed, 29, request, 0), (check_u64)entry) & 3u;
  return which == 0u ? -1 : which == 1u ? pool_pages : which == 2u ? 0x7fffffff : -0x7fffffff - 1;
}

// The ALiBi slope and the sink logit of a query head. One of four heads has no sink, as on all ranks but one of an
// engine whose ranks share a context.
CHECK_HD float check_alibi_slope(check_u64 seed, int head) {
  const unsigned draw = (unsigned)(check_hash(check_mix(seed + 11u), (unsigned)head) >> 40);
  return 0.00390625f + (float)(draw & 0xffffu) * 7.62939453125e-6f;  // 2^-8 to a half
}
CHECK_HD float check_sink_logit(check_u64 seed, int head) {
  const unsigned draw = (unsigned)(check_hash(check_mix(seed + 13u), (unsigned)head) >> 40);
  if ((draw >> 16 & 3u) == 0u) return check_bits_float(0xff800000u);  // minus infinity
  return (float)(int)(draw & 0xffffu) * 0.000152587890625f - 4.0f;    // -4 to 6
}

// Which query tokens of its request a query token sees: itself, and half of all others. The bits above the request's
// tokens are random too.
CHECK_HD unsigned check_tree_word(check_u64 seed, int request, int query_token) {
  const check_u64 hash = check_hash(check_row_key(seed, 17, request, 0), (unsigned)query_token);
  return (unsigned)(hash >> 32) | (1u << query_token);
}

// The span that a position of a request's context is in: indices of its first token and of the one behind the last;
// both 0 where it is in none. Every second one of the pieces into which a context is cut is a span, about. They have up
// to 300 tokens, and in some requests all of the context.
struct CheckSpan {
  int first, end;
};
CHECK_HD CheckSpan check_span(check_u64 seed, int request, long long position) {
  const check_u64 key = check_row_key(seed, 23, request, 0);
  const long long size = (key & 7u) == 0u ? 1 << 20 : 1 + (long long)((key >> 8) % 300u), piece = position / size;
  CheckSpan span = {0, 0};
  if (position < 0 || (check_hash(key, (check_u64)piece) & 1u) != 0u) return span;
  span.first = (int)(piece * size), span.end = span.first + (int)size;
  return span;
}

// How many of the `blocks` of a context query token `t` selects: one of `spread`, and fewer for every second token.
CHECK_HD int check_selected_count(int blocks, int spread, int t) {
  const int count = (blocks + spread - 1) / spread;
  return count > 1 ? count - t % 2 : count;
}

// Entry `index` of the `count` entries of a query token's list: a block, or -1 for a hole, of which there are some if
// `holes`. All blocks differ. The last block of the context is one of them, and half of the lists are in falling order.
CHECK_HD int check_selected_block(check_u64 seed, int request, int head, int t, int index, int count, int blocks,
                                  int spread, int holes) {
  const check_u64 key = check_row_key(seed, 19, request, head);
  const check_u64 hash = check_hash(key, (check_u64)t << 32 | (unsigned)index);
  if (holes != 0 && (hash & 7u) == 0u) return -1;
  const int place = ((key >> 8) & 1u) != 0u ? count - 1 - index : index;
  return place == count - 1 ? blocks - 1 : place * spread + (int)((unsigned)(hash >> 32) % (unsigned)spread);
}

// The second cache of a request has the data of another request, which no batch has; and how many of its tokens, of up
// to `capacity`, query token `t` sees: none now and then, or all.
constexpr int kCheckSecondRequest = 1 << 24;
CHECK_HD int check_second_length(check_u64 seed, int request, int t, int capacity) {
  const check_u64 draw = check_hash(check_row_key(seed, 53, request, 0), (unsigned)t);
  const unsigned which = (unsigned)draw & 7u;
  return which == 0u ? 0 : which == 1u ? capacity : (int)((unsigned)(draw >> 32) % (unsigned)(capacity + 1));
}

// The rotary embedding of checks goes in quarter turns, which round nothing. This is how many of them a pair of dims
// takes at `position`.
CHECK_HD int check_quarter_turns(long long position, int pair) {
  return (int)(check_hash(check_mix(97u), (check_u64)position * 512u + (unsigned)pair) & 3u);
}

// The value of a dim of a row before the row is turned: that of a dim `column` of the turned row, perhaps negated.
struct CheckTurned {
  int column;
  bool negative;
};
CHECK_HD CheckTurned check_unturned(int rope, int first_dim, int rope_dim, long long position, int row_column) {
  const int column = row_column - first_dim;
  if (rope == kCheckNoRope || column < 0 || column >= rope_dim || position < 0) return {row_column, false};
  const int half = rope_dim / 2, pair = rope == kCheckInterleaved ? column / 2 : column % half;
  const bool second = rope == kCheckInterleaved ? column % 2 == 1 : column >= half;
  const int first_column = first_dim + (rope == kCheckInterleaved ? 2 * pair : pair);
  const int second_column = first_dim + (rope == kCheckInterleaved ? 2 * pair + 1 : pair + half);
  // (x', y') = (x c - y s, y c + x s) has (x, y) = (x' c + y' s, y' c - x' s).
  const int turns = check_quarter_turns(position, pair);
  if (turns % 2 == 0) return {row_column, turns == 2};
  return second ? CheckTurned{first_column, turns == 1} : CheckTurned{second_column, turns == 3};
}
