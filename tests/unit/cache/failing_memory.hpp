// failing_memory.hpp -- memory that runs out on request: the n-th allocation of SQLite, or of C++ in this program,
// refused. One at a time; counts the allocations of the thread that made it. Include it in one file of a program.
#pragma once

#include <sqlite3.h>

#include <cstdlib>
#include <new>
#include <stdexcept>

namespace leanattn::cache_test {

class FailingMemory {
 public:
  enum class Whose { sqlite, cpp };

  /// Of the allocations from now on, the n-th (from 1) is refused; with `lasting`, so are all that follow. SQLite must
  /// have nothing open.
  FailingMemory(Whose whose, int n, bool lasting) {
    if (whose == Whose::sqlite) install();
    state() = {n, lasting, 0, whose, true};
  }
  FailingMemory(const FailingMemory&) = delete;
  FailingMemory& operator=(const FailingMemory&) = delete;
  ~FailingMemory() { state().armed = false; }

  /// How many allocations have been refused.
  int refusals() const { return state().refusals; }

  static bool refuses(Whose whose) {
    State& now = state();
    if (!now.armed || now.whose != whose || now.countdown == 0 || --now.countdown > 0) return false;
    now.countdown = now.lasting ? 1 : 0;
    ++now.refusals;
    return true;
  }

 private:
  struct State {
    int countdown = 0;
    bool lasting = false;
    int refusals = 0;
    Whose whose = Whose::sqlite;
    bool armed = false;
  };
  static State& state() {
    thread_local State now;
    return now;
  }

  /// Puts ours in front of SQLite's own allocator, once.
  static void install() {
    static sqlite3_mem_methods original = [] {
      sqlite3_mem_methods methods;
      if (sqlite3_shutdown() != SQLITE_OK || sqlite3_config(SQLITE_CONFIG_GETMALLOC, &methods) != SQLITE_OK)
        throw std::runtime_error("SQLite's allocator cannot be replaced");
      return methods;
    }();
    static bool installed = false;
    if (installed) return;
    installed = true;
    sqlite3_mem_methods ours = original;
    below() = &original;
    ours.xMalloc = [](int bytes) { return refuses(Whose::sqlite) ? nullptr : below()->xMalloc(bytes); };
    ours.xRealloc = [](void* block, int bytes) {
      return refuses(Whose::sqlite) ? nullptr : below()->xRealloc(block, bytes);
    };
    sqlite3_config(SQLITE_CONFIG_MALLOC, &ours);
    sqlite3_initialize();
  }
  static sqlite3_mem_methods*& below() {
    static sqlite3_mem_methods* methods = nullptr;
    return methods;
  }
};

}  // namespace leanattn::cache_test

// Out of line, since the compiler takes an inlined free() for one that does not match its new.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  using leanattn::cache_test::FailingMemory;
  void* const block = FailingMemory::refuses(FailingMemory::Whose::cpp) ? nullptr : std::malloc(bytes == 0 ? 1 : bytes);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  try {
    return operator new(bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
[[gnu::noinline]] void operator delete(void* block) noexcept { std::free(block); }
[[gnu::noinline]] void operator delete(void* block, std::size_t) noexcept { std::free(block); }
