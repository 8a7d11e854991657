#include "cache/paths.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "cache/environment_variable.hpp"
#include "cache/files.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr std::string_view kHint = "set LEANATTN_CACHE_DIR to an absolute path of a directory of your own";

struct Chosen {
  std::filesystem::path path;
  std::string source;  ///< who named it, for messages
};

Result<Chosen> choose(const std::optional<std::filesystem::path>& override_path) {
  Chosen chosen;
  if (override_path) {
    chosen = {*override_path, "the given cache directory"};
  } else if (std::string named = environment_variable("LEANATTN_CACHE_DIR"); !named.empty()) {
    chosen = {std::move(named), "LEANATTN_CACHE_DIR"};
  } else if (std::string xdg = environment_variable("XDG_CACHE_HOME"); !xdg.empty()) {
    chosen = {std::filesystem::path(xdg) / "leanattn", "XDG_CACHE_HOME"};
  } else if (std::string home = environment_variable("HOME"); !home.empty()) {
    chosen = {std::filesystem::path(home) / ".cache" / "leanattn", "HOME"};
  } else {
    return fail(ErrorCode::cache_unavailable, "there is no HOME, so no cache directory", std::string(kHint));
  }
  if (!chosen.path.is_absolute()) {
    return fail(ErrorCode::cache_unavailable,
                chosen.source + " gives '" + chosen.path.string() + "', which is not an absolute path",
                std::string(kHint));
  }
  return chosen;
}

tl::unexpected<Error> refuse(std::string message, std::string hint = std::string(kHint)) {
  return fail(ErrorCode::cache_unavailable, std::move(message), std::move(hint));
}

/// Of a system call that has just failed.
tl::unexpected<Error> refuse_call(const std::string& what) {
  return tl::unexpected(
      detail::cannot_open({ErrorCode::cache_unavailable, detail::with_errno(what, errno), std::string(kHint), {}}));
}

bool trusted(uid_t owner, Access access) {
  return access == Access::read ? may_be_read(owner) : owner == ::geteuid() || owner == 0;
}

/// Enters `name` below `parent`. Who wants to write makes it (0700) where it is missing. A symbolic link is followed
/// only when nobody but a trusted user can have planted it; one that appears in place of the directory just made is not
/// followed at all.
Result<FileDescriptor> enter(const FileDescriptor& parent, const std::string& name, const std::string& so_far,
                             Access access) {
  struct stat status {};
  const bool exists = ::fstatat(parent.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0;
  if (!exists && (errno != ENOENT || access == Access::read))
    return refuse_call("cannot look at the cache directory " + so_far);
  if (exists && S_ISLNK(status.st_mode) && !trusted(status.st_uid, access)) {
    return refuse("the cache directory leads through " + so_far + ", a symbolic link of another user (uid " +
                  std::to_string(status.st_uid) + ")");
  }
  if (!exists) {
    if (::mkdirat(parent.get(), name.c_str(), 0700) == 0) {
      // Its owner needs what the umask has taken away. Where that fails, so does what comes next.
      static_cast<void>(::fchmodat(parent.get(), name.c_str(), 0700, AT_SYMLINK_NOFOLLOW));
    } else if (errno != EEXIST) {
      return refuse_call("cannot create the cache directory " + so_far);
    }
  }
  const int follow = exists ? 0 : O_NOFOLLOW;
  FileDescriptor entered(::openat(parent.get(), name.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC | follow));
  if (!entered) {
    if (errno == ENOTDIR) return refuse(so_far + " is in the way of the cache directory: it is not a directory");
    return refuse_call("cannot enter the cache directory " + so_far);
  }
  return entered;
}

Result<void> check_directory(const FileDescriptor& directory, const std::string& path, Access access) {
  struct stat status {};
  if (::fstat(directory.get(), &status) != 0) {
    return refuse_call("cannot look at the cache directory " + path);
  }
  if (access == Access::write ? status.st_uid != ::geteuid() : !may_be_read(status.st_uid)) {
    return refuse("the cache directory " + path + " belongs to another user (uid " + std::to_string(status.st_uid) +
                  ", and we are uid " + std::to_string(::geteuid()) + ")");
  }
  if ((status.st_mode & 022) != 0) {
    char mode[32];
    std::snprintf(mode, sizeof mode, "%04o", static_cast<unsigned>(status.st_mode & 07777));
    return refuse("the cache directory " + path + " is writable by others (mode " + mode + ")", "chmod 700 " + path);
  }
  if (access == Access::write && ::faccessat(directory.get(), ".", W_OK | X_OK, AT_EACCESS) != 0)
    return refuse_call("the cache directory " + path + " is not writable");
  if (access == Access::read && ::faccessat(directory.get(), ".", R_OK | X_OK, AT_EACCESS) != 0) {
    return refuse(detail::with_errno("the cache directory " + path + " is not readable", errno),
                  "its owner can let others read it with chmod -R a+rX " + path);
  }
  return {};
}

/// The path free of symbolic links, so that changing one later does not lead elsewhere what was checked here.
std::filesystem::path resolved(const FileDescriptor& directory, const std::filesystem::path& fallback) {
  const std::string link = "/proc/self/fd/" + std::to_string(directory.get());
  std::error_code error;
  std::filesystem::path path = std::filesystem::read_symlink(link, error);
  if (!error && path.is_absolute() && std::filesystem::is_directory(path, error)) return path;
  path = std::filesystem::canonical(fallback, error);
  return error ? fallback : path;
}

/// Walks to an absolute path, and checks what is there.
Result<std::filesystem::path> enter_all(const std::filesystem::path& path, Access access) {
  FileDescriptor here(::open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!here) return refuse_call("cannot open /");
  std::filesystem::path so_far = "/";
  for (const auto& component : path.relative_path()) {
    if (component.empty() || component == ".") continue;
    so_far /= component;
    auto entered = enter(here, component.string(), so_far.string(), access);
    if (!entered) return tl::unexpected(entered.error());
    here = std::move(*entered);
  }
  if (auto safe = check_directory(here, so_far.string(), access); !safe) return tl::unexpected(safe.error());
  return resolved(here, so_far);
}

/// The file with this very code; empty where the system does not say.
std::filesystem::path own_file() {
  Dl_info info{};
  static const char anchor = 0;
  std::error_code error;
  std::filesystem::path self;
  if (::dladdr(&anchor, &info) != 0 && info.dli_fname != nullptr &&
      std::string_view(info.dli_fname).find('/') != std::string_view::npos) {
    self = std::filesystem::canonical(info.dli_fname, error);
  }
  if (self.empty() || error) self = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? std::filesystem::path() : self;
}

}  // namespace

