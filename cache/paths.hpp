// paths.hpp -- where the cache lives and whether it can be trusted. Any thread; reads the environment once per call.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <optional>
#include <string>

#include "leanattn/error.hpp"

namespace leanattn {
inline namespace v1 {

/// What is to be done with a directory or file of the cache.
enum class Access { write, read };

/// The user layer's directory: `override` (the command line's --db), else LEANATTN_CACHE_DIR, else
/// $XDG_CACHE_HOME/leanattn, else ~/.cache/leanattn. Created 0700; an existing one must be ours and not writable by
/// others. Where it cannot be written, who only wants to read also gets one whose medium is read-only, or that belongs
/// to one who may_be_read. Errors: cache_unavailable (no HOME, relative path, wrong owner or mode, not a directory, not
/// writable): memory only.
Result<std::filesystem::path> cache_directory(const std::optional<std::filesystem::path>& override = std::nullopt,
                                              Access access = Access::write);

/// An existing directory in which nobody but us and those who may_be_read can change anything, without symbolic links
/// in its path. Nothing is created. Errors: cache_unavailable.
Result<std::filesystem::path> readable_directory(const std::filesystem::path& directory);

/// Whether code of this user runs here already, so that files of theirs may as well: we, root, and who owns the file
/// with this library.
bool may_be_read(uid_t owner);

/// The directory of the file with this very code: the shared library, the Python module, or the program that the
/// library is linked into. Empty where the system does not say.
std::filesystem::path own_directory();

/// True on a network file system (statfs: NFS, SMB, Lustre, GPFS, CephFS, FUSE ...), where WAL must not be used.
bool is_network_filesystem(const std::filesystem::path& directory);

}  // namespace v1
}  // namespace leanattn
