// merge.hpp -- the union of two tuning databases. Internal to cache/. Throws SQLite::Exception; the caller owns
// the transaction of the destination.
#pragma once

#include <SQLiteCpp/SQLiteCpp.h>

#include <cstdint>

namespace leanattn {
inline namespace v1 {
namespace detail {

struct MergeCounts {
  std::int64_t added = 0;    ///< trials that the destination did not have
  std::int64_t damaged = 0;  ///< trials of the source left out because they fail their digest or hold impossible values
  std::int64_t damaged_limits = 0;  ///< likewise read limits
};

/// What a merge does about parts of the source that cannot be read.
enum class Unreadable {
  is_an_error,    ///< throws
  skip_damage,    ///< leaves out what is damaged; throws where memory, a lock or the disk was at fault
  skip_anything,  ///< leaves it out, whatever the reason
};

/// Adds to `destination` the sessions, trials (by uuid) and read limits of `source`, then derives all winners anew. The
/// result does not depend on the order or number of merges.
MergeCounts merge(SQLite::Database& source, SQLite::Database& destination, Unreadable unreadable);

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