Result<std::filesystem::path> cache_directory(const std::optional<std::filesystem::path>& override, Access access) {
  auto chosen = choose(override);
  if (!chosen) return tl::unexpected(chosen.error());
  if (chosen->path.native().find('\0') != std::string::npos) {
    return refuse(chosen->source + " gives a path with a zero byte in it");
  }
  auto writable = enter_all(chosen->path, Access::write);
  if (writable || access == Access::write) return writable;
  auto readable = enter_all(chosen->path, Access::read);
  std::error_code ignored;
  return readable || std::filesystem::exists(chosen->path, ignored) ? readable : writable;
}

Result<std::filesystem::path> readable_directory(const std::filesystem::path& directory) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(directory, error);
  if (error) return refuse("there is no directory " + directory.string() + " (" + error.message() + ")");
  return enter_all(absolute, Access::read);
}

bool may_be_read(uid_t owner) {
  struct stat status {};
  return owner == ::geteuid() || owner == 0 || (::stat(own_file().c_str(), &status) == 0 && owner == status.st_uid);
}

std::filesystem::path own_directory() { return own_file().parent_path(); }

bool is_network_filesystem(const std::filesystem::path& directory) {
  // statfs(2) f_type values of file systems whose locks or memory maps several hosts, or a user-space server, may not
  // keep.
  constexpr std::array<std::uint64_t, 16> kNetwork = {
      0x6969,      // NFS
      0x517B,      // SMB
      0xFF534D42,  // CIFS
      0xFE534D42,  // SMB2
      0x0BD00BD0,  // Lustre
      0x47504653,  // GPFS
      0x00C36400,  // CephFS
      0x65735546,  // FUSE
      0x5346414F,  // AFS (OpenAFS)
      0x6B414653,  // AFS (kernel)
      0x73757245,  // Coda
      0x7461636F,  // OCFS2
      0x01161970,  // GFS2
      0x19830326,  // BeeGFS
      0xAAD7AAEA,  // PanFS
      0x564C,      // NCP
  };
  struct statfs status {};
  if (::statfs(directory.c_str(), &status) != 0) return false;
  const auto type = static_cast<std::uint64_t>(status.f_type) & 0xffffffffU;
  return std::find(kNetwork.begin(), kNetwork.end(), type) != kNetwork.end();
}

}  // namespace v1
}  // namespace leanattn
