// paths.hpp -- where the cache lives and whether it can be trusted. Any thread; reads the environment once per call.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "leanattn/error.hpp"

namespace leanattn {
inline namespace v1 {

/// The user layer's directory: `override` (the command line's --db), else LEANATTN_CACHE_DIR, else
/// $XDG_CACHE_HOME/leanattn, else ~/.cache/leanattn. Created 0700; an existing one must be ours and not writable by
/// others. Errors: cache_unavailable (no HOME, relative path, wrong owner or mode, not a directory, not writable):
/// memory only.
Result<std::filesystem::path> cache_directory(const std::optional<std::filesystem::path>& override = std::nullopt);

/// The directory of the file with this very code: the shared library, the Python module, or the program that the
/// library is linked into. Empty where the system does not say.
std::filesystem::path own_directory();

/// True on a network file system (statfs: NFS, SMB, Lustre, GPFS, CephFS, FUSE ...), where WAL must not be used.
bool is_network_filesystem(const std::filesystem::path& directory);

}  // namespace v1
}  // namespace leanattn
