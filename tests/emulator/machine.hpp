// machine.hpp -- what executes programs: launches, their CTAs and warps, and copies on their way. One thread at a time.
//
// A warp executes an instruction for all lanes that stand at it. Lanes at the same place are a fragment, and of a
// warp's fragments that can go on the one at the lowest place runs, so that lanes meet again without any analysis. A
// warp runs until it waits or its turn ends; the next one is drawn. Time passes by one nanosecond an instruction, and
// jumps to the next event where all warps wait.
#pragma once

#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <queue>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/emulator/program.hpp"

namespace emulator {

// Where generic addresses of shared and local memory lie; other addresses are the host's.
constexpr std::uint64_t kSharedWindow = std::uint64_t{1} << 60;
constexpr std::uint64_t kLocalWindow = std::uint64_t{2} << 60;
// The rank of another CTA of the cluster, plus one, in an address of shared memory.
constexpr int kRankShift = 24;

/// What a kernel does wrong.
struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Memory that a kernel may touch.
struct Range {
  std::uint64_t begin = 0, bytes = 0;
  bool writable = false;
};

/// Bytes that are aligned as the driver aligns what kernels are given.
class AlignedBytes {
 public:
  void assign(std::int64_t bytes, unsigned char value) {
    bytes_ = static_cast<std::size_t>(bytes);
    lines_.resize((bytes_ + sizeof(Line) - 1) / sizeof(Line));
    std::memset(lines_.data(), value, lines_.size() * sizeof(Line));
  }
  unsigned char* data() { return reinterpret_cast<unsigned char*>(lines_.data()); }
  const unsigned char* data() const { return reinterpret_cast<const unsigned char*>(lines_.data()); }
  std::size_t size() const { return bytes_; }

 private:
  struct alignas(256) Line {
    unsigned char bytes[256];
  };
  std::vector<Line> lines_;
  std::size_t bytes_ = 0;
};

struct Dim3 {
  std::uint32_t x = 1, y = 1, z = 1;
};

struct Cta;
struct Machine;

struct LaunchConfig {
  std::shared_ptr<const Program> program;
  const Kernel* kernel = nullptr;
  Dim3 grid, block;
  std::int64_t dynamic_shared_bytes = 0;
  int most_ctas = 1;    ///< that run at once
  bool native = false;  ///< what the host executes instead (native_checks.hpp)
  AlignedBytes parameters;
};

struct Launch {
  LaunchConfig config;
  std::vector<Range> recent;  ///< by instruction: what it touched last
  std::int64_t next_cta = 0, ctas = 0, live = 0;
};

/// Why a fragment does not go on.
enum class Wait : std::uint8_t { none, for_lanes, for_barrier, for_mbarrier, for_time, for_cluster };

/// Lanes at the same instruction.
struct Fragment {
  std::uint32_t pc = 0, lanes = 0;
  Wait wait = Wait::none;
  std::uint32_t needed = 0;      ///< lanes, for_lanes
  bool anywhere = false;         ///< these lanes may wait at other instructions
  std::uint32_t barrier = 0;     ///< number, or address in shared memory with the parity as bit 31
  std::uint64_t generation = 0;  ///< of the barrier
  std::uint64_t until = 0;       ///< the time
};

/// A copy of cp.async that has not landed.
struct CopyAsync {
  unsigned char* to;
  const unsigned char* from;
  std::uint32_t bytes, zeros;
  int lane;
  std::uint64_t group;  ///< of the lane
};

struct MatrixQueue;  // matrix.hpp

struct Warp {
  Cta* cta = nullptr;
  Launch* launch = nullptr;
  Machine* machine = nullptr;
  int index = 0;
  AlignedBytes register_file, local;
  unsigned char* registers = nullptr;
  const unsigned char* constants = nullptr;

  // The fragment that runs.
  std::uint32_t exec = 0;  ///< its lanes for which the instruction's guard holds
  std::uint32_t pc = 0, next = 0, lanes = 0;
  std::uint32_t limit = 0;  ///< the place at which other fragments are looked at
  bool stops = false;       ///< what has just been executed ends the run of the fragment

  std::vector<Fragment> fragments;  ///< the others
  std::uint32_t live = 0;           ///< lanes that have not ended
  std::vector<CopyAsync> copies;
  std::array<std::uint64_t, kLanes> copy_group{};
  std::shared_ptr<MatrixQueue> matrix;
  std::uint64_t cluster_generation = 0;  ///< of the barrier at which the warp has arrived

  template <class T>
  T* slot(Operand operand) {
    return reinterpret_cast<T*>(operand >= 0 ? registers + operand : const_cast<unsigned char*>(constants) + ~operand);
  }
  /// The 32 values of operand k; the word of a predicate.
  template <class T>
  T* at(const Instruction& in, int k) {
    return slot<T>(in.operands[k]);
  }
  /// Sets operand k of the lanes that execute.
  template <class T>
  void set(const Instruction& in, int k, const T* values) {
    T* to = at<T>(in, k);
    if (exec == kAllLanes) {
      std::memcpy(to, values, sizeof(T) * kLanes);
    } else {
      for (int lane = 0; lane < kLanes; ++lane) to[lane] = (exec >> lane & 1) != 0 ? values[lane] : to[lane];
    }
  }
  void set_predicate(const Instruction& in, int k, std::uint32_t values) {
    std::uint32_t* to = at<std::uint32_t>(in, k);
    *to = (*to & ~exec) | (values & exec);
  }
  template <class F>
  void for_each_lane(F f) const {
    for (std::uint32_t left = exec; left != 0; left &= left - 1) f(__builtin_ctz(left));
  }

