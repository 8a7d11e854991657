#include "runtime/engine/recurrent_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "runtime/cuda/compiler.hpp"
#include "runtime/cuda/current_context.hpp"
#include "runtime/cuda/device.hpp"
#include "runtime/cuda/driver.hpp"
#include "runtime/engine/argument_checks.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr int kMostRequests = 65535;  // of a grid's third dimension
constexpr float kUsualEps = 1e-6F, kUsualBound = -5;

/// Whether a layer reads or writes what a pointer points to.
enum class Use { none, optional, needed };

struct RecurrentPointer {
  const char* name;
  const void* data;
  Use use;
  unsigned alignment;  ///< in bytes
};

Result<void> check_recurrent_pointer(const RecurrentPointer& pointer) {
  if (pointer.data == nullptr && pointer.use != Use::needed) return {};
  if (pointer.use == Use::none)
    return detail::invalid(fmt::format("{} is given, and the layer has no use for it", pointer.name), "Leave it null.");
  return detail::check_pointer(pointer.name, pointer.data, pointer.alignment);
}

/// An array of rows, a row for each token, request or slot.
struct RecurrentRows {
  RecurrentPointer pointer;
  const char* row_name;
  std::int64_t columns;
  int element_bytes;
  const char* stride_name;
  std::int64_t stride;
  bool written = false;
};

Result<void> check_recurrent_rows(const RecurrentRows& rows, std::int64_t count) {
  if (auto ok = check_recurrent_pointer(rows.pointer); !ok || rows.pointer.data == nullptr) return ok;
  return detail::check_strides({.name = rows.row_name,
                                .columns = rows.columns,
                                .element_bytes = rows.element_bytes,
                                .written = rows.written,
                                .alignment = rows.pointer.alignment},
                               {{rows.stride_name, rows.stride, count}});
}

Use needed_if(bool used) { return used ? Use::needed : Use::none; }
Use optional_if(bool used) { return used ? Use::optional : Use::none; }

/// A part of the short convolution, of so many channels, with dense strides where none are given.
LeanShortConv with_defaults(const leanattn_short_conv& conv, std::int64_t channels, std::int64_t tokens) {
  using detail::or_dense, detail::stride_product;
  LeanShortConv bound{conv.weight, conv.bias, conv.state, 0, 0, 0};
  bound.token_stride = or_dense(conv.token_stride, 1);
  bound.channel_stride = or_dense(conv.channel_stride, stride_product(tokens, bound.token_stride));
  bound.slot_stride = or_dense(conv.slot_stride, channels * tokens);
  return bound;
}

/// The arguments with all defaults filled in.
LeanRecurrentArgs with_defaults(const RecurrentProblem& problem, const leanattn_recurrent_args& args) {
  using detail::or_dense;
  const RecurrentUpdate& update = update_of(problem.kind);
  const std::int64_t keys = std::int64_t{problem.qk_heads} * problem.key_dim,
                     values = std::int64_t{problem.v_heads} * problem.value_dim;
  const int entries = problem.snapshots ? problem.tokens : 1;
  const float usual_scale = update.scales ? 1 / std::sqrt(static_cast<float>(problem.key_dim)) : 1;
  LeanRecurrentArgs bound{};
  bound.slots = args.slots, bound.out_slots = args.out_slots, bound.accepted = args.accepted;
  bound.token_offsets = args.token_offsets;
  bound.q = args.q, bound.k = args.k, bound.v = args.v, bound.a = args.a, bound.b = args.b;
  bound.a_log = args.a_log, bound.dt_bias = args.dt_bias, bound.skip = args.skip;
  bound.z = args.z, bound.norm_weight = args.norm_weight;
  bound.state = static_cast<char*>(args.state), bound.o = args.o;
  bound.q_stride = or_dense(args.q_stride, keys), bound.k_stride = or_dense(args.k_stride, keys);
  bound.v_stride = or_dense(args.v_stride, values), bound.o_stride = or_dense(args.o_stride, values);
  bound.z_stride = or_dense(args.z_stride, values);
  bound.a_stride = or_dense(args.a_stride, gates_of_token(problem));
  bound.b_stride = or_dense(args.b_stride, problem.v_heads);
  bound.erase = args.erase, bound.write = args.write;
  bound.erase_stride = or_dense(args.erase_stride, erases_of_token(problem));
  bound.write_stride = or_dense(args.write_stride, writes_of_token(problem));
  bound.state_stride = or_dense(args.state_stride, values * problem.key_dim);
  bound.slots_stride = args.slots_stride != 0 ? args.slots_stride : entries;
  bound.out_slots_stride = args.out_slots_stride != 0 ? args.out_slots_stride : entries;
  bound.slot_count = args.slot_count, bound.first_slot = args.first_slot;
  bound.scale = args.scale != 0 ? args.scale : usual_scale;
  bound.norm_eps = args.norm_eps != 0 ? args.norm_eps : kUsualEps;
  bound.lower_bound = args.lower_bound != 0 ? args.lower_bound : kUsualBound;
  bound.output_eps = args.output_eps != 0 ? args.output_eps : kUsualEps;
  bound.ring_spans = args.ring_spans;
  bound.ring_u = args.ring_u, bound.ring_k = args.ring_k, bound.ring_w = args.ring_w;
  bound.ring_u_stride = or_dense(args.ring_u_stride, problem.ring * values);
  bound.ring_k_stride = or_dense(args.ring_k_stride, problem.ring * keys);
  bound.ring_w_stride = or_dense(args.ring_w_stride, problem.ring * gates_of_token(problem));
  if (problem.conv_width == 0) return bound;
  bound.conv[0] = with_defaults(args.q_conv, keys, conv_tokens(problem));
  bound.conv[1] = with_defaults(args.k_conv, keys, conv_tokens(problem));
  bound.conv[2] = with_defaults(args.v_conv, values, conv_tokens(problem));
  bound.readers = args.readers;
  return bound;
}

