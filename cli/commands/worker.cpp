#include <CLI/CLI.hpp>

#include "cli/commands/commands.hpp"
#include "tuner/worker/process.hpp"
#include "tuner/worker/serve.hpp"

namespace leanattn {
inline namespace v1 {

Command add_worker(CLI::App& program) {
  CLI::App* app = program.add_subcommand(
      "worker", "Check, time or compile candidates for a tuning session, which starts this command");
  app->group("");  // left out of --help, because people do not run it
  return {app, [](const Console&) {
            if (serve_worker(kWorkerDescriptor, gpu_worker_service()) == 0) return kExitOk;
            return report_error({ErrorCode::invalid_argument,
                                 "no tuning session speaks to this worker",
                                 "Workers are started by leanattn tune, not by hand.",
                                 {}});
          }};
}

}  // namespace v1
}  // namespace leanattn
