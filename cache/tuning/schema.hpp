// schema.hpp -- the tables of tuning.db, version by version (docs/cache-format.md). Internal to cache/.
// Constants only.
#pragma once

#include "cache/sqlite/database.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {

inline constexpr std::uint32_t kTuningApplicationId = 0x4C41746E;  // "LAtn"

const Schema& tuning_schema();

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