Result<void> check_convolution(const RecurrentProblem& problem, const leanattn_recurrent_args& args,
                               const LeanRecurrentArgs& bound) {
  const bool used = problem.conv_width > 0;
  if (auto ok = check_recurrent_pointer({"readers", args.readers, needed_if(used), 4}); !ok) return ok;
  struct Part {
    const char *weight, *bias, *state, *slot_stride, *channel_stride, *token_stride;
    const leanattn_short_conv& given;
    int channels;
  };
  const int keys = problem.qk_heads * problem.key_dim, values = problem.v_heads * problem.value_dim;
#define PART(name) \
#name ".weight", #name ".bias", #name ".state", #name ".slot_stride", #name ".channel_stride", #name ".token_stride"
  const Part parts[] = {
      {PART(q_conv), args.q_conv, keys}, {PART(k_conv), args.k_conv, keys}, {PART(v_conv), args.v_conv, values}};
#undef PART
  for (std::size_t i = 0; i < std::size(parts); ++i) {
    const Part& part = parts[i];
    for (const RecurrentPointer& pointer : {RecurrentPointer{part.weight, part.given.weight, needed_if(used), 2},
                                            RecurrentPointer{part.bias, part.given.bias, optional_if(used), 2},
                                            RecurrentPointer{part.state, part.given.state, needed_if(used), 2}}) {
      if (auto ok = check_recurrent_pointer(pointer); !ok) return ok;
    }
    const LeanShortConv& conv = bound.conv[i];
    if (!used) continue;
    if (auto ok = detail::check_strides({"an element", 1, 2, /*written=*/true, /*alignment=*/2},
                                        {{part.token_stride, conv.token_stride, conv_tokens(problem)},
                                         {part.channel_stride, conv.channel_stride, part.channels},
                                         {part.slot_stride, conv.slot_stride, args.slot_count}});
        !ok)
      return ok;
  }
  return {};
}

}  // namespace