  /// Host memory behind an address, of which so many bytes are used.
  unsigned char* global(const Instruction& in, std::uint64_t address, std::uint64_t bytes, bool writes) const;
  unsigned char* shared(const Instruction& in, std::uint64_t address, std::uint64_t bytes) const;
  /// The same without a look at the alignment; null where it would be a fault.
  unsigned char* global_if(const Instruction& in, std::uint64_t address, std::uint64_t bytes, bool writes) const;
  unsigned char* shared_if(std::uint64_t address, std::uint64_t bytes) const;
  unsigned char* local_memory(const Instruction& in, std::uint64_t address, std::uint64_t bytes, int lane);

  /// Whether all of `members` that live execute this instruction. If not, the fragment waits for them, and comes back.
  bool together(std::uint32_t members, bool anywhere = false);
  /// The lanes that execute have ended.
  void exit();
  /// The lanes that execute go on at a place, or each at its own.
  void jump(std::uint32_t place);
  void jump(const std::uint32_t* places);
  /// The lanes that execute wait, and then execute the instruction again (`again`) or what follows it. What they wait
  /// for stands in the fragment that is returned.
  Fragment& wait(Wait what, bool again);
  /// Executes up to so many instructions.
  void run(std::uint64_t turns);
  bool can_run() const;
  /// The earliest time at which a fragment goes on by itself.
  std::uint64_t wakes_at() const;

  [[noreturn]] void fault(const Instruction& in, const std::string& what) const;

 private:
  bool is_over(const Fragment& f) const;
  bool choose();
};

/// A barrier of bar.sync. expected: threads; 0 for all that live.
struct NamedBarrier {
  std::uint32_t arrived = 0, expected = 0;
  std::uint64_t generation = 0;
};

struct Cluster {
  Launch* launch = nullptr;
  std::vector<std::unique_ptr<Cta>> ctas;
  std::uint32_t arrived = 0;
  std::uint64_t generation = 0;
};

struct Cta {
  Launch* launch = nullptr;
  Machine* machine = nullptr;
  Dim3 position;
  std::uint32_t number = 0, rank = 0;  ///< in the grid and in the cluster
  Cluster* cluster = nullptr;
  std::vector<unsigned char> shared;
  std::vector<Warp> warps;
  std::array<NamedBarrier, 16> barriers;
  std::uint32_t live_warps = 0;
  std::int64_t copies_on_their_way = 0;

  void complete_barriers();  ///< whose last missing warps have arrived or ended
};

struct Event {
  std::uint64_t time, order;
  std::function<void()> happen;
  bool operator>(const Event& o) const { return time != o.time ? time > o.time : order > o.order; }
};

struct Machine {
  std::vector<Range> memory;  ///< sorted, what kernels may touch
  std::mt19937_64 random;
  std::uint64_t clock = 0;        ///< ns
  std::uint64_t executed = 0;     ///< instructions of warps
  std::uint64_t progress_at = 0;  ///< of `executed`, when something last changed for others

  /// Runs launches, beside each other, to their ends. Throws Fault.
  void run(std::vector<LaunchConfig> configs);

  void at(std::uint64_t time, std::function<void()> happen) { events_.push({time, ++event_order_, std::move(happen)}); }
  /// The buffer that starts at an address, or is the next one below.
  Range range_near(std::uint64_t address) const;
  void progress() { progress_at = executed; }
  /// A number below `below`, small ones more often.
  std::uint64_t draw(std::uint64_t below);

 private:
  void start_ctas(Launch& launch);
  void retire(Cluster& cluster);
  bool step();
  std::string where_all_wait() const;

  std::vector<std::unique_ptr<Launch>> launches_;
  std::vector<std::unique_ptr<Cluster>> clusters_;
  std::vector<Warp*> warps_;  // that live
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::uint64_t event_order_ = 0;
};

/// An mbarrier, as the 8 bytes of shared memory hold it. What is not allowed throws a Fault.
class MBarrier {
 public:
  explicit MBarrier(unsigned char* at) : at_(at) { std::memcpy(&bits_, at, sizeof bits_); }
  static void init(unsigned char* at, std::uint32_t count);
  bool phase() const { return (bits_ >> 61 & 1) != 0; }
  void arrive(std::uint32_t count);
  /// Expects so many bytes in the phase at hand; below zero, they have arrived.
  void expect(std::int64_t bytes);

 private:
  void check() const;
  void store();

  unsigned char* at_;
  std::uint64_t bits_ = 0;
};

}  // namespace emulator
