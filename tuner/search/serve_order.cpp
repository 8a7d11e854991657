#include "tuner/search/serve_order.hpp"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <mutex>
#include <string>

#include "tuner/search/answer.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

/// Writes messages from any thread.
class MessageWriter {
 public:
  explicit MessageWriter(std::FILE* output) : output_(output) {}
  void write(const TuningMessage& message) {
    const std::string line = to_json(message) + "\n";
    const std::lock_guard lock(mutex_);
    std::fwrite(line.data(), 1, line.size(), output_);
    std::fflush(output_);
  }

 private:
  std::mutex mutex_;
  std::FILE* output_;
};

TuningResult result_of(int index, const TunedShape& tuned) {
  return {.shape = index,
          .median_us = tuned.median_us,
          .read_limit_us = tuned.read_limit_us,
          .default_us = tuned.default_us,
          .candidates = tuned.candidates,
          .rejected = tuned.rejected,
          .incorrect = tuned.incorrect,
          .finished = tuned.finished};
}

Result<void> answer(std::string_view text, MessageWriter& writer, const CarryOut& carry_out) {
  const Result<TuningOrder> order = tuning_order_from_json(text);
  if (!order) return tl::unexpected(order.error());
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // It may have ended before this call.
  if (::getppid() != order->parent)
    return fail(ErrorCode::interrupted, "the process that asked has ended, or is not the parent of this one",
                "A script that stands for the program must replace itself by it (exec).");
  const auto sink = [&writer](const TuneProgress& progress) {
    writer.write(TuningProgress{.shape = progress.shape_index,
                                .phase = progress.phase,
                                .done = progress.done,
                                .total = progress.total,
                                .best_us = progress.best_us,
                                .elapsed_s = progress.elapsed_s});
  };
  const Result<ModelSummary> model = carry_out(*order, sink);
  if (!model) return tl::unexpected(model.error());
  const auto& shapes = model->summary.shapes;
  for (std::size_t i = 0; i < shapes.size(); ++i) writer.write(result_of(static_cast<int>(i), shapes[i]));
  for (const TunedShape& shape : shapes) {
    if (!shape.no_winner.empty()) writer.write(TuningWarning{no_winner_text(shape)});
  }
  for (const std::string& warning : model->warnings) writer.write(TuningWarning{warning});
  if (!model->failures.empty()) return tl::unexpected(model->failures.front().second);
  if (model->not_kept) return tl::unexpected(*model->not_kept);
  // An engine tells shapes without room from those that the budget did not reach by how the program ends.
  if (model->summary.out_of_memory) return tl::unexpected(*model->summary.out_of_memory);
  return {};
}

}  // namespace

Result<void> serve_order(std::string_view order, std::FILE* output, const CarryOut& carry_out) {
  MessageWriter writer(output);
  Result<void> answered = answer(order, writer, carry_out);
  if (answered) {
    writer.write(TuningEnd{});
  } else {
    writer.write(answered.error());
  }
  return answered;
}

}  // namespace v1
}  // namespace leanattn
