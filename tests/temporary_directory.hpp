// temporary_directory.hpp -- a directory that goes away with the object: for tests and benchmarks.
#pragma once

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <stdexcept>
#include <string>
#include <system_error>

namespace leanattn {

/// Where tests put their files: in memory if possible, since every commit waits for the disk and tests commit thousands
/// of times.
inline std::filesystem::path scratch_root() {
  return ::access("/dev/shm", W_OK | X_OK) == 0 ? std::filesystem::path("/dev/shm")
                                                : std::filesystem::temp_directory_path();
}

/// A fresh directory (0700), removed at the end.
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
