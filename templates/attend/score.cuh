// attend/score.cuh -- what happens to a score between the two products: it may change, and it may be masked.

// Whether a step has a token that some row of the query tokens from `first` to `last` does not see. In a tree each
// query token may hide each new token, so there `first` is 0.
LEAN_DEVICE bool has_masked(const Segment& s, const Step& step, int first, int last) {
  if constexpr (kQLen > 1 && kQueryMask != kFull) {
#if defined(LEAN_SPANS)
    if (step.token + kStepTokens > max(s.context_length - s.query.count + first + 1, s.all_see)) return true;
#elif defined(LEAN_POSITIONS)
    if (place_of(step.token + kStepTokens - 1) > s.first_query + first) return true;
#else
    if (step.token + kStepTokens > s.context_length - s.query.count + first + (kQueryMask == kTree ? 0 : 1))
      return true;
#endif
  }
#if defined(LEAN_SEES_AHEAD)
#if defined(LEAN_POSITIONS)
  if (place_of(step.token + kStepTokens - 1) - kWindow >= s.first_query + first) return true;
#else
  if (step.token + kStepTokens - 1 - kWindow >= s.context_length - s.query.count + first) return true;
#endif
#endif
  if constexpr (kWindow > 0) {
#if defined(LEAN_POSITIONS)
    if (place_of(step.token) < s.first_query + last + 1 - kWindow) return true;
#else
    if (step.token < s.context_length - s.query.count + last + 1 - kWindow) return true;
#endif
  }
  return step.count < kStepTokens;
}
LEAN_DEVICE bool has_masked(const Segment& s, const Step& step) { return has_masked(s, step, 0, s.query.count - 1); }

// Whether row `row` sees the step's token number `offset`.
LEAN_DEVICE bool sees(const LeanDecodeArgs& args, const Segment& s, const Step& step, int offset, const Row& row) {
  bool visible = offset < step.count;
  if constexpr (!kRowsSeeAlike) {
#if defined(LEAN_POSITIONS)
    const int token = place_of(step.token + offset), first_query = s.first_query;
#else
    const int token = step.token + offset, first_query = s.context_length - s.query.count;
#endif
#if defined(LEAN_SPANS)
    const LeanSpan span = row.valid ? args.spans[s.query.first + row.token] : LeanSpan{0, 0};
    const int position = first_query + row.token, end = max(position + 1, span.end);
    if constexpr (kWindow == 0) return visible && token < end;
    const int window = position - kWindow + 1, from = span.end > 0 ? min(window, span.first) : window;
    const bool near = (u32)(token - from) < (u32)(end - from);
    return visible && (kSinkTokens > 0 ? near || token < min(kSinkTokens, end) : near);
#endif
    if constexpr (kQLen > 1 && kQueryMask == kCausal) visible &= token <= first_query + row.token;
    if constexpr (kQLen > 1 && kQueryMask == kTree) {
      const int query = token - first_query;  // which of the request's query tokens the KV token is, if any
      if (query >= 0 && row.valid) visible &= (args.tree_mask[s.query.first + row.token] >> query & 1) != 0;
    }
#if defined(LEAN_SEES_AHEAD)
    const int distance = token - first_query - row.token;
    const bool seen = distance > -kWindow && distance < kWindow;
#if defined(LEAN_WINDOW_OF_PART)
    visible &= seen || step.token + offset < s.sink_tokens;
#else
    visible &= seen || token < kSinkTokens;
#endif
#elif defined(LEAN_WINDOW_OF_PART)
    visible &= token > first_query + row.token - kWindow || step.token + offset < s.sink_tokens;
#else
    if constexpr (kWindow > 0) visible &= token > first_query + row.token - kWindow || token < kSinkTokens;
#endif
  }
  return visible;
}

// What the change of a query row's scores needs.
struct ScoreRow {
  int query;  // token index in the context
  int head;   // query head
  float slope;
#if defined(LEAN_INDEX_OF_PART)
  int first_position;  // that of place 0 (line/part_of_context.cuh)
#endif
};
LEAN_DEVICE ScoreRow score_row(const LeanDecodeArgs& args, const Segment& s, const Row& row) {
  ScoreRow r = {query_index(s, row), s.kv_head * kGroup + row.head, 0.0f};
#if defined(LEAN_INDEX_OF_PART)
  r.first_position = s.first_position;
#endif
  if constexpr (kAlibi) r.slope = row.valid ? args.alibi_slopes[r.head] : 0.0f;
  return r;
}

// tanh with an absolute error below 2^-22, which is fp32 accuracy wherever it matters beside a soft cap.
LEAN_DEVICE float tanh_exact(float x) {
  constexpr float kTwoLog2E = 2.88539008177792681f;
  return 1.0f - __fdividef(2.0f, exp2_approx(x * kTwoLog2E) + 1.0f);
}

// Multiplies scores, which may stand in an array of arrays, by the scale of a cache of bytes.
LEAN_DEVICE void scale_scores(float& score, float scale) { score *= scale; }
template <class T, int kCount>
LEAN_DEVICE void scale_scores(T (&scores)[kCount], float scale) {
#pragma unroll
  for (int i = 0; i < kCount; i++) scale_scores(scores[i], scale);
}

// The score of a row and a token in natural units, from the product of q and k.
LEAN_DEVICE float change_score(const LeanDecodeArgs& args, float product, const ScoreRow& row, int kv_index) {
#if defined(LEAN_INDEX_OF_PART)
  kv_index = row.first_position + place_of(kv_index);  // of a token of this rank
#endif
  float score = product * args.score_scale;
  if constexpr (kSoftCap > 0) score = kSoftCap * tanh_exact(score * (1.0f / kSoftCap));
  if constexpr (kAlibi) score = fmaf(row.slope, (float)(kv_index - row.query), score);
  return score_expression(score, row.query, kv_index, row.head);
}
