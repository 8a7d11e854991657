// recurrent/state.cuh -- which part of a state a lane has, and how it travels. A warp has kWarpRows rows of V. The K
// columns of a row lie over kRowLanes lanes, 16 bytes of each at a time, so that neighbouring lanes read neighbouring
// bytes, and a sum over columns is one over these lanes.
constexpr int kVector = 16 / kStateBytes;                       // elements of the state that travel together
constexpr int kChunkColumns = kKeysFirst ? 4 : kVector;         // columns of a lane beside each other
constexpr int kChunks = kKeyDim / (kRowLanes * kChunkColumns);  // of a row that a lane has
constexpr int kColumns = kChunks * kChunkColumns;               // columns that a lane has
constexpr int kLaneRows = kWarpRows * kRowLanes / 32;           // rows that a lane has a part of
constexpr int kCtaRows = kWarps * kWarpRows;
constexpr int kHeadCtas = kValueDim / kCtaRows;  // that share a head
static_assert(kKeyDim % (kRowLanes * kChunkColumns) == 0, "each lane has whole chunks of a row");
static_assert(kWarpRows * kRowLanes % 32 == 0 && kLaneRows <= kRowLanes, "each row of a warp has a lane that writes o");

struct Place {
  int request, head;  // head: that of v
  int row;            // the first of this lane's kLaneRows rows of V
  int lane;           // among those of a row
};

LEAN_DEVICE Place place_of_thread() {
  const int warp = blockIdx.x * kWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
  return {(int)blockIdx.z, (int)blockIdx.y, warp * kWarpRows + lane / kRowLanes * kLaneRows, lane % kRowLanes};
}

// The first column of a lane's chunk.
LEAN_DEVICE int column_of(const Place& place, int chunk) { return (chunk * kRowLanes + place.lane) * kChunkColumns; }

// A lane's columns are those of its chunks. So far is one of them from the first.
LEAN_DEVICE int column_offset(int i) { return i / kChunkColumns * kRowLanes * kChunkColumns + i % kChunkColumns; }

LEAN_DEVICE char* state_at(const LeanRecurrentArgs& args, const Place& place, int slot) {
  const int column = column_of(place, 0);
  const i64 of_head = kKeysFirst ? (i64)(place.head * kKeyDim + column) * kValueDim + place.row
                                 : (i64)(place.head * kValueDim + place.row) * kKeyDim + column;
  return args.state + (slot * args.state_stride + of_head) * kStateBytes;
}

// 16 bytes of a lane's part: columns of a row, or, where a state lies [K, V], rows of a column.
constexpr int kLaneChunks = kLaneRows * kColumns / kVector, kRowChunks = kKeysFirst ? kLaneRows / kVector : 1;
static_assert(!kKeysFirst || kLaneRows % kVector == 0, "each lane has whole chunks of a column");
LEAN_DEVICE int row_of(int chunk, int i) { return kKeysFirst ? chunk % kRowChunks * kVector + i : chunk / kChunks; }
LEAN_DEVICE int column_of(int chunk, int i) {
  return kKeysFirst ? chunk / kRowChunks : chunk % kChunks * kChunkColumns + i;
}
LEAN_DEVICE int chunk_offset(int chunk) {
  const int row = row_of(chunk, 0), column = column_offset(column_of(chunk, 0));
  return (kKeysFirst ? column * kValueDim + row : row * kKeyDim + column) * kStateBytes;
}

// The sum over the lanes of a row, which all of them get.
LEAN_DEVICE float sum_of_row(float x) {
  LEAN_UNROLL for (int lanes = kRowLanes / 2; lanes > 0; lanes /= 2) x += __shfl_xor_sync(kFullMask, x, lanes);
  return x;
}

// A state is read once and written once, so L1 keeps nothing of it. What is not there is not read, and anything.
LEAN_DEVICE uint4 load_state_16(const char* p, bool there) {
  uint4 r;
  asm volatile(
      "{\n\t.reg .pred there;\n\tsetp.ne.u32 there, %5, 0;\n\t"
      "@there ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];\n\t}"
      : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
      : "l"(p), "r"((u32)there)
      : "memory");
  return r;
}

struct State {
  float s[kLaneRows][kColumns];
};

// All of a lane's loads are on their way before the first is waited for.
LEAN_DEVICE void load_state(State& state, const char* from, bool there) {
  uint4 raw[kLaneChunks];
  LEAN_UNROLL for (int chunk = 0; chunk < kLaneChunks; chunk++) raw[chunk] =
      load_state_16(from + chunk_offset(chunk), there);
  LEAN_UNROLL for (int chunk = 0; chunk < kLaneChunks; chunk++) {
    LEAN_UNROLL for (int i = 0; i < kVector; i++) {
      float& s = state.s[row_of(chunk, i)][column_of(chunk, i)];
      if constexpr (kStateBytes == 4) {
        s = __uint_as_float(word(raw[chunk], i));
      } else {
        const u32 pair = word(raw[chunk], i / 2);
        s = __uint_as_float(i % 2 == 0 ? pair << 16 : pair & 0xffff0000u);
      }
    }
  }
}

LEAN_DEVICE void store_state(const State& state, char* to) {
  LEAN_UNROLL for (int chunk = 0; chunk < kLaneChunks; chunk++) {
    float s[kVector];
    LEAN_UNROLL for (int i = 0; i < kVector; i++) s[i] = state.s[row_of(chunk, i)][column_of(chunk, i)];
    uint4 words;
    if constexpr (kStateBytes == 4) {
      words = make_uint4(__float_as_uint(s[0]), __float_as_uint(s[1]), __float_as_uint(s[2]), __float_as_uint(s[3]));
    } else {
      words =
          make_uint4(Bf16::pack(s[0], s[1]), Bf16::pack(s[2], s[3]), Bf16::pack(s[4], s[5]), Bf16::pack(s[6], s[7]));
    }
    *(uint4*)(to + chunk_offset(chunk)) = words;
  }
}
