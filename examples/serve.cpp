#include <leanattn/leanattn.hpp>

/// What a server keeps of its paged cache: pools of 16-token pages, [pages, 2, 8, 16, 128] with keys and values in
/// turns.
struct PagedCache {
  void* pool;
  int pages;
  const int* page_table;  // [requests, max_pages]
  int max_pages;
};

/// One decode step of a Llama-3-8B layer in one launch: the new tokens' keys are rotated and written with their values
/// into the cache, the queries rotated, and each attends to its request. qkv is what the projection left: [batch, 32 +
/// 8 + 8, 128], bf16.
leanattn::Result<void> serve(const leanattn::Engine& engine, const PagedCache& cache, const unsigned short* qkv,
                             const float* rope_table, const int* context_lengths, int batch, void* o, void* workspace,
                             leanattn_stream stream) {
  leanattn::Problem problem;  // 32 query heads, 8 KV heads of 128, bf16
  problem.page_size = 16;
  problem.append = true;
  problem.rope = leanattn::RopePairing::half_split;
  const leanattn::PlanShape shape{/*batch=*/64, /*max_batch=*/256, /*longest_context=*/8192};
  const auto plan = engine.plan(problem, shape, stream);
  if (!plan) return tl::unexpected(plan.error());

  constexpr int kRow = 128, kQHeads = 32, kKvHeads = 8, kToken = (kQHeads + 2 * kKvHeads) * kRow,
                kPage = kKvHeads * 16 * kRow;
  leanattn::DecodeArgs args;
  args.q = qkv, args.q_stride_batch = kToken;
  args.k_new = qkv + kQHeads * kRow, args.k_new_stride_batch = kToken;
  args.v_new = qkv + (kQHeads + kKvHeads) * kRow, args.v_new_stride_batch = kToken;
  args.k = cache.pool, args.k_stride_batch = 2 * kPage;
  args.v = static_cast<unsigned short*>(cache.pool) + kPage, args.v_stride_batch = 2 * kPage;
  args.page_table = cache.page_table, args.max_pages = cache.max_pages, args.pool_pages = cache.pages;
  args.context_lengths = context_lengths;  // the new tokens included
  args.rope_table = rope_table;
  args.o = o, args.batch = batch;
  return plan->launch(args, workspace, stream);
}
