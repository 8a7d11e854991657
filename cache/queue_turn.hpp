// queue_turn.hpp -- QueueTurn: processes that want the same thing for long get it in the order in which they came. Any
// thread.
#pragma once

#include <filesystem>

#include "cache/files.hpp"
#include "leanattn/error.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {

/// The turn of one who queued, until destruction. Advisory: it keeps nobody out who does not queue. A process that dies
/// leaves the queue.
class QueueTurn {
 public:
  /// Queues at `file`, which is made where it is missing, and waits until all who came before have gone. Errors:
  /// database_busy after `timeout_ms`; cache_unavailable where nothing can be locked there.
  static Result<QueueTurn> wait(const std::filesystem::path& file, int timeout_ms);

 private:
  explicit QueueTurn(FileDescriptor held) : lock_(std::move(held)) {}
  DescriptionLock lock_;
};

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
