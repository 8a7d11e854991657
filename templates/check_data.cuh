// check_data.cuh -- the contents of a decode case as a pure function of (seed, tensor, request, head, token, column),
// and the 16-bit formats in software. Host and device compile this file and compute the same bits, so a check never
// copies a tensor.
#if defined(__CUDACC__)
#define CHECK_HD __host__ __device__ __forceinline__
#else
#define CHECK_HD inline
#endif

typedef unsigned long long check_u64;

enum CheckKind { kCheckUniform = 0, kCheckPeaked = 1, kCheckExtreme = 2, kCheckCoverage = 3 };
enum CheckTensor { kCheckQ = 1, kCheckK = 2, kCheckV = 3 };
enum CheckFormat { kCheckBf16 = 0, kCheckFp16 = 1 };

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

// Nearest even; overflow gives infinity, a NaN stays one.
CHECK_HD unsigned short check_from_float(int format, float value) {
  const unsigned bits = check_float_bits(value);
  const unsigned magnitude = bits & 0x7fffffffu;
  if (format == kCheckBf16) {
    if (magnitude > 0x7f800000u) return (unsigned short)((bits >> 16) | 0x40u);
    return (unsigned short)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
  }
  const unsigned sign = (bits >> 16) & 0x8000u;
  if (magnitude > 0x7f800000u) return (unsigned short)(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return (unsigned short)(sign | 0x7c00u);  // 65520 and up
  if (magnitude < 0x38800000u) {
    // Below 2^-14 fp16 is a fixed-point format with steps of 2^-24, which is the ulp of numbers in [0.5, 1): the
    // addition rounds.
    return (unsigned short)(sign | (check_float_bits(check_bits_float(magnitude) + 0.5f) - 0x3f000000u));
  }
  return (unsigned short)(sign | ((magnitude + 0xc8000fffu + ((magnitude >> 13) & 1u)) >> 13));
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

// Uniform with unit variance; the only rounding is that of the last product.
CHECK_HD float check_uniform(check_u64 hash) {
  const int centred = (int)(2u * (unsigned)(hash >> 41) + 1u) - (1 << 23);
  return ((float)centred * 1.1920928955078125e-7f) * 1.7320508f;
}

// Bits of one element. head is a query head for q and a KV head otherwise; token is 0 for q.
CHECK_HD unsigned short check_element(int kind, check_u64 seed, int tensor, int format, int request, int head,
                                      long long token, int column, int head_dim) {
  const check_u64 key = check_row_key(seed, tensor, request, head);
  const check_u64 hash = check_hash(key, (check_u64)token * (unsigned)head_dim + (unsigned)column);
  if (kind == kCheckCoverage && tensor == kCheckK) return 0;
  if (kind == kCheckCoverage && tensor == kCheckV) {
    return check_from_float(format, (int)((token >> 4) % head_dim) == column ? 1.0f : 0.0f);
  }
  if (kind == kCheckExtreme && tensor != kCheckV) {
    // q is one sign pattern times +-64; a key agrees with it in a fraction of the columns that the token draws: all of
    // them, none, or anything between. Scores are multiples of 4096 below 2^24: exact in fp32 in any order of
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
    return check_from_float(format, negative ? -64.0f : 64.0f);
  }
  const float value = check_uniform(hash);
  return check_from_float(format, kind == kCheckPeaked && tensor == kCheckQ ? value * 8.0f : value);
}
