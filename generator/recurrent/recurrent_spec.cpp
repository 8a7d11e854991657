#include "generator/recurrent/recurrent_spec.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "generator/integers.hpp"
#include "generator/kernel_source.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

/// Registers of a thread for the state, q, k, the decay, and the next token's. It has 255, or its share of an SM's, and
/// needs others beside them.
constexpr int kMostHeldRegisters = 176, kOtherRegisters = 56;

/// Bytes of shared memory that a kernel may name.
constexpr int kMostSharedBytes = 48 << 10;

/// What a CTA has in shared memory: what comes out of a convolution in fp32, what goes into it, sums of the output, and
/// entries of a ring.
int shared_bytes(const RecurrentSpec& spec) {
  const RecurrentProblem& problem = spec.problem;
  const int warps = problem.norm_heads * problem.value_dim / spec.tunables.warp_rows,
            sums = problem.output_gate == OutputGate::none ? 0 : 8 * warps,
            factors = static_cast<int>(gates_of_token(problem)) / problem.v_heads,
            entries = problem.ring == 0
                          ? 0
                          : 4 * problem.ring * (problem.key_dim + rows_of_cta(spec.tunables) + factors) + 32;
  if (problem.conv_width == 0) return sums + entries;
  const int channels = 2 * problem.key_dim + round_up(rows_of_cta(spec.tunables), 4);
  return sums + entries + channels * (4 * problem.tokens + 2 * (problem.conv_width - 1 + problem.tokens)) + 16;
}

/// Registers of a thread for the state while it also has what goes into its channels of a convolution.
int convolving_registers(const RecurrentSpec& spec) {
  const RecurrentProblem& problem = spec.problem;
  if (problem.conv_width == 0) return 0;
  const int state = spec.tunables.warp_rows * problem.key_dim / 32 * bytes_of(problem.state) / 4,
            threads = 32 * spec.tunables.warps,
            channels = 2 * divide_up(problem.key_dim, threads) + divide_up(rows_of_cta(spec.tunables), threads);
  return state + channels * (2 * problem.conv_width + problem.tokens);
}

/// Every GPU from sm_90 on takes clusters of 8 CTAs. Those of data centres take 16 if asked to, which is for heads that
/// are normalised together.
int most_ctas_of_cluster(const RecurrentSpec& spec) {
  if (spec.arch.major < 9) return 1;
  return spec.problem.norm_heads > 1 && spec.arch.major <= 10 ? 16 : kPortableCtasOfCluster;
}

int held_registers(const RecurrentSpec& spec) {
  const int columns = spec.problem.key_dim / spec.tunables.row_lanes,
            rows = spec.tunables.warp_rows * spec.tunables.row_lanes / 32;
  const RecurrentUpdate& update = update_of(spec.problem.kind);
  const bool by_channels = update.erasure == Erasure::channels;
  const int vectors = (update.decay == Decay::channel ? 1 : 0) + (by_channels ? 1 : 0) +
                      (update.erasure == Erasure::vectors ? 2 : 0),
            next = spec.problem.tokens > 1 || spec.problem.ring > 0 ? 1 + vectors : 0;
  // 16 bytes of a state that lies [K, V] are of as many rows, so that more of them are at work at the same time.
  const int of_rows = (spec.problem.keys_first ? 1 : 0) + (by_channels ? 3 : 0);
  return std::max(columns * (rows + 2 + vectors + next) + rows * of_rows, convolving_registers(spec));
}

