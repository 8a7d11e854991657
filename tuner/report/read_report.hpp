// read_report.hpp -- reads a report that to_json() of render.hpp wrote, so that it can be shown in another format
// without its database. Pure functions; any thread.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "leanattn/error.hpp"
#include "tuner/report/report.hpp"

namespace leanattn {
inline namespace v1 {

/// Reads a report's JSON of schema_version 1. Whatever another version did not write stays empty. Winners that this
/// version cannot read are left out and counted, as make_report() does. Errors: invalid_argument (the text is no such
/// JSON, a field is missing or has another type).
Result<Report> report_from_json(std::string_view json);

/// The document of a report: an object of schema_version 1 with an array of devices. Errors: as above.
Result<nlohmann::json> report_document(std::string_view json);

}  // namespace v1
}  // namespace leanattn
