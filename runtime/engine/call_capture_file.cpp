// call_capture_file.cpp -- lines of a call capture to text and back, and their sum.
#include "runtime/engine/call_capture_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "cache/files.hpp"
#include "generator/integers.hpp"
#include "generator/parse_json.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

using Json = nlohmann::json;

constexpr const char* kVersionKey = "leanattn_capture";
constexpr int kVersion = 1;
constexpr std::size_t kLongestAnswer = 32;
constexpr std::size_t kLargestFile = std::size_t{64} << 20;  // weeks of an engine's lines
constexpr std::size_t kMostNamed = 20;                       // lines that cannot be read

/// A count of calls, a whole number above 0. Anything else is read as 0 or less.
std::int64_t read_calls(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it == object.end() ? 0 : integer_of<std::int64_t>(*it).value_or(0);
}

std::string read_text(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : std::string();
}

/// Whether a text looks like an answer. Later versions may have other answers than this one.
bool is_answer(std::string_view text) {
  return !text.empty() && text.size() <= kLongestAnswer &&
         std::all_of(text.begin(), text.end(), [](char c) { return (c >= 'a' && c <= 'z') || c == '_'; });
}

Error wrong(std::string message) { return {ErrorCode::invalid_argument, std::move(message), {}, {}}; }

}  // namespace

std::string to_json(const CallCaptureLine& line) {
  Json json{{kVersionKey, kVersion},
            {"problem", Json::parse(to_json(line.problem))},
            {"shape", Json::parse(to_json(line.shape))},
            {"calls", line.calls},
            {"answer", line.answer},
            {"device", line.device},
            {"sms", line.sm_count},
            {"written", line.written}};
  if (line.stale) json["stale"] = true;
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string lost_calls_to_json(std::int64_t calls) {
  return Json{{kVersionKey, kVersion}, {"lost_calls", calls}}.dump();
}

Result<CallCaptureRecord> call_capture_record_from_json(std::string_view text) {
  const Json json = parse_json(text);
  if (!json.is_object()) return tl::unexpected(wrong("not a JSON object"));
  const auto version = json.find(kVersionKey);
  if (version == json.end()) return tl::unexpected(wrong(fmt::format("no '{}': not a line of a capture", kVersionKey)));
  if (*version != kVersion) {
    return fail(ErrorCode::unsupported,
                fmt::format("'{}' is {}, this version reads {}", kVersionKey,
                            version->dump(-1, ' ', false, Json::error_handler_t::replace), kVersion));
  }
  CallCaptureRecord record;
  record.lost_calls = read_calls(json, "lost_calls");
  if (record.lost_calls > 0) return record;
  record.lost_calls = 0;

  const auto problem = json.find("problem"), shape = json.find("shape");
  if (problem == json.end()) return tl::unexpected(wrong("'problem' is missing"));
  if (shape == json.end()) return tl::unexpected(wrong("'shape' is missing"));
  auto parsed_problem = problem_from_json(problem->dump(-1, ' ', false, Json::error_handler_t::replace));
  if (!parsed_problem) return tl::unexpected(parsed_problem.error());
  const auto parsed_shape = shape_from_json(shape->dump(-1, ' ', false, Json::error_handler_t::replace));
  if (!parsed_shape) return tl::unexpected(parsed_shape.error());
  if (auto valid = validate(*parsed_problem, *parsed_shape); !valid) return tl::unexpected(valid.error());
  CallCaptureLine& line = record.line;
  line.problem = *std::move(parsed_problem);
  line.shape = *parsed_shape;
  line.calls = read_calls(json, "calls");
  if (line.calls <= 0) return tl::unexpected(wrong("'calls' is missing or not a number of calls"));
  line.answer = read_text(json, "answer");
  if (!is_answer(line.answer)) return tl::unexpected(wrong("'answer' is missing or no answer"));
  line.device = read_text(json, "device");
  line.written = read_text(json, "written");
  const auto sms = read_calls(json, "sms");
  line.sm_count = sms > 0 && sms <= std::numeric_limits<int>::max() ? static_cast<int>(sms) : 0;
  const auto stale = json.find("stale");
  line.stale = stale != json.end() && stale->is_boolean() && stale->get<bool>();
  return record;
}

CallCaptureSum sum_call_capture(std::istream& text) {
  CallCaptureSum sum;
  std::map<std::pair<std::string, std::string>, std::size_t> indices;  // of each (problem, shape) in sum.shapes
  std::string line;
  for (std::int64_t number = 1; std::getline(text, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    auto record = call_capture_record_from_json(line);
    if (!record) {
      ++sum.unreadable_lines;
      if (sum.unreadable.size() < kMostNamed) sum.unreadable.emplace_back(number, record.error().message);
      continue;
    }
    sum.lost_calls = saturating_sum(sum.lost_calls, record->lost_calls);
    if (record->lost_calls > 0) continue;
    CallCaptureLine& said = record->line;
    said.shape.max_batch = 0;
    const auto [index, made] = indices.try_emplace({to_json(said.problem), to_json(said.shape)}, sum.shapes.size());
    if (made) sum.shapes.push_back({.problem = said.problem, .shape = said.shape, .calls = 0, .answers = {}});
    CapturedShape& shape = sum.shapes[index->second];
    for (std::int64_t* count : {&sum.calls, &sum.answers[said.answer], &sum.devices[said.device], &shape.calls,
                                &shape.answers[said.answer]}) {
      *count = saturating_sum(*count, said.calls);
    }
  }
  std::vector<std::pair<std::string, std::string>> texts(sum.shapes.size());
  for (const auto& [key, at] : indices) texts[at] = key;
  std::vector<std::size_t> order(sum.shapes.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    if (sum.shapes[a].calls != sum.shapes[b].calls) return sum.shapes[a].calls > sum.shapes[b].calls;
    return texts[a] < texts[b];
  });
  std::vector<CapturedShape> sorted;
  sorted.reserve(order.size());
  for (const std::size_t i : order) sorted.push_back(std::move(sum.shapes[i]));
  sum.shapes = std::move(sorted);
  return sum;
}

Result<CallCaptureSum> read_call_capture(const std::filesystem::path& file) {
  Result<std::string> text = detail::read_file(file, kLargestFile);
  if (!text) {
    text.error().message = "the capture " + text.error().message;
    text.error().hint = "Run an engine with LEANATTN_CAPTURE set to a file, and name that.";
    return tl::unexpected(text.error());
  }
  std::istringstream lines(*std::move(text));
  return sum_call_capture(lines);
}

}  // namespace v1
}  // namespace leanattn
