// abi_test.cpp -- the C ABI's golden table: a change here is a change that breaks programs built before it, unless a
// field was appended (then add its line, and leave every other as it is).
#include <gtest/gtest.h>

#include <cstddef>

#include "leanattn/leanattn.h"
#include "leanattn/recurrent.h"
#include "runtime/api/c_structs.hpp"

extern "C" std::size_t abi_c_size_of(int which);
extern "C" int abi_c_wrong_initialisers(void);

namespace leanattn {
namespace {

#define EXPECT_FIELD(type, field, offset, size)          \
  EXPECT_EQ(offsetof(type, field), std::size_t{offset}); \
  EXPECT_EQ(sizeof(type::field), std::size_t{size})

TEST(Abi, EngineOptions) {
  EXPECT_EQ(sizeof(leanattn_engine_options), 24u);
  EXPECT_FIELD(leanattn_engine_options, struct_size, 0, 8);
  EXPECT_FIELD(leanattn_engine_options, device, 8, 4);
  EXPECT_FIELD(leanattn_engine_options, flags, 12, 4);
  EXPECT_FIELD(leanattn_engine_options, cache_dir, 16, 8);
}

TEST(Abi, Problem) {
  EXPECT_EQ(sizeof(leanattn_problem), 152u);
  EXPECT_FIELD(leanattn_problem, struct_size, 0, 8);
  EXPECT_FIELD(leanattn_problem, q_heads, 8, 4);
  EXPECT_FIELD(leanattn_problem, kv_heads, 12, 4);
  EXPECT_FIELD(leanattn_problem, head_dim, 16, 4);
  EXPECT_FIELD(leanattn_problem, dtype, 20, 4);
  EXPECT_FIELD(leanattn_problem, kv_layout, 24, 4);
  EXPECT_FIELD(leanattn_problem, lse, 28, 4);
  EXPECT_FIELD(leanattn_problem, pdl, 32, 4);
  EXPECT_FIELD(leanattn_problem, reserved, 36, 4);
  EXPECT_FIELD(leanattn_problem, page_size, 40, 4);
  EXPECT_FIELD(leanattn_problem, q_len, 44, 4);
  EXPECT_FIELD(leanattn_problem, ragged_q, 48, 4);
  EXPECT_FIELD(leanattn_problem, query_mask, 52, 4);
  EXPECT_FIELD(leanattn_problem, window, 56, 4);
  EXPECT_FIELD(leanattn_problem, sink_tokens, 60, 4);
  EXPECT_FIELD(leanattn_problem, sink_logits, 64, 4);
  EXPECT_FIELD(leanattn_problem, alibi, 68, 4);
  EXPECT_FIELD(leanattn_problem, soft_cap, 72, 8);
  EXPECT_FIELD(leanattn_problem, score, 80, 8);
  EXPECT_FIELD(leanattn_problem, kv_format, 88, 4);
  EXPECT_FIELD(leanattn_problem, kv_scale, 92, 4);
  EXPECT_FIELD(leanattn_problem, v_head_dim, 96, 4);
  EXPECT_FIELD(leanattn_problem, batch_invariant, 100, 4);
  EXPECT_FIELD(leanattn_problem, append, 104, 4);
  EXPECT_FIELD(leanattn_problem, rope, 108, 4);
  EXPECT_FIELD(leanattn_problem, rope_dim, 112, 4);
  EXPECT_FIELD(leanattn_problem, latent, 116, 4);
  EXPECT_FIELD(leanattn_problem, selection_block, 120, 4);
  EXPECT_FIELD(leanattn_problem, selection_in_pool, 124, 4);
  EXPECT_FIELD(leanattn_problem, context_parallel, 128, 4);
  EXPECT_FIELD(leanattn_problem, context_interleave, 132, 4);
  EXPECT_FIELD(leanattn_problem, replicate_output, 136, 4);
  EXPECT_FIELD(leanattn_problem, second_cache, 140, 4);
  EXPECT_FIELD(leanattn_problem, spans, 144, 4);
  EXPECT_FIELD(leanattn_problem, packed_kv, 148, 4);
}

TEST(Abi, RecurrentLayer) {
  EXPECT_EQ(sizeof(leanattn_recurrent_layer), 64u);
  EXPECT_FIELD(leanattn_recurrent_layer, struct_size, 0, 8);
  EXPECT_FIELD(leanattn_recurrent_layer, recurrence, 8, 4);
  EXPECT_FIELD(leanattn_recurrent_layer, gates, 12, 4);
  EXPECT_FIELD(leanattn_recurrent_layer, qk_heads, 16, 4);
  EXPECT_FIELD(leanattn_recurrent_layer, v_heads, 20, 4);
  EXPECT_FIELD(leanattn_recurrent_layer, key_dim, 24, 4);
  EXPECT_FIELD(leanattn_recurrent_layer, value_dim, 28, 4);
  EXPECT_FIELD(leanattn_recurrent_layer, dtype, 32, 4);
  EXPECT_FIELD(leanattn_recurrent_layer, state, 36, 4);
  EXPECT_FIELD(leanattn_recurrent_layer, tokens, 40, 4);
  EXPECT_FIELD(leanattn_recurrent_layer, flags, 44, 4);
  EXPECT_FIELD(leanattn_recurrent_layer, output, 48, 4);
  EXPECT_FIELD(leanattn_recurrent_layer, conv_width, 52, 4);
  EXPECT_FIELD(leanattn_recurrent_layer, norm_heads, 56, 4);
  EXPECT_FIELD(leanattn_recurrent_layer, ring, 60, 4);
}

TEST(Abi, RecurrentArgs) {
  EXPECT_EQ(sizeof(leanattn_recurrent_args), 480u);
  EXPECT_FIELD(leanattn_recurrent_args, struct_size, 0, 8);
  EXPECT_FIELD(leanattn_recurrent_args, q, 8, 8);
  EXPECT_FIELD(leanattn_recurrent_args, k, 16, 8);
  EXPECT_FIELD(leanattn_recurrent_args, v, 24, 8);
  EXPECT_FIELD(leanattn_recurrent_args, a, 32, 8);
  EXPECT_FIELD(leanattn_recurrent_args, b, 40, 8);
  EXPECT_FIELD(leanattn_recurrent_args, a_log, 48, 8);
  EXPECT_FIELD(leanattn_recurrent_args, dt_bias, 56, 8);
  EXPECT_FIELD(leanattn_recurrent_args, skip, 64, 8);
  EXPECT_FIELD(leanattn_recurrent_args, z, 72, 8);
  EXPECT_FIELD(leanattn_recurrent_args, norm_weight, 80, 8);
  EXPECT_FIELD(leanattn_recurrent_args, state, 88, 8);
  EXPECT_FIELD(leanattn_recurrent_args, o, 96, 8);
  EXPECT_FIELD(leanattn_recurrent_args, slots, 104, 8);
  EXPECT_FIELD(leanattn_recurrent_args, out_slots, 112, 8);
  EXPECT_FIELD(leanattn_recurrent_args, accepted, 120, 8);
  EXPECT_FIELD(leanattn_recurrent_args, token_offsets, 128, 8);
  EXPECT_FIELD(leanattn_recurrent_args, q_stride, 136, 8);
  EXPECT_FIELD(leanattn_recurrent_args, k_stride, 144, 8);
  EXPECT_FIELD(leanattn_recurrent_args, v_stride, 152, 8);
  EXPECT_FIELD(leanattn_recurrent_args, a_stride, 160, 8);
  EXPECT_FIELD(leanattn_recurrent_args, b_stride, 168, 8);
  EXPECT_FIELD(leanattn_recurrent_args, o_stride, 176, 8);
  EXPECT_FIELD(leanattn_recurrent_args, z_stride, 184, 8);
  EXPECT_FIELD(leanattn_recurrent_args, state_stride, 192, 8);
  EXPECT_FIELD(leanattn_recurrent_args, batch, 200, 4);
  EXPECT_FIELD(leanattn_recurrent_args, slot_count, 204, 4);
  EXPECT_FIELD(leanattn_recurrent_args, first_slot, 208, 4);
  EXPECT_FIELD(leanattn_recurrent_args, slots_stride, 212, 4);
  EXPECT_FIELD(leanattn_recurrent_args, out_slots_stride, 216, 4);
  EXPECT_FIELD(leanattn_recurrent_args, scale, 220, 4);
  EXPECT_FIELD(leanattn_recurrent_args, norm_eps, 224, 4);
  EXPECT_FIELD(leanattn_recurrent_args, lower_bound, 228, 4);
  EXPECT_FIELD(leanattn_recurrent_args, output_eps, 232, 4);
  EXPECT_FIELD(leanattn_recurrent_args, reserved, 236, 4);
  EXPECT_FIELD(leanattn_recurrent_args, q_conv, 240, 48);
  EXPECT_FIELD(leanattn_recurrent_args, k_conv, 288, 48);
  EXPECT_FIELD(leanattn_recurrent_args, v_conv, 336, 48);
  EXPECT_FIELD(leanattn_recurrent_args, erase, 384, 8);
  EXPECT_FIELD(leanattn_recurrent_args, write, 392, 8);
  EXPECT_FIELD(leanattn_recurrent_args, erase_stride, 400, 8);
  EXPECT_FIELD(leanattn_recurrent_args, write_stride, 408, 8);
  EXPECT_FIELD(leanattn_recurrent_args, readers, 416, 8);
  EXPECT_FIELD(leanattn_recurrent_args, ring_spans, 424, 8);
  EXPECT_FIELD(leanattn_recurrent_args, ring_u, 432, 8);
  EXPECT_FIELD(leanattn_recurrent_args, ring_k, 440, 8);
  EXPECT_FIELD(leanattn_recurrent_args, ring_w, 448, 8);
  EXPECT_FIELD(leanattn_recurrent_args, ring_u_stride, 456, 8);
  EXPECT_FIELD(leanattn_recurrent_args, ring_k_stride, 464, 8);
  EXPECT_FIELD(leanattn_recurrent_args, ring_w_stride, 472, 8);
}

TEST(Abi, ShortConv) {
  EXPECT_EQ(sizeof(leanattn_short_conv), 48u);
  EXPECT_FIELD(leanattn_short_conv, weight, 0, 8);
  EXPECT_FIELD(leanattn_short_conv, bias, 8, 8);
  EXPECT_FIELD(leanattn_short_conv, state, 16, 8);
  EXPECT_FIELD(leanattn_short_conv, slot_stride, 24, 8);
  EXPECT_FIELD(leanattn_short_conv, channel_stride, 32, 8);
  EXPECT_FIELD(leanattn_short_conv, token_stride, 40, 8);
}

TEST(Abi, PlanOptions) {
  EXPECT_EQ(sizeof(leanattn_plan_options), 16u);
  EXPECT_FIELD(leanattn_plan_options, struct_size, 0, 8);
  EXPECT_FIELD(leanattn_plan_options, when_missing, 8, 4);
  EXPECT_FIELD(leanattn_plan_options, reserved, 12, 4);
  EXPECT_EQ(LEANATTN_WHEN_MISSING_COMPILE, 0);
  EXPECT_EQ(LEANATTN_WHEN_MISSING_FALLBACK, 1);
}

TEST(Abi, Shape) {
  EXPECT_EQ(sizeof(leanattn_shape), 64u);
  EXPECT_FIELD(leanattn_shape, struct_size, 0, 8);
  EXPECT_FIELD(leanattn_shape, batch, 8, 4);
  EXPECT_FIELD(leanattn_shape, max_batch, 12, 4);
  EXPECT_FIELD(leanattn_shape, longest_context, 16, 8);
  EXPECT_FIELD(leanattn_shape, total_context, 24, 8);
  EXPECT_FIELD(leanattn_shape, query_tokens, 32, 8);
  EXPECT_FIELD(leanattn_shape, chunk_context, 40, 8);
  EXPECT_FIELD(leanattn_shape, chunk_pairs, 48, 8);
  EXPECT_FIELD(leanattn_shape, chunks, 56, 4);
  EXPECT_FIELD(leanattn_shape, reserved, 60, 4);
}

TEST(Abi, TuneOptions) {
  EXPECT_EQ(sizeof(leanattn_tune_options), 64u);
  EXPECT_FIELD(leanattn_tune_options, struct_size, 0, 8);
  EXPECT_FIELD(leanattn_tune_options, budget_s, 8, 8);
  EXPECT_FIELD(leanattn_tune_options, shape_budget_s, 16, 8);
  EXPECT_FIELD(leanattn_tune_options, memory_bytes, 24, 8);
  EXPECT_FIELD(leanattn_tune_options, program, 32, 8);
  EXPECT_FIELD(leanattn_tune_options, progress, 40, 8);
  EXPECT_FIELD(leanattn_tune_options, progress_context, 48, 8);
  EXPECT_FIELD(leanattn_tune_options, retune, 56, 4);
  EXPECT_FIELD(leanattn_tune_options, reserved, 60, 4);
  EXPECT_EQ(LEANATTN_AUTOTUNE_OFF, 0);
  EXPECT_EQ(LEANATTN_AUTOTUNE_BACKGROUND, 1);
  EXPECT_EQ(LEANATTN_AUTOTUNE_WAIT, 2);
}

TEST(Abi, TunedShape) {
  EXPECT_EQ(sizeof(leanattn_tuned_shape), 64u);
  EXPECT_FIELD(leanattn_tuned_shape, struct_size, 0, 8);
  EXPECT_FIELD(leanattn_tuned_shape, status, 8, 4);
  EXPECT_FIELD(leanattn_tuned_shape, provenance, 12, 4);
  EXPECT_FIELD(leanattn_tuned_shape, measured, 16, 4);
  EXPECT_FIELD(leanattn_tuned_shape, finished, 20, 4);
  EXPECT_FIELD(leanattn_tuned_shape, median_us, 24, 8);
  EXPECT_FIELD(leanattn_tuned_shape, read_limit_us, 32, 8);
  EXPECT_FIELD(leanattn_tuned_shape, default_us, 40, 8);
  EXPECT_FIELD(leanattn_tuned_shape, candidates, 48, 4);
  EXPECT_FIELD(leanattn_tuned_shape, rejected, 52, 4);
  EXPECT_FIELD(leanattn_tuned_shape, incorrect, 56, 4);
  EXPECT_FIELD(leanattn_tuned_shape, reserved, 60, 4);
}

TEST(Abi, TuneProgress) {
  EXPECT_EQ(sizeof(leanattn_tune_progress), 48u);
  EXPECT_FIELD(leanattn_tune_progress, struct_size, 0, 8);
  EXPECT_FIELD(leanattn_tune_progress, phase, 8, 8);
  EXPECT_FIELD(leanattn_tune_progress, shape, 16, 4);
  EXPECT_FIELD(leanattn_tune_progress, shape_count, 20, 4);
  EXPECT_FIELD(leanattn_tune_progress, done, 24, 4);
  EXPECT_FIELD(leanattn_tune_progress, total, 28, 4);
  EXPECT_FIELD(leanattn_tune_progress, best_us, 32, 8);
  EXPECT_FIELD(leanattn_tune_progress, elapsed_s, 40, 8);
}

TEST(Abi, Choice) {
  EXPECT_EQ(sizeof(leanattn_choice), 216u);
  EXPECT_FIELD(leanattn_choice, struct_size, 0, 8);
  EXPECT_FIELD(leanattn_choice, provenance, 8, 4);
  EXPECT_FIELD(leanattn_choice, stale, 12, 4);
  EXPECT_FIELD(leanattn_choice, grid, 16, 8);
  EXPECT_FIELD(leanattn_choice, workspace_bytes, 24, 8);
  EXPECT_FIELD(leanattn_choice, tuned_us, 32, 8);
  EXPECT_FIELD(leanattn_choice, tuned_longest_context, 40, 8);
  EXPECT_FIELD(leanattn_choice, tuned_total_context, 48, 8);
  EXPECT_FIELD(leanattn_choice, tuned_batch, 56, 4);
  EXPECT_FIELD(leanattn_choice, reserved, 60, 4);
  EXPECT_FIELD(leanattn_choice, layer, 64, 16);
  EXPECT_FIELD(leanattn_choice, kernel_name, 80, 128);
  EXPECT_FIELD(leanattn_choice, pdl, 208, 4);
  EXPECT_FIELD(leanattn_choice, tuned_pdl, 212, 4);
}

TEST(Abi, PlanInfo) {
  EXPECT_EQ(sizeof(leanattn_plan_info), 104u);
  EXPECT_FIELD(leanattn_plan_info, struct_size, 0, 8);
  EXPECT_FIELD(leanattn_plan_info, kernel_name, 8, 8);
  EXPECT_FIELD(leanattn_plan_info, layer, 16, 8);
  EXPECT_FIELD(leanattn_plan_info, grid, 24, 8);
  EXPECT_FIELD(leanattn_plan_info, workspace_bytes, 32, 8);
  EXPECT_FIELD(leanattn_plan_info, tuned_us, 40, 8);
  EXPECT_FIELD(leanattn_plan_info, compile_ms, 48, 8);
  EXPECT_FIELD(leanattn_plan_info, provenance, 56, 4);
  EXPECT_FIELD(leanattn_plan_info, stale, 60, 4);
  EXPECT_FIELD(leanattn_plan_info, max_batch, 64, 4);
  EXPECT_FIELD(leanattn_plan_info, threads, 68, 4);
  EXPECT_FIELD(leanattn_plan_info, shared_bytes, 72, 4);
  EXPECT_FIELD(leanattn_plan_info, registers, 76, 4);
  EXPECT_FIELD(leanattn_plan_info, ctas_per_sm, 80, 4);
  EXPECT_FIELD(leanattn_plan_info, reserved, 84, 4);
  EXPECT_FIELD(leanattn_plan_info, pdl, 88, 4);
  EXPECT_FIELD(leanattn_plan_info, tuned_pdl, 92, 4);
  EXPECT_FIELD(leanattn_plan_info, stand_in, 96, 4);
  EXPECT_FIELD(leanattn_plan_info, reserved2, 100, 4);
}

TEST(Abi, MergeArgs) {
  EXPECT_EQ(sizeof(leanattn_merge_args), 192u);
  EXPECT_FIELD(leanattn_merge_args, struct_size, 0, 8);
  EXPECT_FIELD(leanattn_merge_args, o, 8, 64);
  EXPECT_FIELD(leanattn_merge_args, lse, 72, 64);
  EXPECT_FIELD(leanattn_merge_args, out_o, 136, 8);
  EXPECT_FIELD(leanattn_merge_args, out_lse, 144, 8);
  EXPECT_FIELD(leanattn_merge_args, o_stride_row, 152, 8);
  EXPECT_FIELD(leanattn_merge_args, out_stride_row, 160, 8);
  EXPECT_FIELD(leanattn_merge_args, rows, 168, 8);
  EXPECT_FIELD(leanattn_merge_args, parts, 176, 4);
  EXPECT_FIELD(leanattn_merge_args, dim, 180, 4);
  EXPECT_FIELD(leanattn_merge_args, dtype, 184, 4);
  EXPECT_FIELD(leanattn_merge_args, reserved, 188, 4);
}

TEST(Abi, DecodeArgs) {
  EXPECT_EQ(sizeof(leanattn_decode_args), 496u);
  EXPECT_FIELD(leanattn_decode_args, struct_size, 0, 8);
  EXPECT_FIELD(leanattn_decode_args, q, 8, 8);
  EXPECT_FIELD(leanattn_decode_args, k, 16, 8);
  EXPECT_FIELD(leanattn_decode_args, v, 24, 8);
  EXPECT_FIELD(leanattn_decode_args, o, 32, 8);
  EXPECT_FIELD(leanattn_decode_args, lse, 40, 8);
  EXPECT_FIELD(leanattn_decode_args, context_lengths, 48, 8);
  EXPECT_FIELD(leanattn_decode_args, q_stride_batch, 56, 8);
  EXPECT_FIELD(leanattn_decode_args, q_stride_head, 64, 8);
  EXPECT_FIELD(leanattn_decode_args, k_stride_batch, 72, 8);
  EXPECT_FIELD(leanattn_decode_args, k_stride_head, 80, 8);
  EXPECT_FIELD(leanattn_decode_args, k_stride_token, 88, 8);
  EXPECT_FIELD(leanattn_decode_args, v_stride_batch, 96, 8);
  EXPECT_FIELD(leanattn_decode_args, v_stride_head, 104, 8);
  EXPECT_FIELD(leanattn_decode_args, v_stride_token, 112, 8);
  EXPECT_FIELD(leanattn_decode_args, o_stride_batch, 120, 8);
  EXPECT_FIELD(leanattn_decode_args, o_stride_head, 128, 8);
  EXPECT_FIELD(leanattn_decode_args, batch, 136, 4);
  EXPECT_FIELD(leanattn_decode_args, context_capacity, 140, 4);
  EXPECT_FIELD(leanattn_decode_args, scale, 144, 4);
  EXPECT_FIELD(leanattn_decode_args, reserved, 148, 4);
  EXPECT_FIELD(leanattn_decode_args, page_table, 152, 8);
  EXPECT_FIELD(leanattn_decode_args, q_offsets, 160, 8);
  EXPECT_FIELD(leanattn_decode_args, tree_mask, 168, 8);
  EXPECT_FIELD(leanattn_decode_args, alibi_slopes, 176, 8);
  EXPECT_FIELD(leanattn_decode_args, sink_logits, 184, 8);
  EXPECT_FIELD(leanattn_decode_args, k_scale, 192, 8);
  EXPECT_FIELD(leanattn_decode_args, v_scale, 200, 8);
  EXPECT_FIELD(leanattn_decode_args, q_stride_token, 208, 8);
  EXPECT_FIELD(leanattn_decode_args, o_stride_token, 216, 8);
  EXPECT_FIELD(leanattn_decode_args, page_table_stride, 224, 8);
  EXPECT_FIELD(leanattn_decode_args, kv_scale_stride_batch, 232, 8);
  EXPECT_FIELD(leanattn_decode_args, kv_scale_stride_head, 240, 8);
  EXPECT_FIELD(leanattn_decode_args, kv_scale_stride_token, 248, 8);
  EXPECT_FIELD(leanattn_decode_args, pool_pages, 256, 8);
  EXPECT_FIELD(leanattn_decode_args, max_pages, 264, 4);
  EXPECT_FIELD(leanattn_decode_args, query_tokens, 268, 4);
  EXPECT_FIELD(leanattn_decode_args, k_new, 272, 8);
  EXPECT_FIELD(leanattn_decode_args, v_new, 280, 8);
  EXPECT_FIELD(leanattn_decode_args, rope_table, 288, 8);
  EXPECT_FIELD(leanattn_decode_args, k_new_stride_batch, 296, 8);
  EXPECT_FIELD(leanattn_decode_args, k_new_stride_token, 304, 8);
  EXPECT_FIELD(leanattn_decode_args, k_new_stride_head, 312, 8);
  EXPECT_FIELD(leanattn_decode_args, v_new_stride_batch, 320, 8);
  EXPECT_FIELD(leanattn_decode_args, v_new_stride_token, 328, 8);
  EXPECT_FIELD(leanattn_decode_args, v_new_stride_head, 336, 8);
  EXPECT_FIELD(leanattn_decode_args, selection, 344, 8);
  EXPECT_FIELD(leanattn_decode_args, selected_counts, 352, 8);
  EXPECT_FIELD(leanattn_decode_args, selection_stride_batch, 360, 8);
  EXPECT_FIELD(leanattn_decode_args, selection_stride_token, 368, 8);
  EXPECT_FIELD(leanattn_decode_args, selection_stride_head, 376, 8);
  EXPECT_FIELD(leanattn_decode_args, selection_capacity, 384, 4);
  EXPECT_FIELD(leanattn_decode_args, selection_heads, 388, 4);
  EXPECT_FIELD(leanattn_decode_args, full_context_lengths, 392, 8);
  EXPECT_FIELD(leanattn_decode_args, context_starts, 400, 8);
  EXPECT_FIELD(leanattn_decode_args, second_k, 408, 8);
  EXPECT_FIELD(leanattn_decode_args, second_v, 416, 8);
  EXPECT_FIELD(leanattn_decode_args, second_page_table, 424, 8);
  EXPECT_FIELD(leanattn_decode_args, second_lengths, 432, 8);
  EXPECT_FIELD(leanattn_decode_args, second_page_table_stride, 440, 8);
  EXPECT_FIELD(leanattn_decode_args, second_pool_pages, 448, 8);
  EXPECT_FIELD(leanattn_decode_args, second_max_pages, 456, 4);
  EXPECT_FIELD(leanattn_decode_args, reserved3, 460, 4);
  EXPECT_FIELD(leanattn_decode_args, spans, 464, 8);
  EXPECT_FIELD(leanattn_decode_args, kv_offsets, 472, 8);
  EXPECT_FIELD(leanattn_decode_args, k_block_scales, 480, 8);
  EXPECT_FIELD(leanattn_decode_args, v_block_scales, 488, 8);
}

TEST(Abi, GroupOptions) {
  EXPECT_EQ(sizeof(leanattn_group_options), 40u);
  EXPECT_FIELD(leanattn_group_options, struct_size, 0, 8);
  EXPECT_FIELD(leanattn_group_options, rank, 8, 4);
  EXPECT_FIELD(leanattn_group_options, size, 12, 4);
  EXPECT_FIELD(leanattn_group_options, memory_bytes, 16, 8);
  EXPECT_FIELD(leanattn_group_options, peers, 24, 4);
  EXPECT_FIELD(leanattn_group_options, reserved, 28, 4);
  EXPECT_FIELD(leanattn_group_options, memory, 32, 8);
  EXPECT_EQ(LEANATTN_GROUP_BLOB_BYTES, 256);
}

TEST(Abi, NcclOptions) {
  EXPECT_EQ(sizeof(leanattn_nccl_options), 24u);
  EXPECT_FIELD(leanattn_nccl_options, struct_size, 0, 8);
  EXPECT_FIELD(leanattn_nccl_options, unique_id, 8, 8);
  EXPECT_FIELD(leanattn_nccl_options, comm, 16, 8);
  EXPECT_EQ(LEANATTN_NCCL_ID_BYTES, 128);
}

TEST(Abi, TheFirstReleasedSizesAreFrozen) {
  EXPECT_EQ(detail::kFirstSize<leanattn_engine_options>, 24u);
  EXPECT_EQ(detail::kFirstSize<leanattn_problem>, 32u);
  EXPECT_EQ(detail::kFirstSize<leanattn_shape>, 32u);
  EXPECT_EQ(detail::kFirstSize<leanattn_choice>, 208u);
  EXPECT_EQ(detail::kFirstSize<leanattn_plan_info>, 88u);
  EXPECT_EQ(detail::kFirstSize<leanattn_decode_args>, 152u);
  EXPECT_EQ(detail::kFirstSize<leanattn_merge_args>, 192u);
  EXPECT_EQ(detail::kFirstSize<leanattn_plan_options>, 16u);
  EXPECT_EQ(detail::kFirstSize<leanattn_tune_options>, 64u);
  EXPECT_EQ(detail::kFirstSize<leanattn_tuned_shape>, 64u);
  EXPECT_EQ(detail::kFirstSize<leanattn_group_options>, 24u);
  EXPECT_EQ(detail::kFirstSize<leanattn_nccl_options>, 24u);
}

TEST(Abi, ProvenancesKeepTheirValues) {
  EXPECT_EQ(LEANATTN_EXACT, 0);
  EXPECT_EQ(LEANATTN_BUCKET, 1);
  EXPECT_EQ(LEANATTN_NEAREST, 2);
  EXPECT_EQ(LEANATTN_MODEL, 3);
  EXPECT_EQ(LEANATTN_FALLBACK, 4);
  EXPECT_EQ(LEANATTN_WITHOUT_PDL, 5);
}

TEST(Abi, EnumeratorsOfFeaturesKeepTheirValues) {
  EXPECT_EQ(LEANATTN_MASK_CAUSAL, 0);
  EXPECT_EQ(LEANATTN_MASK_TREE, 1);
  EXPECT_EQ(LEANATTN_MASK_FULL, 2);
  EXPECT_EQ(LEANATTN_KV_SAME, 0);
  EXPECT_EQ(LEANATTN_KV_FP8_E4M3, 1);
  EXPECT_EQ(LEANATTN_KV_FP8_E5M2, 2);
  EXPECT_EQ(LEANATTN_KV_INT8, 3);
  EXPECT_EQ(LEANATTN_KV_FP8_DS_MLA, 4);
  EXPECT_EQ(LEANATTN_KV_INT4, 5);
  EXPECT_EQ(LEANATTN_KV_NVFP4, 6);
  EXPECT_EQ(LEANATTN_KV_FP8_DS_V4, 7);
  EXPECT_EQ(LEANATTN_ROPE_NONE, 0);
  EXPECT_EQ(LEANATTN_ROPE_HALF_SPLIT, 1);
  EXPECT_EQ(LEANATTN_ROPE_INTERLEAVED, 2);
  EXPECT_EQ(LEANATTN_SCALE_TENSOR, 0);
  EXPECT_EQ(LEANATTN_SCALE_HEAD, 1);
  EXPECT_EQ(LEANATTN_SCALE_TOKEN, 2);
  EXPECT_EQ(LEANATTN_SCALE_IN_ROW, 3);
}

TEST(Abi, StatusesAreTheErrorCodes) {
  EXPECT_EQ(LEANATTN_OK, static_cast<int>(ErrorCode::ok));
  EXPECT_EQ(LEANATTN_INVALID_ARGUMENT, static_cast<int>(ErrorCode::invalid_argument));
  EXPECT_EQ(LEANATTN_UNSUPPORTED, static_cast<int>(ErrorCode::unsupported));
  EXPECT_EQ(LEANATTN_NO_DRIVER, static_cast<int>(ErrorCode::no_driver));
  EXPECT_EQ(LEANATTN_NO_DEVICE, static_cast<int>(ErrorCode::no_device));
  EXPECT_EQ(LEANATTN_DRIVER_TOO_OLD, static_cast<int>(ErrorCode::driver_too_old));
  EXPECT_EQ(LEANATTN_NVRTC_MISSING, static_cast<int>(ErrorCode::nvrtc_missing));
  EXPECT_EQ(LEANATTN_COMPILE_FAILED, static_cast<int>(ErrorCode::compile_failed));
  EXPECT_EQ(LEANATTN_KERNEL_REJECTED, static_cast<int>(ErrorCode::kernel_rejected));
  EXPECT_EQ(LEANATTN_LOAD_FAILED, static_cast<int>(ErrorCode::load_failed));
  EXPECT_EQ(LEANATTN_LAUNCH_FAILED, static_cast<int>(ErrorCode::launch_failed));
  EXPECT_EQ(LEANATTN_OUT_OF_MEMORY, static_cast<int>(ErrorCode::out_of_memory));
  EXPECT_EQ(LEANATTN_CACHE_UNAVAILABLE, static_cast<int>(ErrorCode::cache_unavailable));
  EXPECT_EQ(LEANATTN_DATABASE_CORRUPT, static_cast<int>(ErrorCode::database_corrupt));
  EXPECT_EQ(LEANATTN_DATABASE_NEWER, static_cast<int>(ErrorCode::database_newer));
  EXPECT_EQ(LEANATTN_DATABASE_BUSY, static_cast<int>(ErrorCode::database_busy));
  EXPECT_EQ(LEANATTN_NOT_FOUND, static_cast<int>(ErrorCode::not_found));
  EXPECT_EQ(LEANATTN_NOT_PREPARED, static_cast<int>(ErrorCode::not_prepared));
  EXPECT_EQ(LEANATTN_WRONG_RESULT, static_cast<int>(ErrorCode::wrong_result));
  EXPECT_EQ(LEANATTN_INTERRUPTED, static_cast<int>(ErrorCode::interrupted));
  EXPECT_EQ(LEANATTN_CONTEXT_LOST, static_cast<int>(ErrorCode::context_lost));
  EXPECT_EQ(LEANATTN_INTERNAL, static_cast<int>(ErrorCode::internal));
  EXPECT_EQ(LEANATTN_WORKSPACE_CORRUPT, static_cast<int>(ErrorCode::workspace_corrupt));
  EXPECT_EQ(LEANATTN_GROUP_BROKEN, static_cast<int>(ErrorCode::group_broken));
}

TEST(Abi, CAndCxxSeeTheSameStructs) {
  const std::size_t sizes[] = {
      sizeof(leanattn_engine_options),  sizeof(leanattn_problem),       sizeof(leanattn_shape),
      sizeof(leanattn_choice),          sizeof(leanattn_plan_info),     sizeof(leanattn_decode_args),
      sizeof(leanattn_merge_args),      sizeof(leanattn_plan_options),  sizeof(leanattn_tune_options),
      sizeof(leanattn_tuned_shape),     sizeof(leanattn_group_options), sizeof(leanattn_nccl_options),
      sizeof(leanattn_recurrent_layer), sizeof(leanattn_recurrent_args)};
  for (int i = 0; i < 14; ++i) EXPECT_EQ(abi_c_size_of(i), sizes[i]) << i;
  EXPECT_EQ(abi_c_wrong_initialisers(), 0);
}

}  // namespace
}  // namespace leanattn
