// recurrent/replay.cuh -- the ring of a slot, whose entries say what tokens did to the state: S = w S + u k^T. A step
// replays those that count on the state that the slot has, and adds one for each of its own tokens. It stores the
// state, as it is between the two, only where the ring would have no room for the step after the next.
//
// Entries that are read are copied to shared memory, all of them while the state is on its way. Those that are written
// lie behind them in the ring, which has room for both. So no CTA waits for another, although heads of v share the k
// that one CTA writes.
constexpr int kEntryFactors = kDecay == kDecayOfChannel ? kKeyDim : 1;  // of a head

// The entries that count: the first one, and how many.
struct Span {
  int first, count;
};

struct Entries {
  __align__(16) float k[kRing][kKeyDim];
  __align__(16) float u[kRing][kCtaRows];
  __align__(16) float w[kRing][kEntryFactors];
};
LEAN_DEVICE Entries& entries() {
  __shared__ Entries shared;
  return shared;
}

// What is out of range would be outside of the ring.
LEAN_DEVICE Span load_span(const LeanRecurrentArgs& args, const Place& place) {
  const uint2 span = load_input<uint2>(args.ring_spans + 2 * (i64)place.request);
  return {min(max((int)span.x, 0), kRing - 1), min(max((int)span.y, 0), kRing - kTokens)};
}

// Where entry i behind the first one lies in the ring.
LEAN_DEVICE int entry_of(const Span& span, int i) { return (span.first + i) % kRing; }

// Whether the state is stored: after this step the entries would leave no room for another one.
LEAN_DEVICE bool flushes(const Span& span) { return span.count + 2 * kTokens > kRing; }

// Asks for so many floats of each entry that counts. In the ring those of neighbouring entries are `stride` apart.
template <int kRow>
LEAN_DEVICE void fetch_rows(float* to, const float* from, int stride, const Span& span) {
  constexpr int kWords = kRow % 4 == 0 ? 4 : 1, kPieces = kRow / kWords;
  for (int i = threadIdx.x; i < span.count * kPieces; i += kWarps * 32) {
    const int entry = i / kPieces, word = i % kPieces * kWords;
    const u32 destination = shared_address(to + entry * kRow + word);
    const char* const source = (const char*)(from + (i64)entry_of(span, entry) * stride + word);
    if constexpr (kWords == 4) {
      copy_async_16(destination, source, true);
    } else {
      copy_async_4(destination, source, true);
    }
  }
}

LEAN_DEVICE void fetch_entries(const LeanRecurrentArgs& args, const Place& place, int slot, const Span& span) {
  const int heads = gridDim.y, keys = heads / kGroup * kKeyDim, cta_row = blockIdx.x * kCtaRows;
  fetch_rows<kKeyDim>(entries().k[0], args.ring_k + slot * args.ring_k_stride + place.head / kGroup * kKeyDim, keys,
                      span);
  fetch_rows<kCtaRows>(entries().u[0], args.ring_u + slot * args.ring_u_stride + place.head * kValueDim + cta_row,
                       heads * kValueDim, span);
  fetch_rows<kEntryFactors>(entries().w[0], args.ring_w + slot * args.ring_w_stride + place.head * kEntryFactors,
                            heads * kEntryFactors, span);
}

// A lane's columns of a row in shared memory.
LEAN_DEVICE void read_columns(float (&columns)[kColumns], const Place& place, const float* row) {
  LEAN_UNROLL for (int i = 0; i < kColumns; i += 4) {
    const float4 x = *(const float4*)&row[column_of(place, i / kChunkColumns) + i % kChunkColumns];
    columns[i] = x.x, columns[i + 1] = x.y, columns[i + 2] = x.z, columns[i + 3] = x.w;
  }
}

// Rounds as take_token() does, so that the state is what it would be had it been stored after each token.
LEAN_DEVICE void replay(State& state, const Place& place, const Span& span) {
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncthreads();
#pragma unroll 1
  for (int entry = 0; entry < span.count; entry++) {
    float k[kColumns], w[kDecays];
    read_columns(k, place, entries().k[entry]);
    if constexpr (kDecays > 1) {
      read_columns(w, place, entries().w[entry]);
    } else {
      w[0] = entries().w[entry][0];
    }
    LEAN_UNROLL for (int row = 0; row < kLaneRows; row++) {
      const float u = entries().u[entry][place.row - (int)blockIdx.x * kCtaRows + row];
      LEAN_UNROLL for (int i = 0; i < kColumns; i++) {
        const float decayed = state.s[row][i] * w[kDecays == 1 ? 0 : i];
        state.s[row][i] = fmaf(u, k[i], decayed);
      }
    }
  }
}

// Each row of u is written by one of its lanes, w by the first CTA of its head, and k by that of its first head.
LEAN_DEVICE void store_entry(const LeanRecurrentArgs& args, const Place& place, int slot, int entry,
                             const float (&k)[kColumns], const float (&w)[kDecays], const float (&u)[kLaneRows]) {
  const i64 heads = gridDim.y;
  const float mine = own_output(place, u);
  float* const to_u = args.ring_u + slot * args.ring_u_stride + (entry * heads + place.head) * kValueDim;
  if (place.lane < kLaneRows) to_u[place.row + place.lane] = mine;
  if (blockIdx.x > 0 || threadIdx.x >= kRowLanes) return;
  float* const to_w = args.ring_w + slot * args.ring_w_stride + (entry * heads + place.head) * kEntryFactors;
  float* const to_k =
      args.ring_k + slot * args.ring_k_stride + (entry * (heads / kGroup) + place.head / kGroup) * kKeyDim;
  if (kDecays == 1 && threadIdx.x == 0) to_w[0] = w[0];
  LEAN_UNROLL for (int i = 0; i < kColumns; i += 4) {
    const int column = column_of(place, i / kChunkColumns) + i % kChunkColumns;
    if constexpr (kDecays > 1) *(float4*)(to_w + column) = make_float4(w[i], w[i + 1], w[i + 2], w[i + 3]);
    if (place.head % kGroup == 0) *(float4*)(to_k + column) = make_float4(k[i], k[i + 1], k[i + 2], k[i + 3]);
  }
}
