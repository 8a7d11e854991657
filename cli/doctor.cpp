#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "cache/paths.hpp"
#include "cache/tuning_db.hpp"
#include "cli/commands.hpp"
#include "cli/sizes.hpp"
#include "generator/generator.hpp"
#include "runtime/compiler.hpp"
#include "runtime/device.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

/// One thing that was looked at.
struct Finding {
  std::string subject;
  enum class Level { ok, warning, failure } level = Level::ok;
  std::string text;
  std::string hint;
  int exit = kExitOk;  ///< what the program ends with when this is the first failure
};

Finding good(std::string subject, std::string text) {
  return {std::move(subject), Finding::Level::ok, std::move(text), {}, kExitOk};
}

Finding bad(std::string subject, const Error& error) {
  return {std::move(subject), Finding::Level::failure, error.message, error.hint, exit_code(error.code)};
}

std::vector<Finding> look_at_gpus() {
  const Result<std::vector<DeviceFacts>> devices = list_devices();
  if (!devices) return {bad("driver", devices.error())};
  std::vector<Finding> findings;
  const int version = devices->front().driver_version;
  findings.push_back(
      good("driver",
           fmt::format("CUDA {}.{}{}", version / 1000, version % 1000 / 10,
                       devices->front().driver_release.empty() ? "" : ", release " + devices->front().driver_release)));
  for (const DeviceFacts& device : *devices) {
    findings.push_back(good(fmt::format("device {}", device.ordinal),
                            fmt::format("{}, {}, {} SMs, {}", device.name, to_string(device.arch), device.sm_count,
                                        format_bytes(device.memory_bytes))));
  }
  return findings;
}

/// NVRTC is proven by compiling: a library without its builtins loads and then fails.
std::vector<Finding> look_at_compiler() {
  const Result<std::string> version = nvrtc_version();
  if (!version) return {bad("NVRTC", version.error())};
  const Result<CompiledKernel> compiled =
      compile_source("extern \"C\" __global__ void probe(int* x) { *x = 1; }\n", Arch{9, 0, true}, nullptr);
  if (!compiled) return {bad("NVRTC", compiled.error())};
  return {good("NVRTC", fmt::format("{}, compiles for sm_90a", *version))};
}

std::vector<Finding> look_at_cache(const Session& session) {
  const Result<std::filesystem::path> directory = cache_directory(session.db);
  if (!directory) return {bad("cache", directory.error())};
  std::vector<Finding> findings{good("cache", directory->string())};
  if (is_network_filesystem(*directory)) {
    findings.push_back({"cache", Finding::Level::warning, "on a network file system: locking there is unreliable",
                        "Point LEANATTN_CACHE_DIR at a local disk.", kExitOk});
  }
  std::string warning;
  const Result<std::unique_ptr<TuningDb>> db = TuningDb::open(*directory, OpenMode::read_only, &warning);
  if (!db) {
    const bool absent = db.error().code == ErrorCode::not_found;
    findings.push_back(absent ? good("tuning.db", "not there yet; `leanattn tune` makes it")
                              : bad("tuning.db", db.error()));
    return findings;
  }
  if (!warning.empty()) findings.push_back({"tuning.db", Finding::Level::warning, warning, {}, kExitOk});
  const Result<std::vector<std::string>> problems = (*db)->check();
  if (!problems) {
    findings.push_back(bad("tuning.db", problems.error()));
  } else if (!problems->empty()) {
    findings.push_back(bad(
        "tuning.db", {ErrorCode::database_corrupt, problems->front(), "`leanattn db check` lists everything.", {}}));
  } else if (const Result<DbStats> stats = (*db)->stats()) {
    findings.push_back(good("tuning.db", fmt::format("sound, {} trials, {} winners, {}", stats->trials, stats->winners,
                                                     format_bytes(stats->bytes))));
  } else {
    findings.push_back(bad("tuning.db", stats.error()));
  }
  return findings;
}

std::vector<Finding> look_at_environment() {
  std::vector<Finding> findings;
  for (const char* name :
       {"LEANATTN_CACHE_DIR", "LEANATTN_SITE_DB", "LEANATTN_SHIPPED_DB", "LEANATTN_CUBIN_CACHE_MB",
        "LEANATTN_NVRTC_LIB", "LEANATTN_NVRTC_DIR", "LEANATTN_CAPTURE", "LEANATTN_DEBUG", "CUDA_VISIBLE_DEVICES"}) {
    if (const char* value = std::getenv(name)) findings.push_back(good(name, value));
  }
  return findings;
}

const char* name_of(Finding::Level level) {
  switch (level) {
    case Finding::Level::ok: return "ok";
    case Finding::Level::warning: return "warning";
    case Finding::Level::failure: return "failure";
  }
  return "";
}

int run(const Session& session) {
  std::vector<Finding> findings{good("leanattn", LEANATTN_VERSION ", library " + generator_revision())};
  for (const auto& part : {look_at_gpus(), look_at_compiler(), look_at_cache(session), look_at_environment()}) {
    findings.insert(findings.end(), part.begin(), part.end());
  }
  int exit = kExitOk;
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Finding& finding : findings) {
    if (exit == kExitOk && finding.level == Finding::Level::failure) exit = finding.exit;
    if (session.json) {
      list.push_back({{"subject", finding.subject},
                      {"level", name_of(finding.level)},
                      {"text", finding.text},
                      {"hint", finding.hint}});
      continue;
    }
    const int colour = finding.level == Finding::Level::ok ? 32 : finding.level == Finding::Level::warning ? 33 : 31;
    print(fmt::format("{} {}: {}\n", coloured(stdout, colour, fmt::format("{:<8}", name_of(finding.level))),
                      finding.subject, finding.text));
    if (!finding.hint.empty()) print(fmt::format("         {}\n", finding.hint));
  }
  if (session.json) {
    const nlohmann::ordered_json document{
        {"schema_version", 1}, {"healthy", exit == kExitOk}, {"findings", std::move(list)}};
    print(document.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
  }
  return exit;
}

}  // namespace

Command add_doctor(CLI::App& program) {
  return {program.add_subcommand(
              "doctor", "Driver, GPUs, NVRTC, cache and environment: what works, and what to do where it does not"),
          run};
}

}  // namespace v1
}  // namespace leanattn
