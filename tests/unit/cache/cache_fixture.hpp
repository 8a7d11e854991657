// cache_fixture.hpp -- environment variables, child processes and made-up tuning rows for the
// cache's tests.
#pragma once

#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "cache/layers.hpp"
#include "cache/tuning/tuning_db.hpp"
#include "tests/temporary_directory.hpp"
#include "tests/thoroughness.hpp"

namespace leanattn::cache_test {

/// Sets (or, with nullopt, unsets) a variable until the end of the scope.
class ScopedVariable {
 public:
  ScopedVariable(std::string name, const std::optional<std::string>& value) : name_(std::move(name)) {
    if (const char* old = std::getenv(name_.c_str())) old_ = old;
    set(value);
  }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;
  ~ScopedVariable() { set(old_); }

 private:
  void set(const std::optional<std::string>& value) {
    if (value) {
      ::setenv(name_.c_str(), value->c_str(), 1);
    } else {
      ::unsetenv(name_.c_str());
    }
  }
  std::string name_;
  std::optional<std::string> old_;
};

inline std::vector<char> read_bytes(const std::filesystem::path& file) {
  // At once: through an iterator, unoptimised and under sanitizers, it was most of what the damage tests spent.
  std::ifstream stream(file, std::ios::binary | std::ios::ate);
  std::vector<char> bytes(stream ? static_cast<std::size_t>(stream.tellg()) : 0);
  stream.seekg(0);
  stream.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return bytes;
}

inline void write_bytes(const std::filesystem::path& file, const std::vector<char>& bytes) {
  std::ofstream stream(file, std::ios::binary | std::ios::trunc);
  stream.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  stream.close();
  ::chmod(file.c_str(), 0600);
}

/// Files of a directory whose names begin with `prefix`.
inline std::vector<std::filesystem::path> files_with_prefix(const std::filesystem::path& directory,
                                                            const std::string& prefix) {
  std::vector<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.path().filename().string().starts_with(prefix)) found.push_back(entry.path());
  }
  return found;
}

/// How many descriptors of this process lead to `file`.
inline int open_descriptors(const std::filesystem::path& file) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    count += std::filesystem::read_symlink(entry.path(), error) == file;
  }
  return count;
}

/// Runs SQL on a file behind the cache's back; the connection, and any transaction that was begun, ends with the
/// object.
class RawDatabase {
 public:
  explicit RawDatabase(const std::filesystem::path& file) {
    EXPECT_EQ(sqlite3_open(file.c_str(), &handle_), SQLITE_OK) << file;
    ::chmod(file.c_str(), 0600);
  }
  RawDatabase(const RawDatabase&) = delete;
  RawDatabase& operator=(const RawDatabase&) = delete;
  ~RawDatabase() { sqlite3_close(handle_); }
  void exec(const std::string& sql) {
    char* message = nullptr;
    EXPECT_EQ(sqlite3_exec(handle_, sql.c_str(), nullptr, nullptr, &message), SQLITE_OK)
        << sql << ": " << (message ? message : "");
    sqlite3_free(message);
  }
  std::string ask(const std::string& sql) {
    sqlite3_stmt* statement = nullptr;
    std::string answer;
    EXPECT_EQ(sqlite3_prepare_v2(handle_, sql.c_str(), -1, &statement, nullptr), SQLITE_OK)
        << sql << ": " << sqlite3_errmsg(handle_);
    if (sqlite3_step(statement) == SQLITE_ROW) {
      const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(statement, 0));
      answer = text == nullptr ? "" : text;
    }
    sqlite3_finalize(statement);
    return answer;
  }

 private:
  sqlite3* handle_ = nullptr;
};

/// Makes noise of an index of a tuning.db that nothing has open: all of its trials can still be read.
inline void spoil_an_index(const std::filesystem::path& file) {
  constexpr std::int64_t kPage = 4096;
  const std::int64_t root =
      std::stoll(RawDatabase(file).ask("SELECT rootpage FROM sqlite_schema WHERE name = 'trials_by_key'"));
  auto bytes = read_bytes(file);
  std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>((root - 1) * kPage), kPage, '\xEE');
  write_bytes(file, bytes);
}

/// Forks; the child's exit status is `body`'s result. Returns the child's pid.
template <class Body>
pid_t start_process(Body&& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    int status = 99;
    try {
      status = body();
    } catch (...) {
    }
    ::_exit(status);
  }
  return child;
}

/// The exit status, or 128 + signal.
inline int wait_for(pid_t child) {
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/// Runs `body` in a child that is not root, since permissions do not hold root back. Give it directories with
/// give_to_unprivileged.
template <class Body>
int run_unprivileged(Body&& body) {
  return wait_for(start_process([&]() -> int {
    if (::geteuid() == 0 && (::setgid(65534) != 0 || ::setuid(65534) != 0)) return 98;
    return body();
  }));
}
inline void give_to_unprivileged(const std::filesystem::path& path) {
  if (::geteuid() == 0) {
    ASSERT_EQ(::chown(path.c_str(), 65534, 65534), 0);
  }
}

/// From LEANATTN_TEST_SEED, else a new one; printed either way.
inline std::uint64_t random_seed() {
  const char* text = std::getenv("LEANATTN_TEST_SEED");
  const std::uint64_t seed = text != nullptr ? std::strtoull(text, nullptr, 10) : std::random_device{}();
  std::printf("LEANATTN_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

inline DeviceModel h200() {
  return {.name = "NVIDIA H200",
          .arch = "sm_90a",
          .sm_count = 132,
          .l2_bytes = 62914560,
          .memory_bytes = 150121545728,
          .mig_profile = ""};
}

inline Environment environment(const std::string& revision = "r1") {
  return {.driver_version = 13000,
          .driver_release = "580.159.04",
          .nvrtc_version = "13.0",
          .clock_khz = 1980000,
          .memory_clock_khz = 3201000,
          .power_limit_mw = 700000,
          .ecc = true,
          .library_revision = revision};
}

inline Trial trial(const std::string& config, double median_us, double half_width_us = 0.0) {
  Trial trial;
  trial.problem = R"({"head_dim":128,"kv_heads":8,"query_heads":32})";
  trial.shape = R"({"batch":1,"longest":8192,"total":8192})";
  trial.policy = "cold";
  trial.config = config;
  trial.samples = 50;
  trial.median_us = median_us;
  trial.mad_us = half_width_us / 2;
  trial.low_us = median_us - half_width_us;
  trial.high_us = median_us + half_width_us;
  trial.samples_json = "[1.0,2.0,3.0]";
  trial.registers = 128;
  trial.compile_ms = 81.5;
  trial.bytes = 33554432;
  return trial;
}

/// Opens for writing and expects neither error nor warning.
inline std::unique_ptr<TuningDb> open_quietly(const std::filesystem::path& directory) {
  std::string warning;
  auto db = TuningDb::open(directory, OpenMode::read_write, &warning);
  EXPECT_TRUE(db) << (db ? "" : db.error().message);
  EXPECT_EQ(warning, "");
  return db ? std::move(*db) : nullptr;
}

}  // namespace leanattn::cache_test
