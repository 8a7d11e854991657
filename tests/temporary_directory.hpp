// temporary_directory.hpp -- TemporaryDirectory: a directory that is removed together with the object.
#pragma once

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <stdexcept>
#include <string>
#include <system_error>

namespace leanattn {

/// Where tests put their files. It is in memory if possible, because tests commit thousands of times, and every commit
/// waits for the disk.
inline std::filesystem::path scratch_root() {
  return ::access("/dev/shm", W_OK | X_OK) == 0 ? std::filesystem::path("/dev/shm")
                                                : std::filesystem::temp_directory_path();
}

/// A new directory of mode 0700.
class TemporaryDirectory {
 public:
  explicit TemporaryDirectory(const std::filesystem::path& root = scratch_root()) {
    std::string pattern = (root / "leanattn-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = std::filesystem::canonical(pattern);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory() {
    ::chmod(path_.c_str(), 0700);
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

}  // namespace leanattn
