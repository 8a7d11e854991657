// errors.hpp -- what SQLite reports, as our errors; and which reports prove that a file is damaged. Internal to cache/.
// Any thread; no shared state.
#pragma once

#include <filesystem>
#include <string>

#include "leanattn/error.hpp"

namespace SQLite {
class Exception;
}  // namespace SQLite

namespace leanattn {
inline namespace v1 {
namespace detail {

/// Whether a result code of SQLite says that the file itself is wrong: SQLITE_CORRUPT, SQLITE_NOTADB, and SQLITE_TOOBIG
/// (a value beyond what our connections accept, see open_policy). A lack of memory, a lock, an interruption or a disk
/// that fails to read says nothing about the file.
bool proves_damage(int sqlite_result);

/// SQLite's error as ours: database_busy, database_corrupt (only for what proves damage), cache_unavailable (full,
/// read-only, I/O), out_of_memory, internal.
Error to_error(const SQLite::Exception& exception, const std::string& file);

/// The exception in flight as an Error about `file`; only inside a catch block.
Error current_exception_error(const std::string& file);

/// database_corrupt: "FILE is damaged: WHY".
Error damaged(const std::string& file, const std::string& why);

/// What to do about damage in a database, which need not be the user's own: with commands that name its directory.
std::string how_to_mend(const std::filesystem::path& file);

/// Runs `body`, which returns a Result; exceptions of SQLite and of allocation become an Error about `file`.
template <class Body>
auto guarded(const std::string& file, Body&& body) -> decltype(body()) {
  try {
    return body();
  } catch (...) {
    return tl::unexpected(current_exception_error(file));
  }
}

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
