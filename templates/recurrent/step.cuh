// recurrent/step.cuh -- the entry point: rows of a head's state take the tokens of a request one after the other. With
// the factor w of the decay, the step of a row s of the state is
//   s = w s;   u = weight (v - s.k), or weight v without the delta rule;   s = s + u k;   o = s.q + D v
// in which s.q = (w s).q + u (k.q). So both sums over the old state are made at the same time, and the norms of q and k
// are factors of the results. With erasure by channels u is write v - s.(erase k). By vectors, u is v,
// and s also gets s.erase, from before the decay, along write.

struct Update {
  float decay[kDecays];  // factors
  float weight;
  float key_norm, query_norm;  // what k and q are to be multiplied with
  float kq;                    // k.q of the multiplied ones
  float erase[kEraseColumns], write[kWrites];
  float write_q;  // write.q, with q multiplied
};

LEAN_DEVICE void unpack_columns(float (&columns)[kColumns], const u32 (&words)[kColumns / 2]) {
  LEAN_UNROLL for (int i = 0; i < kColumns; i += 2) {
    const float2 pair = Element::unpack(words[i / 2]);
    columns[i] = pair.x, columns[i + 1] = pair.y;
  }
}

LEAN_DEVICE Update update_of(const LeanRecurrentArgs& args, const Head& head, const Token& token,
                             const float (&k)[kColumns], const float (&q)[kColumns]) {
  Update update;
  float kk = 0.0f, qq = 0.0f, kq = 0.0f;
  LEAN_UNROLL for (int i = 0; i < kColumns; i++) {
    kk = fmaf(k[i], k[i], kk), qq = fmaf(q[i], q[i], qq);
    kq = fmaf(k[i], q[i], kq);
  }
  update.key_norm = 1.0f, update.query_norm = args.scale;
  if constexpr (kNormalises) {
    update.key_norm = reciprocal_root(sum_of_row(kk) + args.norm_eps);
    update.query_norm = args.scale * reciprocal_root(sum_of_row(qq) + args.norm_eps);
  }
  update.kq = sum_of_row(kq) * update.key_norm * update.query_norm;
  const float rate = factor_of(head.a_log), first_gate = gate_value(token.gate[0]) + head.bias[0];
  LEAN_UNROLL for (int i = 0; i < kDecays; i++) {
    float log = kGates == kGatesConstant ? head.a_log : gate_value(token.gate[i]) + head.bias[i];
    log = decay_log(args, log, rate);
    update.decay[i] = kDecay == kDecayNone ? 1.0f : factor_of(log);
  }
  update.weight = 1.0f;
  if constexpr (kBringsWeight) update.weight = gate_value(token.weight);
  if constexpr (kWeight == kWeightBeta && kGates != kGatesGiven) update.weight = sigmoid(update.weight);
  if constexpr (kWeight == kWeightStep && kGates == kGatesSoftplus) update.weight = softplus(first_gate);
  if constexpr (kErases) {
    unpack_columns(update.erase, token.erase);
    if constexpr (kErasure == kErasureVectors) {
      unpack_columns(update.write, token.write);
      float sum = 0.0f;
      LEAN_UNROLL for (int i = 0; i < kColumns; i++) sum = fmaf(update.write[i], q[i], sum);
      update.write_q = sum_of_row(sum) * update.query_norm;
    } else {
      LEAN_UNROLL for (int row = 0; row < kLaneRows; row++) {
        const float write = Element::unpack(token.write[row]).x;
        update.write[row] = kGates == kGatesGiven ? write : sigmoid(write);
      }
      LEAN_UNROLL for (int i = 0; i < kColumns; i++) update.erase[i] =
          k[i] * (kGates == kGatesGiven ? update.erase[i] : sigmoid(update.erase[i]));
    }
  }
  return update;
}

// What a row of the state has at a key or a query. All lanes of the row get it.
LEAN_DEVICE float read_row(const float (&s)[kColumns], const float (&key)[kColumns]) {
  float sum = 0.0f;
  LEAN_UNROLL for (int i = 0; i < kColumns; i++) sum = fmaf(s[i], key[i], sum);
  return sum_of_row(sum);
}

// `added` is what was added at k.
LEAN_DEVICE void take_token(State& state, float (&o)[kLaneRows], float (&added)[kLaneRows], const Update& update,
                            const float (&k)[kColumns], const float (&q)[kColumns], const float (&v)[kLaneRows],
                            float skip) {
  LEAN_UNROLL for (int row = 0; row < kLaneRows; row++) {
    float(&s)[kColumns] = state.s[row];
    [[maybe_unused]] float erased = 0.0f;
    if constexpr (kErasure == kErasureVectors) erased = read_row(s, update.erase);
    LEAN_UNROLL for (int i = 0; i < kColumns; i++) s[i] *= update.decay[kDecays == 1 ? 0 : i];
    const float read = read_row(s, q);
    float u = update.weight * v[row];
    if constexpr (kErasure == kErasureKey) u = update.weight * (v[row] - read_row(s, k) * update.key_norm);
    if constexpr (kErasure == kErasureChannels)
      u = update.write[row] * v[row] - read_row(s, update.erase) * update.key_norm;
    added[row] = u * update.key_norm;
    LEAN_UNROLL for (int i = 0; i < kColumns; i++) s[i] = fmaf(added[row], k[i], s[i]);
    o[row] = fmaf(read, update.query_norm, u * update.kq);
    if constexpr (kErasure == kErasureVectors) {
      LEAN_UNROLL for (int i = 0; i < kColumns; i++) s[i] = fmaf(erased, update.write[i], s[i]);
      o[row] = fmaf(erased, update.write_q, o[row]);
    }
    if constexpr (kSkip) o[row] = fmaf(skip, v[row], o[row]);
  }
}

