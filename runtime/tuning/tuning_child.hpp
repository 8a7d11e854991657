// tuning_child.hpp -- has the leanattn program carry out a TuningOrder, in a child process. The calling thread waits.
// It must outlive the child: when that thread ends, the operating system kills the program.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/tuning/tuning_order.hpp"

namespace leanattn {
inline namespace v1 {

/// What the caller wants of a program that is running. stop: it keeps the best so far and ends. kill: it ends at once,
/// and keeps the trials that it has stored.
enum class TuningWish { go_on, stop, kill };

/// Asked several times a second, on the calling thread. `progress` is null when there is nothing new.
using TuningObserver = std::function<TuningWish(const TuningProgress* progress)>;

/// How much longer than its budget a program may take.
struct TuningPatience {
  std::chrono::milliseconds before_stop{3000};  ///< beyond the budget, before it is asked to stop
  std::chrono::milliseconds before_kill{5000};  ///< after that, before it is killed
};

/// What became of an order.
struct TuningOutcome {
  std::vector<TuningResult> results;  ///< of the shapes that the program got to, the last one of each
  std::vector<std::string> warnings;  ///< the first 32 different ones, of which long ones are cut
  std::optional<Error> error;  ///< why the program did not end well; the winners that it stored until then remain
  bool stopped = false;        ///< whether the caller wished it
};

/// The winners are in the database afterwards. The program and its workers are gone when this returns, also by an
/// exception. Whatever they did, this process has lost nothing: candidates are compiled, launched and checked there.
TuningOutcome run_tuning_child(const std::filesystem::path& program, const TuningOrder& order,
                               const TuningObserver& observer, TuningPatience patience = {});

}  // namespace v1
}  // namespace leanattn
