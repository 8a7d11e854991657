#include "cache/sqlite/errors.hpp"

#include <SQLiteCpp/Exception.h>
#include <sqlite3.h>

#include <new>
#include <string_view>

#include "cache/files.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {

bool proves_damage(int sqlite_result) {
  const int code = sqlite_result & 0xff;
  return code == SQLITE_CORRUPT || code == SQLITE_NOTADB || code == SQLITE_TOOBIG;
}

Error damaged(const std::string& file, const std::string& why) {
  return Error{ErrorCode::database_corrupt, file + " is damaged: " + why, how_to_mend(file), {}};
}

std::string how_to_mend(const std::filesystem::path& file) {
  if (file.filename() == "cubin.db") return "remove it; kernels are compiled again";
  if (file.filename() != "tuning.db") return "take a good copy of it";
  const std::string here = " --db " + file.parent_path().string();
  return "leanattn db check" + here + " tells more, leanattn db rebuild" + here +
         " keeps what can still be read, leanattn db import" + here + " FILE takes a good copy";
}

Error to_error(const SQLite::Exception& exception, const std::string& file) {
  const std::string detail = file + ": " + exception.what();
  if (proves_damage(exception.getErrorCode())) return damaged(file, exception.what());
  switch (exception.getErrorCode() & 0xff) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return Error{ErrorCode::database_busy,
                   file + " is locked by another process for too long",
                   "try again when it has finished",
                   {}};
    case SQLITE_FULL:
      return Error{ErrorCode::cache_unavailable,
                   file + " cannot grow: the disk is full",
                   "free some space, or set LEANATTN_CACHE_DIR",
                   {}};
    case SQLITE_READONLY:
    case SQLITE_CANTOPEN:
    case SQLITE_PERM:
    case SQLITE_AUTH:
    case SQLITE_NOLFS:
    case SQLITE_PROTOCOL:
    case SQLITE_IOERR:
      if (exception.getExtendedErrorCode() == SQLITE_IOERR_NOMEM)
        return Error{ErrorCode::out_of_memory, file + ": out of memory", {}, {}};
      return cannot_open(
          {ErrorCode::cache_unavailable, detail, "set LEANATTN_CACHE_DIR to a writable directory on a local disk", {}});
    case SQLITE_NOMEM: return Error{ErrorCode::out_of_memory, file + ": out of memory", {}, {}};
    default:
      // The one thing that SQLite says with its general error code, and only of a file's header.
      if (std::string_view(exception.what()).find("unsupported file format") != std::string_view::npos)
        return damaged(file, exception.what());
      return Error{ErrorCode::internal, detail, {}, {}};
  }
}

Error current_exception_error(const std::string& file) {
  try {
    throw;
  } catch (const SQLite::Exception& exception) {
    return to_error(exception, file);
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, file + ": out of memory", {}, {}};
  } catch (const std::exception& exception) {
    return Error{ErrorCode::internal, file + ": " + exception.what(), {}, {}};
  }
}

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
