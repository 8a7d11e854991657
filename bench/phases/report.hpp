// report.hpp -- phases.md, the page of phases.json. Any thread; no GPU.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace leanattn {

/// Throws nlohmann::json::exception where the document is not one of bench_phases.
std::string phases_markdown(const nlohmann::ordered_json& document);

}  // namespace leanattn
