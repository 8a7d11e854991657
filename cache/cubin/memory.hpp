// memory.hpp -- the memory layer in front of cubin.db. Internal to cache/. Thread-safe.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "cache/cubin/cubin_db.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {

/// The most recently used entries, up to a number of bytes.
class CubinMemory {
 public:
  explicit CubinMemory(std::size_t limit_bytes) : limit_bytes_(limit_bytes) {}

  std::optional<CubinEntry> load(std::string_view key);
  void store(std::string_view key, const CubinEntry& entry);
  void erase(std::string_view key);

  /// The layer of a directory, alive as long as somebody holds it. Keys are content hashes, so sharing can only save
  /// work.
  static std::shared_ptr<CubinMemory> shared(const std::string& directory);

 private:
  struct Item {
    std::string key;
    CubinEntry entry;
    std::size_t bytes() const { return key.size() + entry.cubin.size() + entry.metadata.size(); }
  };
  void drop(std::list<Item>::iterator item);

  std::mutex mutex_;
  std::size_t limit_bytes_;
  std::size_t bytes_ = 0;
  std::list<Item> items_;  ///< most recently used first
  std::unordered_map<std::string_view, std::list<Item>::iterator> by_key_;
};

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