Result<LeanRecurrentArgs> bind_recurrent(const RecurrentProblem& problem, const leanattn_recurrent_args& args) {
  if (args.batch < 0 || args.batch > kMostRequests)
    return detail::invalid(fmt::format("batch is {}", args.batch), fmt::format("Give 0 to {}.", kMostRequests));
  const LeanRecurrentArgs bound = with_defaults(problem, args);
  if (args.batch == 0) return bound;  // frameworks have no memory for what is empty
  if (args.reserved != 0)
    return detail::invalid(fmt::format("recurrent_args.reserved is {}", args.reserved),
                           "Leave it 0; leanattn_recurrent_args_init does.");
  if (args.slot_count < 1)
    return detail::invalid(fmt::format("slot_count is {}", args.slot_count), "Give the number of slots of the pool.");
  if (args.first_slot < 0)
    return detail::invalid(fmt::format("first_slot is {}", args.first_slot),
                           "Give 0, or 1 where slot 0 is a null slot.");

  constexpr auto kVector = detail::kVectorBytes;
  const RecurrentUpdate& update = update_of(problem.kind);
  const bool given = problem.gates == Gates::given, constant = problem.gates == Gates::constant;
  const std::int64_t keys = std::int64_t{problem.qk_heads} * problem.key_dim,
                     values = std::int64_t{problem.v_heads} * problem.value_dim;
  const int entries = problem.snapshots ? problem.tokens : 1;
  const unsigned gate_bytes = given ? 4 : 2;
  const int gate_size = static_cast<int>(gate_bytes);
  const Use corrects = needed_if(update.erasure >= Erasure::channels);
  const bool by_rows = update.erasure == Erasure::channels;
  const unsigned key_bytes = problem.conv_width > 0 ? 2 : kVector;
  const Use gated = needed_if(problem.output_gate != OutputGate::none);
  const Use a = needed_if(!constant), b = needed_if(has_weights(problem));
  const RecurrentRows of_tokens[] = {
      {{"q", args.q, Use::needed, key_bytes}, "qk_heads * key_dim", keys, 2, "q_stride", bound.q_stride},
      {{"k", args.k, Use::needed, key_bytes}, "qk_heads * key_dim", keys, 2, "k_stride", bound.k_stride},
      {{"v", args.v, Use::needed, 2}, "v_heads * value_dim", values, 2, "v_stride", bound.v_stride},
      {{"o", args.o, Use::needed, 2}, "v_heads * value_dim", values, 2, "o_stride", bound.o_stride, true},
      {{"z", args.z, gated, 2}, "v_heads * value_dim", values, 2, "z_stride", bound.z_stride},
      {{"a", args.a, a, gate_bytes}, "a token's gates", gates_of_token(problem), gate_size, "a_stride", bound.a_stride},
      {{"erase", args.erase, corrects, kVector},
       "a token's erase",
       erases_of_token(problem),
       2,
       "erase_stride",
       bound.erase_stride},
      {{"write", args.write, corrects, by_rows ? 2 : kVector},
       "a token's write",
       writes_of_token(problem),
       2,
       "write_stride",
       bound.write_stride},
      {{"b", args.b, b, gate_bytes}, "v_heads", problem.v_heads, gate_size, "b_stride", bound.b_stride}};
  for (const RecurrentRows& rows : of_tokens) {
    if (auto ok = check_recurrent_rows(rows, std::int64_t{args.batch} * problem.tokens); !ok)
      return tl::unexpected(ok.error());
  }
  const RecurrentRows of_requests[] = {
      {{"slots", args.slots, Use::needed, 4}, "a request's slots", entries, 4, "slots_stride", bound.slots_stride},
      {{"out_slots", args.out_slots, optional_if(problem.ring == 0), 4},
       "a request's slots",
       entries,
       4,
       "out_slots_stride",
       bound.out_slots_stride}};
  for (const RecurrentRows& rows : of_requests) {
    if (auto ok = check_recurrent_rows(rows, args.batch); !ok) return tl::unexpected(ok.error());
  }
  const Use replays = needed_if(problem.ring > 0);
  const std::int64_t factors = gates_of_token(problem);
  const unsigned factor_bytes = factors > problem.v_heads ? kVector : 4;
  const RecurrentRows of_slots[] = {{{"state", args.state, Use::needed, kVector},
                                     "v_heads * value_dim * key_dim",
                                     values * problem.key_dim,
                                     bytes_of(problem.state),
                                     "state_stride",
                                     bound.state_stride,
                                     true},
                                    {{"ring_u", args.ring_u, replays, kVector},
                                     "ring * v_heads * value_dim",
                                     problem.ring * values,
                                     4,
                                     "ring_u_stride",
                                     bound.ring_u_stride,
                                     true},
                                    {{"ring_k", args.ring_k, replays, kVector},
                                     "ring * qk_heads * key_dim",
                                     problem.ring * keys,
                                     4,
                                     "ring_k_stride",
                                     bound.ring_k_stride,
                                     true},
                                    {{"ring_w", args.ring_w, replays, factor_bytes},
                                     "an entry's factors in a ring",
                                     problem.ring * factors,
                                     4,
                                     "ring_w_stride",
                                     bound.ring_w_stride,
                                     true}};
  for (const RecurrentRows& rows : of_slots) {
    if (auto ok = check_recurrent_rows(rows, args.slot_count); !ok) return tl::unexpected(ok.error());
  }
  for (const RecurrentPointer& pointer :
       {RecurrentPointer{"a_log", args.a_log, needed_if(!given), 4},
        RecurrentPointer{"dt_bias", args.dt_bias, optional_if(!given && !constant), 4},
        RecurrentPointer{"skip", args.skip, needed_if(update.skip), 4},
        RecurrentPointer{"norm_weight", args.norm_weight, gated, 4},
        RecurrentPointer{"accepted", args.accepted, optional_if(problem.snapshots), 4},
        RecurrentPointer{"ring_spans", args.ring_spans, replays, 8},
        RecurrentPointer{"token_offsets", args.token_offsets, needed_if(problem.ragged), 4}}) {
    if (auto ok = check_recurrent_pointer(pointer); !ok) return tl::unexpected(ok.error());
  }
  if (auto ok = check_convolution(problem, args, bound); !ok) return tl::unexpected(ok.error());
  return bound;
}

