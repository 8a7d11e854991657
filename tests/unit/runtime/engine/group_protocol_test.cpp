// group_protocol_test.cpp -- a model of how ranks exchange columns (docs/groups.md), tried in every order in which
// their stores can arrive: nothing is overwritten before it was read, nobody waits for ever, and each part of the
// protocol is needed for that.
#include <gtest/gtest.h>

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <string>
#include <type_traits>
#include <unordered_set>
#include <vector>

#include "tests/thoroughness.hpp"

namespace leanattn {
namespace {

/// The protocol, or one that lacks a part of it.
struct Protocol {
  int ranks = 2;
  int launches = 3;
  int parities = 2;
  bool signals = true;  ///< whether each launch ends only once every other rank has begun it
  int owners = 2;       ///< ranks 0 .. owners - 1 write results, and get a column from every rank
};

/// What a store does when it arrives.
struct Store {
  std::uint8_t at = 0;     ///< rank whose memory it is
  std::uint8_t place = 0;  ///< of its memory
  std::uint8_t value = 0;  ///< 0: zeros put back
  auto operator<=>(const Store&) const = default;
};

/// A rank runs its launches one after the other. A launch sends its signals and columns, then reads the columns of each
/// rank and puts zeros back, then waits for the signals. Stores arrive in any order until the launch ends: all of a
/// launch's have arrived when the next one begins, by the order of the stream.
class Model {
 public:
  explicit Model(Protocol protocol) : p_(protocol) { assert(p_.ranks <= kMostRanks && places() <= kMostPlaces); }

  /// Tries every order. Returns what went wrong first, or nothing. `states`: how many were met.
  std::string explore(std::size_t& states) {
    std::vector<State> open(1);
    std::unordered_set<std::string> met{key(open.front())};
    while (!open.empty()) {
      const State state = open.back();
      open.pop_back();
      bool stuck = true, done = true;
      for (int rank = 0; rank < p_.ranks; ++rank) {
        const Rank& r = state.ranks[rank];
        done &= r.launch == p_.launches;
        for (int i = 0; i < r.stores; ++i) {
          if (i > 0 && r.pending[i] == r.pending[i - 1]) continue;
          stuck = false;
          State next = state;
          if (const std::string wrong = arrive(next, rank, i); !wrong.empty()) return wrong;
          if (met.insert(key(next)).second) open.push_back(next);
        }
        State next = state;
        std::string wrong;
        if (!step(next, rank, wrong)) continue;
        if (!wrong.empty()) return wrong;
        stuck = false;
        if (met.insert(key(next)).second) open.push_back(next);
      }
      if (stuck && !done) return "ranks wait for each other for ever";
    }
    states = met.size();
    return {};
  }

 private:
  static constexpr int kMostRanks = 3, kMostPlaces = 2 * 2 * kMostRanks, kMostPending = 8;

  // Bytes without gaps, so that a state is its own key in the set of those that were met: each of them takes the
  // sanitizers a while.
  struct Rank {
    std::uint8_t launch = 0, at = 0;   // which launch it is in, and which of its steps comes next
    std::uint8_t stores = 0;           // of `pending`
    Store pending[kMostPending] = {};  // stores that have not arrived, sorted; zeros behind them
  };
  struct State {
    Rank ranks[kMostRanks];
    std::uint8_t memory[kMostRanks * kMostPlaces] = {};  // [rank, place]
  };
  static_assert(std::has_unique_object_representations_v<State>);

