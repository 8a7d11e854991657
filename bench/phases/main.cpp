// main.cpp -- bench_phases: where the time of a launch goes on this GPU. It measures what merging across CTAs costs per
// number of contributing CTAs, and when the CTAs of tuned launches reach each moment. Kernels are emitted for it as
// variants (generator/generator.hpp); whole ones are compared with the oracle first and timed beside them.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "bench/phases/fix_up_cost.hpp"
#include "bench/phases/launch_phases.hpp"
#include "bench/phases/report.hpp"
#include "cache/cubin/cubin_db.hpp"
#include "cache/files.hpp"
#include "cache/layers.hpp"
#include "generator/generator.hpp"
#include "generator/parse_json.hpp"
#include "runtime/cuda/gpu.hpp"
#include "runtime/lookup/device_identity.hpp"
#include "tuner/evaluate/device_json.hpp"

namespace leanattn {
namespace {

using Json = nlohmann::ordered_json;

struct Launch {
  int batch, q_heads, kv_heads, head_dim, context;
  int latent_values = 0;  // columns of V of a latent cache; 0: K and V lie apart
};
constexpr Launch kLaunches[] = {{1, 32, 8, 128, 1024},       {1, 8, 1, 128, 8192},        {1, 32, 32, 128, 1024},
                                {1, 32, 8, 128, 8192},       {1, 8, 1, 128, 131072},      {1, 32, 8, 128, 32768},
                                {1, 32, 32, 128, 8192},      {32, 8, 1, 128, 8192},       {16, 32, 8, 128, 4096},
                                {3, 40, 10, 128, 16384},     {8, 32, 8, 128, 32768},      {1, 16, 1, 576, 1024, 512},
                                {1, 16, 1, 576, 8192, 512},  {16, 16, 1, 576, 4096, 512}, {1, 16, 1, 576, 65536, 512},
                                {1, 128, 1, 576, 8192, 512}, {64, 128, 1, 576, 1024, 512}};

Result<void> write_report(const std::filesystem::path& folder, const Json& document) {
  try {
    const std::string text = phases_markdown(document);
    fmt::print("{}", text);
    return detail::replace_file(folder / "phases.md", text);
  } catch (const nlohmann::json::exception& e) {
    return fail(ErrorCode::invalid_argument, fmt::format("{}: {}", (folder / "phases.json").string(), json_reason(e)));
  }
}

Result<Json> read_json(const std::filesystem::path& path) {
  std::ifstream file(path);
  Json json = Json::parse(file, nullptr, false);
  if (json.is_discarded()) return fail(ErrorCode::invalid_argument, "this is no JSON file: " + path.string());
  return json;
}

/// Measures, and writes phases.json anew after every row.
Result<Json> measure(int ordinal, const std::optional<std::filesystem::path>& directory,
                     const std::filesystem::path& folder) {
  const auto device = device_facts(ordinal);
  if (!device) return tl::unexpected(device.error());
  // Every row has a backend of its own. This keeps the context from one to the next.
  const auto context = Context::retain(ordinal);
  if (!context) return tl::unexpected(context.error());
  const LayeredWinners winners = load_layered_winners(device_model(*device), directory, current_software(*device));
  const auto cubins = open_cubin_db(std::nullopt, nullptr);  // in memory, for the kernels that all rows have

  Json document{{"schema_version", 1},
                {"generator_revision", generator_revision()},
                {"device", device_json(*device)},
                {"fix_up", Json::array()},
                {"launches", Json::array()}};
  const auto keep = [&](const char* table, Result<Json> row) -> Result<void> {
    if (!row) return tl::unexpected(row.error());
    document[table].push_back(std::move(*row));
    return detail::replace_file(folder / "phases.json", document.dump(1) + "\n");
  };
  for (const int contributors : {2, 4, 8, 16, 33, 66, 132}) {
    if (contributors > device->sm_count) break;
    if (auto kept = keep("fix_up", fix_up_cost(*device, contributors, cubins.get())); !kept)
      return tl::unexpected(kept.error());
  }
  for (const Launch& launch : kLaunches) {
    DecodeProblem problem;
    problem.q_heads = launch.q_heads, problem.kv_heads = launch.kv_heads, problem.head_dim = launch.head_dim;
    if (launch.latent_values > 0) {
      problem.features.latent = true;
      problem.features.v_head_dim = launch.latent_values;
      problem.features.page_size = 64;
    }
    const Shape shape{.batch = launch.batch, .longest_context = launch.context};
    if (auto kept = keep("launches", launch_phases(*device, problem, shape, winners, cubins.get())); !kept)
      return tl::unexpected(kept.error());
  }
  return document;
}

int run(int argc, char** argv) {
  CLI::App app{
      "Measures where the time of a launch goes: what merging across CTAs costs, and when CTAs reach each moment. It "
      "needs a GPU."};
  int ordinal = 0;
  std::optional<std::filesystem::path> db;
  std::filesystem::path out;
  bool report_only = false;
  app.add_option("--device", ordinal, "GPU, by ordinal")->capture_default_str();
  app.add_option("--db", db, "folder of tuning.db; the winners that are installed count, too");
  app.add_option("--out", out, "folder for phases.json and phases.md")->required();
  app.add_flag("--report-only", report_only, "write phases.md again from phases.json; needs no GPU");
  CLI11_PARSE(app, argc, argv);
  const auto work = [&]() -> Result<void> {
    if (report_only) {
      const auto document = read_json(out / "phases.json");
      return document ? write_report(out, *document) : tl::unexpected(document.error());
    }
    std::error_code failed;
    std::filesystem::create_directories(out, failed);
    if (auto ok = detail::replace_file(out / "phases.json", "{}\n"); !ok) return ok;
    const auto document = measure(ordinal, db, out);
    return document ? write_report(out, *document) : tl::unexpected(document.error());
  };
  const Result<void> done = work();
  if (done) return 0;
  fmt::print(stderr, "bench_phases: {}\n{}\n{}", done.error().message, done.error().hint, done.error().log);
  return 1;
}

}  // namespace
}  // namespace leanattn

int main(int argc, char** argv) { return leanattn::run(argc, argv); }
