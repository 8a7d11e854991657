#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstring>

#include "cache/paths.hpp"
#include "cli/commands/commands.hpp"
#include "cli/console/stop.hpp"
#include "runtime/tuning/tuning_order.hpp"
#include "tuner/search/serve_order.hpp"
#include "tuner/search/tune.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr std::size_t kMostOrderBytes = 64u << 20;

Result<std::string> read_standard_input() {
  std::string text;
  char buffer[65536];
  while (text.size() <= kMostOrderBytes) {
    const ssize_t got = ::read(STDIN_FILENO, buffer, sizeof(buffer));
    if (got == 0) return text;
    if (got > 0) text.append(buffer, static_cast<std::size_t>(got));
    if (got < 0 && errno != EINTR)
      return fail(ErrorCode::invalid_argument, fmt::format("cannot read the order: {}", std::strerror(errno)));
  }
  return fail(ErrorCode::invalid_argument, "the order is too long");
}

/// The GPU that an order means.
Result<DeviceFacts> ordered_device(const TuningOrder& order) {
  const Result<std::vector<DeviceFacts>> devices = list_devices();
  if (!devices) return tl::unexpected(devices.error());
  for (const DeviceFacts& device : *devices) {
    if (order.uuid.empty() ? device.ordinal != order.ordinal : device.uuid != order.uuid) continue;
    if (device.sm_count == order.sm_count) return device;
    return fail(ErrorCode::unsupported,
                fmt::format("the engine may use {} SMs of {}, but a process of its own has {}", order.sm_count,
                            device.name, device.sm_count),
                "Make the engine while no green context is current, or tune with leanattn tune where as many SMs are "
                "visible.");
  }
  return fail(ErrorCode::no_device,
              fmt::format("the GPU {} is not among the {} that are visible", order.uuid, devices->size()));
}

Result<ModelSummary> carry_out(const TuningOrder& order, const ProgressSink& progress, const std::atomic<bool>* stop) {
  const Result<DeviceFacts> device = ordered_device(order);
  if (!device) return tl::unexpected(device.error());
  const Result<std::filesystem::path> directory = cache_directory(order.cache_directory);
  if (!directory) return tl::unexpected(directory.error());
  TuneRequest request;
  request.problem = order.problem;
  request.shapes = order.shapes;
  request.budget = order.budget;
  request.command = fmt::format("leanattn {}", kTuneOrderCommand);
  request.open_winners = [&](const DeviceModel& model, const Environment& now) {
    return open_layered_winners(model, *directory, with_kernels(now));
  };
  std::string warning;
  // The workers' connections are silent, so this one says what is wrong with the database.
  if (const auto db = TuningDb::open(*directory, OpenMode::read_write, &warning); !db)
    return tl::unexpected(db.error());
  const auto connect = [&] { return TuningDb::open(*directory, OpenMode::read_write, nullptr); };
  const WorkerOptions workers{.command = {"/proc/self/exe", "worker"},
                              .cache_directory = directory->string(),
                              .memory_bytes = order.memory_bytes};
  const int ordinals[] = {device->ordinal};
  Result<std::vector<ModelSummary>> models = tune_in_workers(request, ordinals, workers, connect, progress, stop);
  if (!models) return tl::unexpected(models.error());
  if (!warning.empty()) models->front().warnings.push_back(std::move(warning));
  return std::move(models->front());
}

}  // namespace

Command add_tune_order(CLI::App& program) {
  CLI::App* app = program.add_subcommand(kTuneOrderCommand,
                                         "Tune what an engine of the library asks for, which starts this command");
  app->group("");  // left out of --help, because people do not run it
  return {app, [](const Console&) {
            const std::atomic<bool>* stop = stop_on_signals();
            const Result<std::string> order = read_standard_input();
            if (!order) return report_error(order.error());
            const auto served =
                serve_order(*order, stdout, [&](const TuningOrder& asked, const ProgressSink& progress) {
                  return carry_out(asked, progress, stop);
                });
            return served ? kExitOk : report_error(served.error());
          }};
}

}  // namespace v1
}  // namespace leanattn
