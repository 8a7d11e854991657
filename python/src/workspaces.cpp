// workspaces.cpp -- allocates workspaces, and takes back those of graphs that are gone.
#include "workspaces.hpp"

#include <algorithm>

#include "runtime/cuda/beside_captures.hpp"
#include "runtime/cuda/current_context.hpp"

namespace leanattn::python {
namespace {

constexpr std::int64_t kGranule = 1 << 20;

}  // namespace

Workspaces::~Workspaces() {
  const CurrentContext scope(context_.get());
  streams_.clear();
  captures_.clear();
  spare_.clear();
  outgrown_.clear();
}

std::int64_t Workspaces::bytes() const {
  const std::lock_guard lock(mutex_);
  std::int64_t total = 0;
  for (const auto& [stream, buffer] : streams_) total += buffer.bytes();
  for (const auto& [key, lent] : captures_) {
    for (const Lent& one : lent) total += one.buffer.bytes();
  }
  for (const auto* buffers : {&spare_, &outgrown_}) {
    for (const DeviceBuffer& buffer : *buffers) total += buffer.bytes();
  }
  return total;
}

Result<void*> Workspaces::get(const leanattn_plan* plan, CUstream_st* stream) {
  const std::int64_t bytes = leanattn_plan_workspace_bytes(plan);
  const auto capture = stream_capture_of(stream);
  if (!capture) [[unlikely]]
    return tl::unexpected(capture.error());
  const std::lock_guard lock(mutex_);
  if (capture->id != 0) [[unlikely]]
    return of_capture(bytes, stream, *capture);
  const auto found = streams_.find(stream);
  if (found != streams_.end() && found->second.bytes() >= bytes) [[likely]]
    return found->second.data();
  return of_stream(plan, bytes, stream);
}

/// Allocates at least `bytes`, rounded up so that plans which need a little more fit as well.
Result<DeviceBuffer> Workspaces::allocate(std::int64_t bytes) {
  const BesideCaptures relaxed;
  return DeviceBuffer::allocate((std::max<std::int64_t>(bytes, 1) + kGranule - 1) / kGranule * kGranule);
}

/// Zeroes now, on a stream of its own: within a capture every replay would zero the buffer.
Result<void> Workspaces::zero(void* data, std::int64_t bytes) {
  const BesideCaptures relaxed;
  const auto side = Stream::create();
  if (!side) return tl::unexpected(side.error());
  if (auto ok = fill_bytes_async(data, 0, bytes, side->get()); !ok) return ok;
  return side->synchronize();
}

Result<DeviceBuffer> Workspaces::make(std::int64_t bytes) {
  const CurrentContext scope(context_.get());
  if (!scope.entered()) return tl::unexpected(scope.entered().error());
  auto buffer = allocate(bytes);
  if (!buffer) return buffer;
  if (auto ok = zero(buffer->data(), buffer->bytes()); !ok) return tl::unexpected(ok.error());
  const std::lock_guard lock(mutex_);
  made_.emplace(buffer->data(), buffer->bytes());
  return buffer;
}

void Workspaces::free(DeviceBuffer buffer) {
  {
    const std::lock_guard lock(mutex_);
    made_.erase(buffer.data());
  }
  const CurrentContext scope(context_.get());
  buffer = {};
}

Result<void> Workspaces::wait() {
  const CurrentContext scope(context_.get());
  if (!scope.entered()) return scope.entered();
  return synchronize_context();
}

Result<void> Workspaces::reset() {
  const CurrentContext scope(context_.get());
  if (!scope.entered()) return scope.entered();
  const std::lock_guard lock(mutex_);
  if (auto ok = synchronize_context(); !ok) return ok;
  std::map<void*, std::int64_t> all = made_;
  for (const auto& [stream, buffer] : streams_) all.emplace(buffer.data(), buffer.bytes());
  for (const auto& [key, lent] : captures_) {
    for (const Lent& one : lent) all.emplace(one.buffer.data(), one.buffer.bytes());
  }
  // Outgrown ones are not used again, and spare ones are zeroed before they are.
  for (const auto& [data, bytes] : all) {
    if (data == nullptr) continue;
    if (auto ok = zero(data, bytes); !ok) return ok;
  }
  return {};
}

Result<void*> Workspaces::of_stream(const leanattn_plan* plan, std::int64_t bytes, CUstream_st* stream) {
  const CurrentContext scope(context_.get());
  if (!scope.entered()) return tl::unexpected(scope.entered().error());
  auto buffer = allocate(std::max(bytes, streams_[stream].bytes() * 2));
  if (!buffer) return tl::unexpected(buffer.error());
  if (const auto status = leanattn_plan_init_workspace(plan, buffer->data(), buffer->bytes(), stream);
      status != LEANATTN_OK) {
    return tl::unexpected(detail::last_error(status));
  }
  DeviceBuffer& mine = streams_[stream];
  if (mine.bytes() > 0) outgrown_.push_back(std::move(mine));
  mine = std::move(*buffer);
  return mine.data();
}

Result<void*> Workspaces::of_capture(std::int64_t bytes, CUstream_st* stream, const StreamCapture& capture) {
  std::vector<Lent>& lent = captures_[{capture.id, stream}];
  for (const Lent& one : lent) {
    if (one.buffer.bytes() >= bytes) return one.buffer.data();
  }
  const CurrentContext scope(context_.get());
  if (!scope.entered()) return tl::unexpected(scope.entered().error());
  take_back_ended();
  DeviceBuffer buffer;
  const auto fits = std::find_if(spare_.begin(), spare_.end(), [&](const auto& one) { return one.bytes() >= bytes; });
  if (fits != spare_.end()) {
    buffer = std::move(*fits);
    spare_.erase(fits);
  } else {
    auto fresh = allocate(bytes);
    if (!fresh) return tl::unexpected(fresh.error());
    buffer = std::move(*fresh);
  }
  // A spare one is zeroed, too: a launch of its graph may not have ended.
  if (auto ok = zero(buffer.data(), buffer.bytes()); !ok) return tl::unexpected(ok.error());
  Lent one{std::move(buffer), std::make_shared<std::atomic<bool>>(false)};
  if (auto ok = tell_end(capture, one.ended); !ok) {
    spare_.push_back(std::move(one.buffer));
    return tl::unexpected(ok.error());
  }
  captures_[{capture.id, stream}].push_back(std::move(one));
  return captures_[{capture.id, stream}].back().buffer.data();
}

void Workspaces::take_back_ended() {
  for (auto it = captures_.begin(); it != captures_.end();) {
    auto& lent = it->second;
    for (Lent& one : lent) {
      if (one.ended->load(std::memory_order_acquire)) spare_.push_back(std::move(one.buffer));
    }
    std::erase_if(lent, [](const Lent& one) { return one.buffer.data() == nullptr; });
    it = lent.empty() ? captures_.erase(it) : std::next(it);
  }
}

}  // namespace leanattn::python
