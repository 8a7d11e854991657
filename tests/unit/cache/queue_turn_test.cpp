#include "cache/queue_turn.hpp"

#include <fcntl.h>
#include <sched.h>

#include <array>
#include <csignal>
#include <cstring>

#include "cache_fixture.hpp"

namespace leanattn {
namespace {

using namespace cache_test;
using detail::QueueTurn;

constexpr int kHour = 3600 * 1000;

class QueueTurnTest : public ::testing::Test {
 protected:
  std::filesystem::path file() const { return directory_ / "queue"; }
  /// Tickets drawn so far.
  std::int64_t drawn() const {
    const auto bytes = read_bytes(file());
    std::int64_t last = 0;
    if (bytes.size() == sizeof last) std::memcpy(&last, bytes.data(), sizeof last);
    return last;
  }
  TemporaryDirectory directory_;
};

TEST_F(QueueTurnTest, IsHadByOneAtATime) {
  auto first = QueueTurn::wait(file(), 0);
  ASSERT_TRUE(first);
  const auto second = QueueTurn::wait(file(), 0);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::database_busy);
  first = tl::unexpected(Error{});
  EXPECT_TRUE(QueueTurn::wait(file(), 0));
}

TEST_F(QueueTurnTest, ComesInTheOrderOfArrival) {
  constexpr int kProcesses = 8;
  auto first = QueueTurn::wait(file(), 0);
  ASSERT_TRUE(first);
  std::array<int, 2> order{};
  ASSERT_EQ(::pipe(order.data()), 0);
  std::array<pid_t, kProcesses> children{};
  for (int i = 0; i < kProcesses; ++i) {
    children[static_cast<std::size_t>(i)] = start_process([&] {
      const auto turn = QueueTurn::wait(file(), kHour);
      const char name = static_cast<char>('a' + i);
      return turn && ::write(order[1], &name, 1) == 1 ? 0 : 1;
    });
    while (drawn() < i + 2) ::sched_yield();  // it has its ticket
  }
  first = tl::unexpected(Error{});
  std::string came(kProcesses, ' ');
  for (char& name : came) ASSERT_EQ(::read(order[0], &name, 1), 1);
  EXPECT_EQ(came, "abcdefgh");
  for (const pid_t child : children) EXPECT_EQ(wait_for(child), 0);
}

TEST_F(QueueTurnTest, IsNotKeptByTheDead) {
  EXPECT_EQ(wait_for(start_process([&] {
              const auto turn = QueueTurn::wait(file(), 0);
              return ::raise(SIGKILL);
            })),
            128 + SIGKILL);
  EXPECT_TRUE(QueueTurn::wait(file(), 0));
}

TEST_F(QueueTurnTest, SurvivesAFileThatWasChanged) {
  auto first = QueueTurn::wait(file(), 0);
  ASSERT_TRUE(first);
  for (const auto& bytes : {std::vector<char>{}, std::vector<char>(8, '\x7f'), std::vector<char>(3, '\1')}) {
    write_bytes(file(), bytes);
    EXPECT_FALSE(QueueTurn::wait(file(), 0));
  }
  first = tl::unexpected(Error{});
  EXPECT_TRUE(QueueTurn::wait(file(), 0));
}

}  // namespace
}  // namespace leanattn
