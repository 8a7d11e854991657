#include "cli/commands/doctor.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/commands/commands.hpp"
#include "cli/help/command_page.hpp"
#include "generator/generator.hpp"
#include "leanattn/leanattn.h"

namespace leanattn {
inline namespace v1 {

Finding good(std::string subject, std::string text, std::string hint) {
  return {std::move(subject), Finding::Level::ok, std::move(text), std::move(hint), {}, kExitOk};
}

Finding doubtful(std::string subject, std::string text, std::string hint) {
  return {std::move(subject), Finding::Level::warning, std::move(text), std::move(hint), {}, kExitOk};
}

Finding bad(std::string subject, const Error& error) {
  return {std::move(subject), Finding::Level::failure, error.message, error.hint, error.log, exit_code(error.code)};
}

namespace {

const char* name_of(Finding::Level level) {
  switch (level) {
    case Finding::Level::ok: return "ok";
    case Finding::Level::warning: return "warning";
    case Finding::Level::failure: return "failure";
  }
  return "";
}

void print_finding(const Finding& finding) {
  const int colour = finding.level == Finding::Level::ok ? 32 : finding.level == Finding::Level::warning ? 33 : 31;
  print(coloured(stdout, colour, fmt::format("{:<8}", name_of(finding.level))));
  print_text(fmt::format(" {}: {}\n", finding.subject, finding.text));
  if (!finding.hint.empty()) print_text(fmt::format("         {}\n", finding.hint));
  for (std::size_t at = 0; at < finding.detail.size();) {
    const std::size_t end = std::min(finding.detail.find('\n', at), finding.detail.size());
    print_text(fmt::format("           {}\n", std::string_view(finding.detail).substr(at, end - at)));
    at = end + 1;
  }
}

int run_doctor(const Console& console) {
  std::vector<DeviceFacts> devices;
  Findings findings{good("leanattn", std::string(leanattn_version()) + ", library " + generator_revision())};
  const auto add = [&](const Findings& more) { findings.insert(findings.end(), more.begin(), more.end()); };
  add(look_at_gpus(devices));
  add(look_at_caches(console, devices));
  add(look_at_environment());

  int exit = kExitOk;
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Finding& finding : findings) {
    if (exit == kExitOk && finding.level == Finding::Level::failure) exit = finding.exit;
    if (!console.json) {
      print_finding(finding);
      continue;
    }
    list.push_back({{"subject", finding.subject},
                    {"level", name_of(finding.level)},
                    {"text", finding.text},
                    {"hint", finding.hint},
                    {"detail", finding.detail}});
  }
  if (console.json) {
    const nlohmann::ordered_json document{
        {"schema_version", 1}, {"healthy", exit == kExitOk}, {"findings", std::move(list)}};
    print_json(document);
  }
  return exit;
}

}  // namespace

Command add_doctor(CLI::App& program) {
  CLI::App* app = program.add_subcommand(
      "doctor", "Check driver, GPUs, NVRTC, caches and environment, and say how to mend what is wrong");
  set_examples(*app, {{"Keep the findings for a bug report", "leanattn doctor --json > doctor.json"}});
  return {app, run_doctor};
}

}  // namespace v1
}  // namespace leanattn
