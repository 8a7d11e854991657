// native_checks.cpp -- threads of a CTA as fibers, which switch at __syncthreads.
#include "tests/emulator/native_checks.hpp"

#include <ucontext.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

namespace emulator {
namespace {

thread_local struct { unsigned x = 0, y = 0, z = 0; } threadIdx, blockIdx, gridDim;

constexpr std::size_t kThreads = 512;
constexpr std::size_t kStackBytes = 64 << 10;

/// The threads of a CTA. A fiber lives as long as the process, and executes one thread of each CTA.
class Fibers {
 public:
  /// Calls body(thread) on all fibers.
  void run(void (*body)(const void*), const void* argument) {
    body_ = body, argument_ = argument;
    done_ = 0;
    if (__builtin_setjmp(caller_) == 0) go_to(0);
  }
  /// Lets the other threads come as far as this one.
  void sync() {
    const std::size_t self = current_;
    if (__builtin_setjmp(fibers_[self].at) == 0) go_to((self + 1) % kThreads);
  }

 private:
  using Place = void* [5];
  struct Fiber {
    std::unique_ptr<char[]> stack;
    ucontext_t start;
    Place at;
  };

  // The compiler's jumps, which neither save signal masks nor are a sanitizer's. They lead out of a function.
  [[noreturn, gnu::noinline]] void go_to(std::size_t thread) {
    current_ = thread;
    threadIdx.x = static_cast<unsigned>(thread);
    Fiber& fiber = fibers_[thread];
    if (fiber.stack != nullptr) __builtin_longjmp(fiber.at, 1);
    fiber.stack = std::make_unique<char[]>(kStackBytes);
    getcontext(&fiber.start);
    fiber.start.uc_stack.ss_sp = fiber.stack.get();
    fiber.start.uc_stack.ss_size = kStackBytes;
    fiber.start.uc_link = nullptr;
    static thread_local Fibers* self;
    self = this;
    makecontext(
        &fiber.start, [] { self->live(); }, 0);
    setcontext(&fiber.start);
    std::abort();
  }
  [[noreturn, gnu::noinline]] void leave() { __builtin_longjmp(caller_, 1); }
  [[noreturn]] void live() {
    const std::size_t self = current_;
    while (true) {
      body_(argument_);
      ++done_;
      if (__builtin_setjmp(fibers_[self].at) != 0) continue;
      if (done_ == kThreads) leave();
      go_to((self + 1) % kThreads);
    }
  }

  std::vector<Fiber> fibers_{kThreads};
  Place caller_;
  void (*body_)(const void*) = nullptr;
  const void* argument_ = nullptr;
  std::size_t current_ = 0, done_ = 0;
};
thread_local Fibers* fibers = nullptr;

void __syncthreads() { fibers->sync(); }
template <class T>
void atomicAdd(T* to, T value) {
  *to += value;
}
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

#include "tests/device/begin.cuh"

#include "templates/kernel_args.cuh"

#include "templates/check/features.cuh"

#include "templates/check/data.cuh"

#include "templates/check/layout.cuh"

#include "templates/check/kernels.cuh"

#include "tests/device/end.cuh"

static_assert(kThreads == kCheckThreads);

/// Calls a kernel with parameters that follow each other, each aligned as its type wants it.
template <class... Parameters>
void call(void (*kernel)(Parameters...), const unsigned char* parameters) {
  std::size_t at = 0;
  const auto next = [&]<class T>(std::type_identity<T>) -> const T& {
    at = (at + alignof(T) - 1) / alignof(T) * alignof(T);
    return *reinterpret_cast<const T*>(parameters + std::exchange(at, at + sizeof(T)));
  };
  // In braces, operands are evaluated in their order.
  std::apply(kernel, std::tuple<const Parameters&...>{next(std::type_identity<Parameters>{})...});
}
template <auto kKernel>
void thread_of(const void* parameters) {
  call(kKernel, static_cast<const unsigned char*>(parameters));
}

struct Check {
  std::string_view name;
  void (*thread)(const void* parameters);
  bool syncs;
};
constexpr Check kChecks[] = {{"check_fill_q", thread_of<check_fill_q>, false},
                             {"check_fill_rope", thread_of<check_fill_rope>, false},
                             {"check_fill_table", thread_of<check_fill_table>, false},
                             {"check_fill_selection", thread_of<check_fill_selection>, false},
                             {"check_fill_kv", thread_of<check_fill_kv>, false},
                             {"check_new_rows", thread_of<check_new_rows>, false},
                             {"check_oracle", thread_of<check_oracle>, true},
                             {"check_plain", thread_of<check_plain>, true}};

}  // namespace

bool run_native_check(const LaunchConfig& config) {
  for (const Check& check : kChecks) {
    if (check.name != config.kernel->name) continue;
    if (fibers == nullptr) fibers = new Fibers;
    gridDim = {config.grid.x, config.grid.y, config.grid.z};
    for (blockIdx.z = 0; blockIdx.z < gridDim.z; ++blockIdx.z)
      for (blockIdx.y = 0; blockIdx.y < gridDim.y; ++blockIdx.y)
        for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
          if (check.syncs) {
            fibers->run(check.thread, config.parameters.data());
            continue;
          }
          for (threadIdx.x = 0; threadIdx.x < kThreads; ++threadIdx.x) check.thread(config.parameters.data());
        }
    return true;
  }
  return false;
}

}  // namespace emulator