extern "C" __global__ void
#if defined(LEAN_CLUSTER)
__cluster_dims__(kHeadCtas, kNormHeads)
#endif
    __launch_bounds__(kWarps * 32, kCtasPerSm) KERNEL_NAME(const __grid_constant__ LeanRecurrentArgs args) {
  if constexpr (kGatesOutput && kNormCtas > 1) arrive_in_cluster();
  const Place place = place_of_thread();
  const int lane = threadIdx.x % 32;
  // A state waits for its slot alone, so slots and the number of tokens are on their way together. Lane t has entry t.
  const int entry = kSnapshots ? min(lane, kTokens - 1) : 0;
  const int in_slot = load_input<int>(args.slots + (i64)place.request * args.slots_stride + entry);
  [[maybe_unused]] int slot = in_slot, out_slot = in_slot;
  if (args.out_slots != nullptr)
    out_slot = load_input<int>(args.out_slots + (i64)place.request * args.out_slots_stride + entry);
  i64 first_token = (i64)place.request * kTokens;
  int tokens = kTokens;
  if constexpr (kRagged) {
    first_token = load_input<int>(args.token_offsets + place.request);
    tokens = min(load_input<int>(args.token_offsets + place.request + 1) - (int)first_token, kTokens);
  }
  [[maybe_unused]] int first_entry = 0;
  if constexpr (kSnapshots) {
    if (args.accepted != nullptr)
      first_entry = min(max(load_input<int>(args.accepted + place.request), 1), kTokens) - 1;
    slot = __shfl_sync(kFullMask, in_slot, first_entry);
  }
#if defined(LEAN_REPLAYS)
  const Span span = load_span(args, place);
#endif
  const Head head = load_head(args, place);
  Token token;
  if (!kRagged || tokens > 0) token = load_token(args, place, first_token);
#if defined(LEAN_CONVOLVES)
  const Taps taps = load_taps(args, place, first_token, tokens, __shfl_sync(kFullMask, in_slot, 0), first_entry);
#endif
  const bool has_state = !is_null(args, slot) && tokens > 0;
  if constexpr (kRing > 0) {
    if (has_state) fetch_entries(args, place, slot, span);
  }
  State state;
  load_state(state, state_at(args, place, slot), has_state);
  // A branch behind the loads: in one block with them, arithmetic that waits for the token would get between them.
  if (!has_state) {
    for (int t = 0; t < tokens; t++) store_output(args, place, first_token + t, 0.0f);
    return;
  }
#if defined(LEAN_CONVOLVES)
  const int conv_slot = __shfl_sync(kFullMask, out_slot, 0);
  convolve(place, taps);
  const u32 readers_before = threadIdx.x == 0 ? count_reader(args, place) : 0;
  if (!is_null(args, conv_slot)) store_seen(args, place, tokens, conv_slot, false);
#endif

  if constexpr (kRing > 0) {
    replay(state, place, span);
    if (flushes(span)) store_state(state, state_at(args, place, slot));
  }
  for (int t = 0; t < tokens; t++) {
    float k[kColumns], q[kColumns], v[kLaneRows], o[kLaneRows], added[kLaneRows];
    if constexpr (kConvWidth > 0) {
      read_convolved(place, t, q, k, v);
    } else {
      unpack_columns(k, token.k);
      unpack_columns(q, token.q);
      LEAN_UNROLL for (int row = 0; row < kLaneRows; row++) v[row] = Element::unpack(token.v[row]).x;
    }
    const Token taken = token;
    if (t + 1 < tokens) token = load_token(args, place, first_token + t + 1);
    const Update update = update_of(args, head, taken, k, q);
    take_token(state, o, added, update, k, q, v, head.skip);
    float mine = own_output(place, o);
    if constexpr (!kGatesOutput) store_output(args, place, first_token + t, mine);
    if constexpr (kRing > 0) {
      store_entry(args, place, slot, entry_of(span, span.count + t), k, update.decay, added);
    } else if (kSnapshots || t + 1 == tokens) {
      const int to = __shfl_sync(kFullMask, out_slot, kSnapshots ? t : 0);
      if (!is_null(args, to)) store_state(state, state_at(args, place, to));
    }
    if constexpr (kGatesOutput) {
      mine = gated(args, t, mine, head.norm_weight, Element::unpack(taken.z).x);
      store_output(args, place, first_token + t, mine);
    }
  }
#if defined(LEAN_CONVOLVES)
  if (is_last_reader(readers_before) && !is_null(args, conv_slot)) store_seen(args, place, tokens, conv_slot, true);
#endif
}