Result<void> check_slots(const RecurrentProblem& problem, const LeanRecurrentArgs& args, int batch,
                         CUstream_st* stream) {
  const auto requests = static_cast<std::size_t>(batch);
  const std::size_t entries = problem.snapshots ? static_cast<std::size_t>(problem.tokens) : 1;
  std::vector<int> slots, out_slots, accepted(requests, 1), offsets, spans;
  const auto read = [&](const int* from, std::size_t count, std::vector<int>& to) -> Result<void> {
    if (from == nullptr) return {};
    to.resize(count);
    return copy_to_host_async(to.data(), from, static_cast<std::int64_t>(count * sizeof(int)), stream);
  };
  const auto with_stride = [&](int stride) { return (requests - 1) * static_cast<std::size_t>(stride) + entries; };
  for (const auto& [from, count, to] : {std::tuple{args.slots, with_stride(args.slots_stride), &slots},
                                        {args.out_slots, with_stride(args.out_slots_stride), &out_slots},
                                        {args.accepted, requests, &accepted},
                                        {args.token_offsets, requests + 1, &offsets},
                                        {args.ring_spans, 2 * requests, &spans}}) {
    if (auto ok = read(from, count, *to); !ok) return ok;
  }
  std::vector<unsigned> readers;
  if (problem.conv_width > 0) {
    readers.resize(requests * static_cast<std::size_t>(problem.qk_heads));
    const auto bytes = static_cast<std::int64_t>(readers.size() * sizeof(unsigned));
    if (auto ok = copy_to_host_async(readers.data(), args.readers, bytes, stream); !ok) return ok;
  }
  const auto api = driver();
  if (!api) return tl::unexpected(api.error());
  if (auto ok = leanattn::check((*api)->cuStreamSynchronize(stream), "cuStreamSynchronize", ErrorCode::launch_failed);
      !ok)
    return ok;

  const auto counted = std::find_if(readers.begin(), readers.end(), [](unsigned count) { return count != 0; });
  if (counted != readers.end())
    return detail::invalid(fmt::format("readers[{}] is {} before a launch", counted - readers.begin(), *counted),
                           "Zero them once; launches that may run at the same time have readers of their own.");

  struct Use {
    std::size_t request;
    bool written;
  };
  std::unordered_map<int, Use> uses;
  std::optional<Error> clash;
  const auto use = [&](std::size_t request, int slot, bool written) {
    if (slot < args.first_slot || slot >= args.slot_count) return;
    const auto [found, first] = uses.try_emplace(slot, Use{request, written});
    if (found->second.request == request || clash) return static_cast<void>(found->second.written |= written);
    if (written || found->second.written)
      clash = Error{ErrorCode::invalid_argument,
                    fmt::format("requests {} and {} both use slot {}, and one of them writes it", found->second.request,
                                request, slot),
                    "Each request of a step has slots of its own; those that pad a batch have null slots.",
                    {}};
  };
  for (std::size_t request = 0; request < requests; ++request) {
    const std::size_t tokens =
        offsets.empty()
            ? static_cast<std::size_t>(problem.tokens)
            : static_cast<std::size_t>(std::clamp(offsets[request + 1] - offsets[request], 0, problem.tokens));
    if (tokens == 0) continue;
    const std::size_t first = request * static_cast<std::size_t>(args.slots_stride),
                      first_out = request * static_cast<std::size_t>(args.out_slots_stride);
    const int start =
        slots[first + static_cast<std::size_t>(
                          std::clamp<std::int64_t>(accepted[request], 1, static_cast<std::int64_t>(entries)) - 1)];
    if (start < args.first_slot || start >= args.slot_count) continue;
    if (problem.ring > 0) {
      const int first_entry = spans[2 * request], count = spans[2 * request + 1];
      if (first_entry < 0 || first_entry >= problem.ring || count < 0 || count + problem.tokens > problem.ring)
        return detail::invalid(fmt::format("ring_spans[{}] is {}, {}", request, first_entry, count),
                               fmt::format("The first entry is 0 to {}, and up to {} count.", problem.ring - 1,
                                           problem.ring - problem.tokens));
    }
    use(request, start, !problem.snapshots && out_slots.empty());
    if (problem.conv_width > 0) use(request, slots[first], out_slots.empty());
    for (std::size_t t = 0; t < (problem.snapshots ? tokens : out_slots.empty() ? 0 : 1); ++t)
      use(request, out_slots.empty() ? slots[first + t] : out_slots[first_out + t], true);
  }
  if (clash) return tl::unexpected(*std::move(clash));
  return {};
}

