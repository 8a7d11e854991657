#include <leanattn/leanattn.hpp>
#include <vector>

/// A layer's part of a step: pools of its own, and activations at addresses that stay.
struct Layer {
  const void* q;      // [batch, 32, 128]
  const void *k, *v;  // [pages, 8, 16, 128]
  void* o;            // [batch, 32, 128]
};

/// The attention of a whole decode step. Called once between cudaStreamBeginCapture and cudaStreamEndCapture; what it
/// enqueues is replayed. The plan and the workspace, initialised, were made before the capture.
leanattn::Result<void> enqueue_step(const leanattn::Plan& plan, void* workspace, const std::vector<Layer>& layers,
                                    const int* context_lengths, const int* page_table, int batch, int max_pages,
                                    int pages, leanattn_stream stream) {
  for (const Layer& layer : layers) {
    leanattn::DecodeArgs args;
    args.q = layer.q, args.k = layer.k, args.v = layer.v, args.o = layer.o;
    args.context_lengths = context_lengths;  // [batch], may be rewritten between replays
    args.page_table = page_table;            // [batch, max_pages], likewise
    args.batch = batch, args.max_pages = max_pages, args.pool_pages = pages;  // these stay
    if (auto launched = plan.launch(args, workspace, stream); !launched) return launched;
  }
  return {};
}
