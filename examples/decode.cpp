#include <leanattn/leanattn.hpp>

/// One decode step of Llama-3-8B. All pointers are device memory; `allocate` is cudaMalloc's or your framework's.
leanattn::Result<void> decode(const void* q, const void* k, const void* v, void* o, const int* context_lengths,
                              int batch, int context_capacity, leanattn_stream stream, void* (*allocate)(std::size_t)) {
  // Once per GPU: opens the tuning database and takes the driver's primary context.
  static const auto engine = leanattn::Engine::create();
  if (!engine) return tl::unexpected(engine.error());

  // The first time: find the tuned kernel, compile or load it. Afterwards: one look-up, no lock.
  const leanattn::Problem problem{/*q_heads=*/32, /*kv_heads=*/8, /*head_dim=*/128, leanattn::DataType::bf16};
  const leanattn::PlanShape shape{/*batch=*/16, /*max_batch=*/64, /*longest_context=*/65536};
  const auto plan = engine->plan(problem, shape, stream);
  if (!plan) return tl::unexpected(plan.error());

  // Once per stream: device memory through which CTAs exchange partial results.
  static void* const workspace = allocate(static_cast<std::size_t>(plan->workspace_bytes()));
  static const auto zeroed = plan->init_workspace(workspace, plan->workspace_bytes(), stream);
  if (!zeroed) return zeroed;

  // Every step: enqueue. q and o are [batch, 32, 128], k and v [batch, 8, context_capacity, 128].
  leanattn::DecodeArgs args;
  args.q = q, args.k = k, args.v = v, args.o = o;
  args.context_lengths = context_lengths;
  args.batch = batch;
  args.context_capacity = context_capacity;
  return plan->launch(args, workspace, stream);
}