Result<void> RecurrentPlanCore::launch(const leanattn_recurrent_args& args, CUstream_st* stream) const {
  const auto bound = bind_recurrent(kernel_.spec().problem, args);
  if (!bound) [[unlikely]]
    return tl::unexpected(bound.error());
  const CurrentContext scope(context_);
  if (!scope.entered()) [[unlikely]]
    return scope.entered();
  if (is_capturing_ && args.batch > 0) [[unlikely]] {
    const auto capturing = stream == nullptr ? Result<bool>(false) : is_capturing_(stream);
    if (!capturing) return tl::unexpected(capturing.error());
    if (auto ok = *capturing ? Result<void>() : check_slots(kernel_.spec().problem, *bound, args.batch, stream); !ok)
      return ok;
  }
  return kernel_.launch(*bound, args.batch, stream);
}

Result<const RecurrentPlanCore*> RecurrentPlans::get(const DeviceFacts& device, const Request& request,
                                                     const WinnerTable& winners, std::uint64_t generation) {
  const RecurrentProblem& problem = request.problem;
  const std::lock_guard lock(mutex_);
  auto known = std::find_if(answers_.begin(), answers_.end(), [&](const auto& of) { return of.first == problem; });
  const Answer before = known == answers_.end() ? Answer{} : known->second[request.batch];
  if (before.plan != nullptr && before.generation == generation) return before.plan;
  if (auto ok = validate(problem); !ok) return tl::unexpected(ok.error());
  if (request.batch < 1)
    return detail::invalid(fmt::format("batch is {}", request.batch), "Give about how many requests steps will have.");
  if (std::exchange(generation_, generation) != generation) failed_.clear();
  auto plan = first_of(recurrent_launch_order(device, problem, request.batch, winners.recurrent_winners(problem)),
                       request.capturing);
  // A stream that is being captured cannot wait for the kernel of a new winner. The plan of before is as right.
  if (!plan && plan.error().code == ErrorCode::not_prepared && before.plan != nullptr) return before.plan;
  if (!plan) return plan;
  if (known == answers_.end()) known = answers_.insert(answers_.end(), {problem, {}});
  known->second[request.batch] = {*plan, generation};
  return plan;
}

Result<const RecurrentPlanCore*> RecurrentPlans::first_of(std::span<const RecurrentChoice> order, bool capturing) {
  Result<const RecurrentPlanCore*> plan = nullptr;
  for (const RecurrentChoice& choice : order) {
    plan = load(choice.spec, capturing);
    if (plan || !is_about_the_kernel(plan.error().code)) break;
    failed_.emplace(kernel_name(choice.spec), plan.error());
  }
  return plan;
}

Result<const RecurrentPlanCore*> RecurrentPlans::load(const RecurrentSpec& spec, bool capturing) {
  const std::string name = kernel_name(spec);
  if (const auto found = plans_.find(name); found != plans_.end()) return found->second.get();
  if (const auto failed = failed_.find(name); failed != failed_.end()) return tl::unexpected(failed->second);
  if (capturing)
    return fail(ErrorCode::not_prepared, fmt::format("{} is not loaded yet, and the stream is being captured", name),
                "Make the plan before the stream capture begins.");
  const CurrentContext scope(context_);
  if (!scope.entered()) return tl::unexpected(scope.entered().error());
  auto kernel = RecurrentKernel::prepare(spec, cubins_);
  if (!kernel) return tl::unexpected(kernel.error());
  auto plan = std::make_unique<RecurrentPlanCore>(*std::move(kernel), context_, is_capturing_);
  return plans_.emplace(name, std::move(plan)).first->second.get();
}

}  // namespace v1
}  // namespace leanattn