void add_constants(SourceText& source, const RecurrentSpec& spec) {
  const RecurrentProblem& problem = spec.problem;
  const RecurrentTunables& tunables = spec.tunables;
  const RecurrentUpdate& update = update_of(problem.kind);
  source.text += "//// specialisation\n";
  source.number("kGroup", problem.v_heads / problem.qk_heads, "heads of v for each of q and k");
  source.constant("int", "kKeyDim", fmt::format("{}, kValueDim = {}", problem.key_dim, problem.value_dim),
                  "K and V: columns and rows of a head's state");
  source.number("kOutputGate", static_cast<int>(problem.output_gate),
                "the output is normalised, and gated: silu, sigmoid; silu first");
  source.number("kNormHeads", problem.norm_heads, "heads that are normalised together");
  if (ctas_of_cluster(spec) > 1) source.define("LEAN_CLUSTER");
  source.number("kStateBytes", bytes_of(problem.state), "of an element of the state in memory");
  source.flag("kKeysFirst", problem.keys_first, "a state lies [K, V] in memory, not [V, K]");
  source.number("kTokens", problem.tokens, "most tokens of a request");
  source.flag("kRagged", problem.ragged, "each request has its own number of tokens");
  source.flag("kSnapshots", problem.snapshots, "the state after each token is stored");
  source.number("kRing", problem.ring, "entries of a slot's ring, if it has one");
  if (problem.conv_width > 0) source.define("LEAN_CONVOLVES");
  if (problem.ring > 0) source.define("LEAN_REPLAYS");
  if (problem.conv_width > 0 || problem.ring > 0 || erases_of_token(problem) > 0) source.define("LEAN_LONG_ARGUMENTS");
  source.text += "// how a token changes the state\n";
  source.number("kDecay", static_cast<int>(update.decay), "factors of the decay: none, one, one for each channel");
  source.number(
      "kErasure", static_cast<int>(update.erasure),
      "what an update takes out: nothing, what the state has at k, the same by channels, or by other vectors");
  source.number("kWeight", static_cast<int>(update.weight), "what an update is weighed with");
  source.flag("kSkip", update.skip, "D v is added to the output");
  source.number("kGates", static_cast<int>(problem.gates), "where factors and weights come from");
  source.number("kConvWidth", problem.conv_width, "tokens of the convolution that q, k and v go through, if any");
  source.flag("kNormalises", problem.normalises, "q and k are L2-normalised");
  source.text += "// tunables\n";
  source.number("kWarps", tunables.warps, "of a CTA");
  source.number("kWarpRows", tunables.warp_rows, "rows of V of a warp");
  source.number("kRowLanes", tunables.row_lanes, "lanes over which the columns of a row lie");
  source.number("kCtasPerSm", tunables.ctas_per_sm, "that registers must allow");
  source.text += fmt::format("typedef struct {} Element;   // of q, k, v and o\n\n",
                             problem.dtype == DType::bf16 ? "Bf16" : "Fp16");
}

/// A kernel's constants and modules.
void add_all(SourceText& source, const RecurrentSpec& spec) {
  add_constants(source, spec);
  source.add({"recurrent/arguments.cuh", "prelude.cuh"});
  if (spec.problem.dtype == DType::bf16 || spec.problem.state == StateType::bf16) source.add({"attend/bf16.cuh"});
  if (spec.problem.dtype == DType::fp16) source.add({"attend/fp16.cuh"});
  source.add({"recurrent/state.cuh", "recurrent/gates.cuh", "recurrent/token.cuh", "recurrent/output.cuh"});
  if (spec.problem.conv_width > 0) source.add({"recurrent/convolution.cuh"});
  if (spec.problem.ring > 0) source.add({"recurrent/replay.cuh"});
  source.add_entry("recurrent/step.cuh", kernel_name(spec));
}

std::string header_comment(const RecurrentSpec& spec) {
  return fmt::format(
      "// {}\n"
      "// A step of {} for {}.\n"
      "// {} warps x {} rows of V, {} lanes a row; {} CTA{} share a head, {} per SM at least.\n"
      "// Launch: {} x {} x requests CTAs of {} threads.\n"
      "// Generated by leanattn; the problem as JSON: {}\n\n",
      kernel_name(spec), describe(spec.problem), to_string(spec.arch), spec.tunables.warps, spec.tunables.warp_rows,
      spec.tunables.row_lanes, ctas_of_head(spec), ctas_of_head(spec) == 1 ? "" : "s", spec.tunables.ctas_per_sm,
      ctas_of_head(spec), spec.problem.v_heads, 32 * spec.tunables.warps, to_json(spec.problem));
}

}  // namespace

int rows_of_cta(const RecurrentTunables& tunables) { return tunables.warps * tunables.warp_rows; }
int ctas_of_head(const RecurrentSpec& spec) { return spec.problem.value_dim / rows_of_cta(spec.tunables); }

int ctas_of_cluster(const RecurrentSpec& spec) {
  return spec.problem.output_gate == OutputGate::none ? 1 : spec.problem.norm_heads * ctas_of_head(spec);
}

