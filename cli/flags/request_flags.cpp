#include "cli/flags/request_flags.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <limits>

#include "cli/flags/sizes.hpp"

namespace leanattn {
inline namespace v1 {

std::array<CLI::Option*, 2> add_request_flags(CLI::App& command, RequestFlags& flags) {
  CLI::Option* lengths = command
                             .add_option("--lengths", flags.lengths,
                                         "The context length of each request of a ragged batch, such as 128k,2x1k,0")
                             ->type_name("LIST")
                             ->excludes(command.get_option("--batch"))
                             ->excludes(command.get_option("--context"))
                             ->excludes(command.get_option("--max-batch"));
  CLI::Option* query_lengths =
      command
          .add_option("--q-lens", flags.query_lengths,
                      "With --ragged-q and --lengths, the query tokens of each request, such as 1,2x512,1; default: "
                      "drawn at random")
          ->type_name("LIST")
          ->needs(lengths);
  return {lengths, query_lengths};
}

Result<StepRequests> parse_requests(const DecodeProblem& problem, const RequestFlags& flags) {
  StepRequests requests;
  const auto lengths = parse_length_list("--lengths", flags.lengths, 0, std::numeric_limits<int>::max());
  if (!lengths) return tl::unexpected(lengths.error());
  requests.context_lengths.assign(lengths->begin(), lengths->end());
  if (flags.query_lengths.empty()) return requests;
  if (!problem.features.ragged_q)
    return fail(ErrorCode::invalid_argument, fmt::format("--q-lens {} without --ragged-q", flags.query_lengths),
                "Give --ragged-q, and --q-len, the most that a request has.");
  const auto tokens = parse_length_list("--q-lens", flags.query_lengths, 0, problem.features.q_len);
  if (!tokens) return tl::unexpected(tokens.error());
  if (tokens->size() != lengths->size())
    return fail(ErrorCode::invalid_argument,
                fmt::format("--q-lens has {} numbers for {} requests", tokens->size(), lengths->size()),
                "Give one for each of --lengths.");
  requests.query_tokens.assign(tokens->begin(), tokens->end());
  return requests;
}

Result<StepRequests> resolve_requests(const RequestFlags& flags, Workload& workload) {
  if (flags.lengths.empty()) return StepRequests{};
  Result<StepRequests> requests = parse_requests(workload.problem, flags);
  if (!requests) return requests;
  const std::vector<int>& lengths = requests->context_lengths;
  if (std::all_of(lengths.begin(), lengths.end(), [](int length) { return length == 0; }))
    return fail(ErrorCode::invalid_argument, fmt::format("--lengths {} has no token to read", flags.lengths));
  workload.shapes = {shape_of(workload.problem, {lengths, requests->query_tokens})};
  if (const Result<void> valid = validate(workload.problem, workload.shapes.front()); !valid)
    return tl::unexpected(valid.error());
  return requests;
}

}  // namespace v1
}  // namespace leanattn
