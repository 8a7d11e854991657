#include "cache/cubin/memory.hpp"

#include <map>
#include <utility>

namespace leanattn {
inline namespace v1 {
namespace detail {
namespace {
constexpr std::size_t kSharedLimitBytes = std::size_t{16} << 20;  ///< half of what the whole library may take
}

std::optional<CubinEntry> CubinMemory::load(std::string_view key) {
  const std::lock_guard lock(mutex_);
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return std::nullopt;
  items_.splice(items_.begin(), items_, found->second);
  return found->second->entry;
}

void CubinMemory::store(std::string_view key, const CubinEntry& entry) {
  Item item{std::string(key), entry};
  const std::lock_guard lock(mutex_);
  if (const auto known = by_key_.find(key); known != by_key_.end()) drop(known->second);
  if (item.bytes() > limit_bytes_) return;
  bytes_ += item.bytes();
  items_.push_front(std::move(item));
  by_key_.emplace(items_.front().key, items_.begin());
  while (bytes_ > limit_bytes_) drop(std::prev(items_.end()));
}

void CubinMemory::erase(std::string_view key) {
  const std::lock_guard lock(mutex_);
  if (const auto known = by_key_.find(key); known != by_key_.end()) drop(known->second);
}

void CubinMemory::drop(std::list<Item>::iterator item) {
  bytes_ -= item->bytes();
  by_key_.erase(item->key);
  items_.erase(item);
}

std::shared_ptr<CubinMemory> CubinMemory::shared(const std::string& directory) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<CubinMemory>> layers;
  const std::lock_guard lock(mutex);
  auto& known = layers[directory];
  auto layer = known.lock();
  if (!layer) {
    layer = std::make_shared<CubinMemory>(kSharedLimitBytes);
    known = layer;
  }
  return layer;
}

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
