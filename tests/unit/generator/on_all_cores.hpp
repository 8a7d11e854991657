// on_all_cores.hpp -- checks many cases in parallel, for the tests that compile kernels.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace leanattn {

/// Calls `failure_of(i)` for each i below `count`, on all cores, and reports the texts that are not empty.
template <class FailureOf>
void expect_no_failure(std::size_t count, FailureOf failure_of) {
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;
  std::vector<std::string> failures;
  const auto work = [&] {
    for (std::size_t i = next++; i < count; i = next++) {
      std::string failure = failure_of(i);
      if (failure.empty()) continue;
      const std::lock_guard lock(mutex);
      failures.push_back(std::move(failure));
    }
  };
  std::vector<std::jthread> workers(std::max(1u, std::thread::hardware_concurrency()));
  for (auto& worker : workers) worker = std::jthread(work);
  for (auto& worker : workers) worker.join();
  for (const std::string& failure : failures) ADD_FAILURE() << failure;
}

}  // namespace leanattn
