#include "tuner/worker/protocol.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "generator/parse_json.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMostLogBytes = 64u << 10;

template <class... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <class... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;

/// Thrown for a message that says something impossible, and caught where messages are read.
struct BadMessage : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <class T>
T require(Result<T> value) {
  if (!value) throw BadMessage(value.error().message);
  return std::move(*value);
}

/// The value, which must be a list: a loop over another kind of value would find elements, too.
const Json& list(const Json& value) {
  if (!value.is_array()) throw BadMessage("not a list");
  return value;
}

// A spec travels as a config: problem.hpp has a reader for those, which validates.
std::string spec_text(const KernelSpec& spec) { return to_json(Config{.spec = spec, .grid = 1}); }
KernelSpec spec_from(const Json& json) { return require(config_from_json(json.get<std::string>())).spec; }

Frame frame_of(const Json& json, std::vector<std::uint8_t> blob = {}) {
  return {json.dump(-1, ' ', false, Json::error_handler_t::replace), std::move(blob)};
}

Json kernel_json(const CompiledKernel& kernel) {
  const KernelResources& r = kernel.resources;
  return {{"registers", r.registers},
          {"spill_store_bytes", r.spill_store_bytes},
          {"spill_load_bytes", r.spill_load_bytes},
          {"stack_bytes", r.stack_bytes},
          {"static_shared_bytes", r.static_shared_bytes},
          {"wgmma_serialized", r.wgmma_serialized},
          {"compile_ms", kernel.compile_ms},
          {"from_cache", kernel.from_cache}};
}

CompiledKernel kernel_from(const Json& json, const Frame& frame) {
  CompiledKernel kernel;
  kernel.cubin = frame.blob;
  kernel.resources = {.registers = require_count<int>(json.at("registers")),
                      .spill_store_bytes = require_count<int>(json.at("spill_store_bytes")),
                      .spill_load_bytes = require_count<int>(json.at("spill_load_bytes")),
                      .stack_bytes = require_count<int>(json.at("stack_bytes")),
                      .static_shared_bytes = require_count<int>(json.at("static_shared_bytes")),
                      .wgmma_serialized = json.at("wgmma_serialized").get<bool>()};
  kernel.compile_ms = require_measured(json.at("compile_ms"));
  kernel.from_cache = json.at("from_cache").get<bool>();
  return kernel;
}

const char* verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::passed: return "passed";
    case Verdict::incorrect: return "incorrect";
    case Verdict::launch_failed: return "launch_failed";
    case Verdict::timed_out: return "timed_out";
  }
  return "launch_failed";
}

Verdict verdict_from(const std::string& name) {
  for (const Verdict verdict : {Verdict::passed, Verdict::incorrect, Verdict::launch_failed, Verdict::timed_out}) {
    if (name == verdict_name(verdict)) return verdict;
  }
  throw BadMessage(fmt::format("verdict '{}'", name));
}

std::vector<int> counts_from(const Json& json) {
  std::vector<int> counts;
  for (const Json& count : list(json)) counts.push_back(require_count<int>(count));
  return counts;
}

WorkerRequest parse_request(const Json& json, const Frame& frame) {
  const auto kind = json.at("ask").get<std::string>();
  if (kind == "hello")
    return Hello{.version = require_count<int>(json.at("version")),
                 .cache_directory = json.at("cache_directory").get<std::string>()};
  if (kind == "compile") return CompileKernel{spec_from(json.at("spec"))};
  if (kind == "open") {
    OpenDevice open{.ordinal = require_count<int>(json.at("ordinal")),
                    .uuid = json.at("uuid").get<std::string>(),
                    .problem = require(problem_from_json(json.at("problem").get<std::string>())),
                    .policy = require(parse_l2_policy(json.at("policy").get<std::string>())),
                    .memory_bytes = require_count<std::int64_t>(json.at("memory_bytes")),
                    .rank_devices = {},
                    .requests = {}};
    open.rank_devices = counts_from(json.at("rank_devices"));
    open.requests.context_lengths = counts_from(json.at("context_lengths"));
    open.requests.query_tokens = counts_from(json.at("query_tokens"));
    return open;
  }
  if (kind == "adopt") return AdoptKernel{spec_from(json.at("spec")), kernel_from(json.at("kernel"), frame)};
  if (kind == "begin") return BeginShape{require(shape_from_json(json.at("shape").get<std::string>()))};
  if (kind == "check") return CheckConfig{require(config_from_json(json.at("config").get<std::string>()))};
  if (kind == "time") {
    TimeConfigs time;
    for (const Json& config : list(json.at("configs")))
      time.configs.push_back(require(config_from_json(config.get<std::string>())));
    return time;
  }
  throw BadMessage(fmt::format("request '{}'", kind));
}