  // Places of a rank's memory: slots [parity, from], then signals likewise.
  int places() const { return 2 * p_.parities * p_.ranks; }
  std::uint8_t slot(int launch, int from) const {
    return static_cast<std::uint8_t>(launch % p_.parities * p_.ranks + from);
  }
  std::uint8_t signal(int launch, int from) const {
    return static_cast<std::uint8_t>(p_.parities * p_.ranks + launch % p_.parities * p_.ranks + from);
  }
  std::uint8_t& memory(State& state, int rank, int place) const { return state.memory[rank * kMostPlaces + place]; }
  static std::string key(const State& state) { return {reinterpret_cast<const char*>(&state), sizeof(State)}; }
  static void send(Rank& rank, Store store) {
    assert(rank.stores < kMostPending);
    Store* const end = rank.pending + rank.stores++;
    Store* const at = std::upper_bound(rank.pending, end, store);
    std::copy_backward(at, end, end + 1);
    *at = store;
  }

  /// Store number i of the rank arrives. Returns what it destroys, if anything.
  std::string arrive(State& state, int rank, int i) const {
    Rank& r = state.ranks[rank];
    const Store store = r.pending[i];
    std::copy(r.pending + i + 1, r.pending + r.stores, r.pending + i);
    r.pending[--r.stores] = {};
    std::uint8_t& there = memory(state, store.at, store.place);
    const bool is_signal = store.place >= p_.parities * p_.ranks;
    if (!is_signal && store.value != 0 && there != 0) return "a column overwrites one that nobody has read";
    if (!is_signal && store.value == 0 && there != r.launch + 1) return "zeros overwrite a column of another launch";
    there = store.value;
    return {};
  }

  /// The rank's next step. False: it waits, or has ended. wrong: what it found that must not be.
  bool step(State& state, int rank, std::string& wrong) const {
    Rank& r = state.ranks[rank];
    if (r.launch == p_.launches) return false;
    const auto tag = static_cast<std::uint8_t>(r.launch + 1);
    const bool owns = rank < p_.owners;
    if (r.at == 0) {
      for (int to = 0; to < p_.ranks; ++to) {
        const auto place = static_cast<std::uint8_t>(to);
        if (p_.signals && to != rank) send(r, {place, signal(r.launch, rank), tag});
        if (to < p_.owners) send(r, {place, slot(r.launch, rank), tag});
      }
      r.at = 1;
      return true;
    }
    const int from = r.at - 1;  // of the column that is read next, then of the signal
    if (from < p_.ranks) {
      if (owns) {
        const std::uint8_t found = memory(state, rank, slot(r.launch, from));
        if (found == 0) return false;
        if (found != tag) wrong = "a column of another launch was read";
        send(r, {static_cast<std::uint8_t>(rank), slot(r.launch, from), 0});
      }
      ++r.at;
      return true;
    }
    const int signaller = from - p_.ranks;
    if (signaller < p_.ranks) {
      if (p_.signals && signaller != rank && memory(state, rank, signal(r.launch, signaller)) != tag) return false;
      ++r.at;
      return true;
    }
    if (r.stores > 0) return false;
    ++r.launch;
    r.at = 0;
    return true;
  }

  Protocol p_;
};

std::string explore(const Protocol& protocol, std::size_t* states = nullptr) {
  std::size_t met = 0;
  std::string wrong = Model(protocol).explore(met);
  if (states != nullptr) *states = met;
  return wrong;
}

TEST(GroupProtocol, NothingIsLostInAnyOrder) {
  std::size_t states = 0;
  EXPECT_EQ(explore({.launches = tries(3, 4)}, &states), "");
  EXPECT_GT(states, 1000u) << "orders differ";
  EXPECT_EQ(explore({.ranks = 3, .launches = tries(2, 3), .owners = 1}), "");
}

TEST(GroupProtocol, OneParityIsNotEnough) {
  EXPECT_EQ(explore({.parities = 1}), "a column overwrites one that nobody has read");
}

TEST(GroupProtocol, SignalsAreNeededWhereARankWritesNothing) {
  EXPECT_EQ(explore({.ranks = 2, .launches = 3, .signals = false, .owners = 1}),
            "a column overwrites one that nobody has read");
  EXPECT_EQ(explore({.ranks = 2, .launches = 3, .signals = true, .owners = 1}), "");
}

}  // namespace
}  // namespace leanattn