Result<void> validate(const RecurrentSpec& spec) {
  if (auto ok = validate(spec.problem); !ok) return ok;
  const RecurrentTunables& tunables = spec.tunables;
  if (tunables.warps < 1 || tunables.warps > 16)
    return fail(ErrorCode::invalid_argument, fmt::format("{} warps", tunables.warps), "choose 1 to 16");
  if (tunables.ctas_per_sm < 1 || 32 * tunables.warps * tunables.ctas_per_sm > 2048)
    return fail(ErrorCode::invalid_argument,
                fmt::format("{} CTAs per SM of {} warps", tunables.ctas_per_sm, tunables.warps),
                "an SM has at most 64 warps");
  const int lanes = tunables.row_lanes, vector = 16 / bytes_of(spec.problem.state),
            chunk = spec.problem.keys_first ? 4 : vector;
  if (lanes < 4 || lanes > 32 || (lanes & (lanes - 1)) != 0 || spec.problem.key_dim % (lanes * chunk) != 0)
    return fail(
        ErrorCode::unsupported,
        fmt::format("{} lanes a row of {} {} columns", lanes, spec.problem.key_dim, to_string(spec.problem.state)),
        fmt::format("choose 4, 8, 16 or 32, each with a multiple of {} columns", chunk));
  const int rows = tunables.warp_rows, lane_rows = rows * lanes / 32;
  if (rows < 1 || rows * lanes % 32 != 0 || lane_rows > lanes)
    return fail(ErrorCode::unsupported, fmt::format("{} rows of a warp with {} lanes each", rows, lanes),
                fmt::format("choose a multiple of {}, at most {}", 32 / lanes, 32));
  if (spec.problem.keys_first && lane_rows % vector != 0)
    return fail(
        ErrorCode::unsupported,
        fmt::format("{} rows of a lane, of a {} state that lies [K, V]", lane_rows, to_string(spec.problem.state)),
        fmt::format("choose multiples of {}, which are 16 bytes", vector));
  if (spec.problem.value_dim % rows_of_cta(tunables) != 0)
    return fail(ErrorCode::unsupported,
                fmt::format("{} warps of {} rows for {} rows of V", tunables.warps, rows, spec.problem.value_dim),
                "the rows of a CTA divide V");
  if (const int ctas = ctas_of_cluster(spec), fit = most_ctas_of_cluster(spec); ctas > fit)
    return fail(
        ErrorCode::unsupported,
        fmt::format("an output that is normalised by {} CTAs together on {}", ctas, to_string(spec.arch)),
        fit == 1 ? "before sm_90 a CTA has all of these rows" : fmt::format("they are a cluster of up to {}", fit));
  if (const int bytes = shared_bytes(spec); bytes > kMostSharedBytes)
    return fail(ErrorCode::unsupported, fmt::format("{} bytes of shared memory for a convolution or a ring", bytes),
                "choose fewer rows of a CTA, fewer tokens, or a shorter ring");
  const int share = 65536 / (32 * tunables.warps * tunables.ctas_per_sm),
            most = std::min(kMostHeldRegisters, share - kOtherRegisters);
  if (const int held = held_registers(spec); held > most)
    return fail(ErrorCode::unsupported, fmt::format("{} registers a thread for the state and a token", held),
                fmt::format("choose fewer rows or more lanes a row: {} fit beside the rest", most));
  return {};
}

std::string kernel_name(const RecurrentSpec& spec) {
  const RecurrentProblem& problem = spec.problem;
  const RecurrentTunables& tunables = spec.tunables;
  std::string arch = to_string(spec.arch);
  std::erase(arch, '_');
  const std::string output = problem.output_gate == OutputGate::none
                                 ? ""
                                 : fmt::format("_{}{}", to_string(problem.output_gate),
                                               problem.norm_heads > 1 ? std::to_string(problem.norm_heads) : "");
  const std::string convolution = problem.conv_width == 0 ? "" : fmt::format("_c{}", problem.conv_width);
  const std::string ring = problem.ring == 0 ? "" : fmt::format("_r{}", problem.ring);
  return fmt::format("recurrent_{}_{}_{}_{}_{}_{}h{}x{}_k{}_v{}{}{}_t{}{}{}_w{}x{}_l{}_o{}", arch,
                     to_string(problem.kind), to_string(problem.gates), to_string(problem.dtype),
                     to_string(problem.state), problem.normalises ? "norm_" : "", problem.qk_heads, problem.v_heads,
                     problem.key_dim, problem.value_dim, (problem.keys_first ? "_kv" : "") + convolution, output,
                     problem.tokens, problem.ragged ? "_ragged" : "", problem.snapshots ? "_snap" : ring,
                     tunables.warps, tunables.warp_rows, tunables.row_lanes, tunables.ctas_per_sm);
}

Result<EmittedRecurrent> emit(const RecurrentSpec& spec) {
  if (auto ok = validate(spec); !ok) return tl::unexpected(ok.error());
  EmittedRecurrent kernel{
      .spec = spec, .source = header_comment(spec), .entry = kernel_name(spec), .threads = 32 * spec.tunables.warps};
  SourceText source;
  add_all(source, spec);
  kernel.source += source.pruned(spec.arch);
  return kernel;
}

std::string kernel_revision(const RecurrentSpec& spec) {
  SourceText source{.hashes = &module_hashes()};
  add_all(source, spec);
  return code_hash(source.text);
}

std::vector<RecurrentTunables> recurrent_search_space(Arch arch, const RecurrentProblem& problem) {
  std::vector<RecurrentTunables> space;
  for (const int lanes : {4, 8, 16, 32}) {
    for (const int warps : {1, 2, 4, 8, 16}) {
      for (const int rows : {1, 2, 4, 8, 16, 32}) {
        const RecurrentTunables tunables{.warps = warps, .warp_rows = rows, .row_lanes = lanes};
        if (validate(RecurrentSpec{.arch = arch, .problem = problem, .tunables = tunables})) space.push_back(tunables);
      }
    }
  }
  return space;
}

}  // namespace v1
}  // namespace leanattn
