#include <CLI/CLI.hpp>

#include "cli/commands.hpp"
#include "tuner/worker_process.hpp"
#include "tuner/worker_serve.hpp"

namespace leanattn {
inline namespace v1 {

Command add_worker(CLI::App& program) {
  CLI::App* app = program.add_subcommand("worker", "Drive a device on behalf of a tuning session, which starts this");
  app->group("");  // not for people: left out of --help
  return {app, [](const Session&) {
            if (serve_worker(kWorkerDescriptor, gpu_worker_service()) == 0) return kExitOk;
            return report_error({ErrorCode::invalid_argument,
                                 "worker: no session speaks to this process",
                                 "It is started by leanattn tune, not by hand.",
                                 {}});
          }};
}

}  // namespace v1
}  // namespace leanattn
