// tuning_merge.hpp -- the union of two tuning databases. Internal to cache/. Throws SQLite::Exception; the caller owns
// the transaction of the destination.
#pragma once

#include <SQLiteCpp/SQLiteCpp.h>

#include <cstdint>

namespace leanattn {
inline namespace v1 {
namespace detail {

struct MergeCounts {
  std::int64_t added = 0;    ///< trials that the destination did not have
  std::int64_t damaged = 0;  ///< trials of the source left out because they fail their digest
};

/// Adds to `destination` the sessions, trials (by uuid) and read limits of `source`, then derives all winners anew. The
/// result does not depend on the order or number of merges. With `salvage`, unreadable parts of the source are skipped
/// instead of thrown.
MergeCounts merge(SQLite::Database& source, SQLite::Database& destination, bool salvage);

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