WorkerReply parse_reply(const Json& json, const Frame& frame) {
  const auto kind = json.at("is").get<std::string>();
  if (kind == "error") return require_error(json);
  if (kind == "done") return Done{};
  if (kind == "kernel") return kernel_from(json.at("kernel"), frame);
  if (kind == "read_time") return ReadTime{require_measured(json.at("us"))};
  if (kind == "checked")
    return CheckOutcome{verdict_from(json.at("verdict").get<std::string>()), json.at("reason").get<std::string>()};
  if (kind == "timed") {
    RoundTimes times;
    for (const Json& us : list(json.at("us"))) times.us.push_back(require_measured(us));
    times.sentinel_us = require_measured(json.at("sentinel_us"));
    times.sentinel_drift = require_measured(json.at("sentinel_drift"));
    times.throttle = json.at("throttle").get<std::string>();
    times.sm_clock_mhz = require_count<int>(json.at("sm_clock_mhz"));
    times.neighbours = json.at("neighbours").get<std::string>();
    times.stays_in_l2 = json.at("stays_in_l2").get<bool>();
    return times;
  }
  throw BadMessage(fmt::format("reply '{}'", kind));
}

template <class Message, class Parse>
Result<Message> parsed(const Frame& frame, Parse parse) {
  std::string why;
  try {
    return parse(Json::parse(frame.text), frame);
  } catch (const std::exception& error) {
    why = json_reason(error);
  }
  return fail(ErrorCode::internal, fmt::format("not a message: {} in '{:.80}'", why, frame.text));
}

}  // namespace

Frame to_frame(const WorkerRequest& request) {
  return std::visit(
      Overloaded{
          [](const Hello& hello) {
            return frame_of({{"ask", "hello"}, {"version", hello.version}, {"cache_directory", hello.cache_directory}});
          },
          [](const CompileKernel& compile) {
            return frame_of({{"ask", "compile"}, {"spec", spec_text(compile.spec)}});
          },
          [](const OpenDevice& open) {
            return frame_of({{"ask", "open"},
                             {"ordinal", open.ordinal},
                             {"uuid", open.uuid},
                             {"problem", to_json(open.problem)},
                             {"policy", to_string(open.policy)},
                             {"memory_bytes", open.memory_bytes},
                             {"rank_devices", open.rank_devices},
                             {"context_lengths", open.requests.context_lengths},
                             {"query_tokens", open.requests.query_tokens}});
          },
          [](const AdoptKernel& adopt) {
            return frame_of({{"ask", "adopt"}, {"spec", spec_text(adopt.spec)}, {"kernel", kernel_json(adopt.kernel)}},
                            adopt.kernel.cubin);
          },
          [](const BeginShape& begin) {
            return frame_of({{"ask", "begin"}, {"shape", to_json(begin.shape)}});
          },
          [](const CheckConfig& check) {
            return frame_of({{"ask", "check"}, {"config", to_json(check.config)}});
          },
          [](const TimeConfigs& time) {
            Json configs = Json::array();
            for (const Config& config : time.configs) configs.push_back(to_json(config));
            return frame_of({{"ask", "time"}, {"configs", std::move(configs)}});
          }},
      request);
}

Frame to_frame(const WorkerReply& reply) {
  return std::visit(
      Overloaded{[](const Error& error) {
                   return frame_of({{"is", "error"},
                                    {"code", static_cast<int>(error.code)},
                                    {"message", error.message},
                                    {"hint", error.hint},
                                    {"log", error.log.substr(0, kMostLogBytes)}});
                 },
                 [](const Done&) {
                   return frame_of({{"is", "done"}});
                 },
                 [](const CompiledKernel& kernel) {
                   return frame_of({{"is", "kernel"}, {"kernel", kernel_json(kernel)}}, kernel.cubin);
                 },
                 [](const ReadTime& time) {
                   return frame_of({{"is", "read_time"}, {"us", time.us}});
                 },
                 [](const CheckOutcome& outcome) {
                   return frame_of(
                       {{"is", "checked"}, {"verdict", verdict_name(outcome.verdict)}, {"reason", outcome.reason}});
                 },
                 [](const RoundTimes& times) {
                   return frame_of({{"is", "timed"},
                                    {"us", times.us},
                                    {"sentinel_us", times.sentinel_us},
                                    {"sentinel_drift", times.sentinel_drift},
                                    {"throttle", times.throttle},
                                    {"sm_clock_mhz", times.sm_clock_mhz},
                                    {"neighbours", times.neighbours},
                                    {"stays_in_l2", times.stays_in_l2}});
                 }},
      reply);
}

Result<WorkerRequest> request_from(const Frame& frame) { return parsed<WorkerRequest>(frame, parse_request); }
Result<WorkerReply> reply_from(const Frame& frame) { return parsed<WorkerReply>(frame, parse_reply); }

std::string describe(const WorkerRequest& request) {
  const auto config_text = [](const Config& config) {
    return fmt::format("{} G={}", kernel_name(config.spec), config.grid);
  };
  return std::visit(
      Overloaded{[](const Hello&) { return std::string("starting"); },
                 [](const CompileKernel& compile) { return "compiling " + kernel_name(compile.spec); },
                 [](const OpenDevice& open) { return fmt::format("opening device {}", open.ordinal); },
                 [](const AdoptKernel& adopt) { return "taking " + kernel_name(adopt.spec); },
                 [](const BeginShape& begin) {
                   return fmt::format("preparing batch {}, context {}", begin.shape.batch, begin.shape.longest_context);
                 },
                 [&](const CheckConfig& check) { return "checking " + config_text(check.config); },
                 [&](const TimeConfigs& time) {
                   return time.configs.size() == 1 ? "timing " + config_text(time.configs.front())
                                                   : fmt::format("timing {} candidates", time.configs.size());
                 }},
      request);
}

}  // namespace v1
}  // namespace leanattn
