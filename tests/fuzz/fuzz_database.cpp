// fuzz_database.cpp -- a tuning.db that anyone may have written: whatever its bytes, opening, reading, importing and
// repairing it end with results or errors, no winner is served that was not written, and what a repair leaves is sound.
// An input is a whole database file, or else changes to a sound one: four bytes of place and length, then the bytes.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "cache/layers.hpp"
#include "cache/sqlite/database.hpp"
#include "cache/tuning/open.hpp"
#include "tests/fuzz/fuzz.hpp"
#include "tests/temporary_directory.hpp"

namespace leanattn {
namespace {

constexpr int kTrials = 8;

DeviceModel device() {
  return {.name = "NVIDIA H200",
          .arch = "sm_90a",
          .sm_count = 132,
          .l2_bytes = 62914560,
          .memory_bytes = 150121545728,
          .mig_profile = ""};
}

/// In memory where that is possible, so that the disk does not decide how many inputs a second brings.
const std::filesystem::path& folder() {
  static const TemporaryDirectory made;
  return made.path();
}

std::string config_of(double median_us) {
  return "{\"tile\":" + std::to_string(static_cast<int>(median_us) - 10) + "}";
}

/// A sound database of kTrials trials.
const std::vector<char>& sound() {
  static const std::vector<char> bytes = [] {
    const std::filesystem::path directory = folder() / "sound";
    {
      auto db = TuningDb::open(directory, OpenMode::read_write, nullptr);
      fuzz::expect(db.has_value(), "a new database can be made");
      const auto session = (*db)->begin_session(device(), Environment{.driver_version = 13000}, "fuzz").value();
      for (int i = 0; i < kTrials; ++i) {
        Trial trial;
        trial.problem = "{\"heads\":8}", trial.shape = "{\"batch\":" + std::to_string(i / 2) + "}";
        trial.policy = i % 2 == 0 ? "cold" : "warm", trial.config = config_of(10 + i);
        trial.median_us = trial.low_us = trial.high_us = 10 + i, trial.bytes = 1 << 20;
        fuzz::expect((*db)->add_trial(session, trial).has_value(), "a trial can be added");
      }
      fuzz::expect((*db)->set_read_limit(device(), "cold", 1 << 20, 5).has_value(), "a read limit can be set");
      fuzz::expect((*db)->rebuild_winners().has_value(), "winners can be derived");
    }
    std::ifstream stream(directory / "tuning.db", std::ios::binary);
    return std::vector<char>(std::istreambuf_iterator<char>(stream), {});
  }();
  return bytes;
}

std::vector<char> file_of(const std::uint8_t* data, std::size_t size) {
  constexpr std::size_t kHead = 4;
  if (size >= 16 && std::memcmp(data, "SQLite format 3", 16) == 0) return {data, data + size};
  std::vector<char> bytes = sound();
  for (std::size_t at = 0; at + kHead < size;) {
    const std::size_t place = (data[at] | data[at + 1] << 8 | data[at + 2] << 16) % bytes.size();
    const std::size_t length = std::min<std::size_t>({data[at + 3] % 16U + 1, size - at - kHead, bytes.size() - place});
    std::memcpy(bytes.data() + place, data + at + kHead, length);
    at += kHead + length;
  }
  return bytes;
}

void expect_written(const std::vector<Winner>& winners) {
  for (const Winner& winner : winners)
    fuzz::expect(winner.config == config_of(winner.median_us), "a winner is one that was written");
}

void expect_known(ErrorCode code) {
  fuzz::expect(code == ErrorCode::database_corrupt || code == ErrorCode::database_newer, "the error names the file");
}

}  // namespace
}  // namespace leanattn

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace leanattn;
  const std::vector<char> bytes = file_of(data, size);
  const std::filesystem::path directory = folder() / "tried";
  std::filesystem::remove_all(directory);
  std::filesystem::create_directory(directory);
  ::chmod(directory.c_str(), 0700);
  const std::filesystem::path file = directory / "tuning.db";
  std::ofstream(file, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  ::chmod(file.c_str(), 0600);

  for (const LayeredWinners::Entry& entry : load_layered_winners(device(), directory).entries)
    expect_written({entry.winner});
  const detail::OpenPolicy policy{.busy_timeout_ms = 0};
  if (auto reader = detail::open_tuning_file(file, policy)) {
    static_cast<void>((*reader)->check());
    static_cast<void>((*reader)->stats());
    static_cast<void>((*reader)->read_limits(device(), "cold"));
    static_cast<void>((*reader)->trials(device(), "", "", ""));
  } else {
    expect_known(reader.error().code);
  }
  auto memory = TuningDb::open(std::nullopt, OpenMode::read_write, nullptr).value();
  if (const auto imported = memory->import_from(file)) {
    expect_written(memory->winners(device()).value());
    fuzz::expect(memory->check()->empty(), "what was imported is sound");
  }
  auto writer = detail::open_tuning_db(directory, OpenMode::read_write, policy, nullptr);
  if (!writer) {
    expect_known(writer.error().code);
    return 0;
  }
  expect_written((*writer)->winners(device()).value_or(std::vector<Winner>{}));
  return 0;
}
