// decode.cpp -- leanattn.decode.
#include "decode.hpp"

#include <fmt/format.h>
#include <nanobind/eval.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "decode_arguments.hpp"
#include "engine_object.hpp"
#include "errors.hpp"
#include "group_object.hpp"
#include "names.hpp"
#include "page_rows.hpp"
#include "streams.hpp"

namespace leanattn::python {
namespace nb = nanobind;
namespace {

/// The memory for a launch of the plan: the given workspace, or the engine's own for the stream. That serves, too,
/// where a plan that was looked up anew needs more than the given one has. A graph is for long, so its memory is what
/// the caller chose, or an error.
Result<void*> memory_of(EngineObject& object, const WorkspaceObject* given, const leanattn_plan* plan,
                        CUstream_st* stream) {
  if (given == nullptr) return object.workspaces.get(plan, stream);
  const std::int64_t needed = leanattn_plan_workspace_bytes(plan);
  if (given->bytes() >= needed) [[likely]]
    return given->data();
  const auto capturing = object.workspaces.capturing(stream);
  if (!capturing) return tl::unexpected(capturing.error());
  if (!*capturing) return object.workspaces.get(plan, stream);
  return fail(ErrorCode::invalid_argument,
              fmt::format("workspace has {} bytes, but this launch needs {}", given->bytes(), needed),
              "Make it as large as the largest Plan.workspace_bytes of its launches.");
}

/// A page table in compressed rows, and the most pages of a request.
struct Rows {
  std::optional<PageRows> arrays;
  std::int64_t max_pages = 0;
};

/// Enqueues the conversion of the rows into memory that stays as long as the launch behind it needs it: a tensor would
/// belong to the framework's current stream, and be freed before either has run.
Result<Workspaces::Scratch> make_page_table(EngineObject& object, DecodeArguments& arguments, Rows& rows,
                                            CUstream_st* stream) {
  auto memory = object.workspaces.scratch(rows.arrays->bytes_for(rows.max_pages), stream);
  if (!memory) return memory;
  rows.arrays->set_results(memory->data, rows.max_pages);
  arguments.set_page_table(rows.arrays->page_table_data(), rows.arrays->context_lengths_data());
  if (auto ok = rows.arrays->launch(object.page_rows); !ok) return tl::unexpected(ok.error());
  return memory;
}

/// `group` may be null. Rows are made into a page table first.
Result<void> enqueue(EngineObject& object, DecodeArguments& arguments, const WorkspaceObject* given, Rows& rows,
                     const Group* group, CUstream_st* stream) {
  const auto problem = arguments.problem();
  const auto shape = arguments.shape();
  const leanattn_plan* handle = nullptr;
  const auto status = group == nullptr ? leanattn_engine_plan(object.engine.get(), &problem, &shape, stream, &handle)
                                       : leanattn_engine_plan_group(object.engine.get(), &problem, &shape, group->get(),
                                                                    stream, &handle);
  if (status != LEANATTN_OK) return tl::unexpected(detail::last_error(status));
  const auto workspace = memory_of(object, given, handle, stream);
  if (!workspace) return tl::unexpected(workspace.error());
  Result<Workspaces::Scratch> page_table;  // until the launch that reads it is enqueued
  if (rows.arrays) [[unlikely]] {
    page_table = make_page_table(object, arguments, rows, stream);
    if (!page_table) return tl::unexpected(page_table.error());
  }
  if (const auto launched = leanattn_plan_launch(handle, &arguments.launch(), *workspace, stream);
      launched != LEANATTN_OK)
    return tl::unexpected(detail::last_error(launched));
  return {};
}

Result<void> launch(EngineObject& object, DecodeArguments& arguments, const WorkspaceObject* given, Rows& rows,
                    const Group* group, const Stream& stream) {
  auto done = enqueue(object, arguments, given, rows, group, stream.handle);
  object.workspaces.enqueued(stream.handle);
  return done && stream.synchronise ? object.workspaces.wait(stream.handle) : done;
}

/// The arrays of page tables in compressed rows, which come as a tuple of three in place of the page table. The page
/// size is that of the cache. Returns the context for the look-up where the caller gave none: requests are taken to be
/// equally long.
std::int64_t read_rows(Rows& rows, const DecodeObjects& objects, CUstream_st* stream) {
  const nb::tuple arrays = nb::borrow<nb::tuple>(objects.page_table);
  if (arrays.size() != 3)
    bad_value("page_table", fmt::format("is a tuple of {}", arrays.size()),
              "Give a tensor, or the three tensors (indptr, indices, last_page_len).");
  if (given(objects.context_lengths))
    bad_value("context_lengths", "is given, but page_table is (indptr, indices, last_page_len)",
              "These already say how long contexts are: give None.");
  if (bool_of(objects.pdl, "pdl"))
    bad_value("pdl", "is True, but page_table is (indptr, indices, last_page_len)",
              "The launch could read the page table before it is made: call page_table() earlier, or leave pdl out.");
  const TensorView k(objects.k_cache, "k_cache", stream);
  const bool head_major = number_of(kCacheLayouts, objects.kv_layout, "kv_layout") == LEANATTN_KV_CONTIGUOUS;
  k.require_rank(4, head_major ? "[pages, kv_heads, page_size, head_dim]" : "[pages, page_size, kv_heads, head_dim]");
  const std::int64_t page_size = k.extent32(head_major ? 2 : 1);
  const PageRows& read = rows.arrays.emplace(arrays[0], arrays[1], arrays[2], page_size, stream);
  // No request has more pages than the pool, or than all requests together.
  rows.max_pages = std::min<std::int64_t>(read.pages(), k.extent32(0));
  return typical_context((read.pages() * page_size - 1) / std::max<std::int64_t>(read.batch(), 1) + 1);
}

nb::object decode(DecodeObjects objects) {
  const Stream on = find_stream(objects.stream, objects.q);
  const GroupObject* const member = find_group(objects.group);
  const std::shared_ptr<Group> of_rank = member != nullptr ? member->get() : nullptr;
  Rows rows;
  nb::object typical;
  if (PyTuple_Check(objects.page_table.ptr())) [[unlikely]] {
    typical = nb::int_(read_rows(rows, objects, on.handle));
    objects.page_table = nb::none();
    if (!given(objects.longest_context)) objects.longest_context = typical;
    objects.rows = &*rows.arrays;
    objects.max_pages = rows.max_pages;
  }
  if (member != nullptr) objects.ranks = member->size();
  DecodeArguments arguments(objects, on.handle);
  // Without query tokens no engine is needed, so none is opened; one that is given is checked.
  const bool opens_engine = member == nullptr && !given(objects.engine);
  EngineObject* const object =
      arguments.is_empty() && opens_engine ? nullptr : &find_engine(member, objects.engine, arguments.device());
  const WorkspaceObject* const memory = find_workspace(objects.workspace, arguments.device());
  const nb::object result =
      objects.out.is_none() ? empty(objects.q, arguments.out_shape(), false) : nb::borrow(objects.out);
  arguments.set_out(result, "out");
  nb::object lse;
  if (arguments.wants_lse()) {
    lse = objects.out_lse.is_none() ? empty(objects.q, arguments.lse_shape(), true) : nb::borrow(objects.out_lse);
    arguments.set_lse(lse, "out_lse");
  }
  if (!arguments.is_empty()) {
    const auto launched = [&] {
      const nb::gil_scoped_release without_gil;  // because the first launch of a kernel compiles it
      return launch(*object, arguments, memory, rows, of_rank.get(), on);
    }();
    unwrap(launched);
  }
  return arguments.wants_lse() ? nb::make_tuple(result, lse) : result;
}

/// The parameters of decode(), in the order of the members of DecodeObjects.
constexpr std::string_view kParameters =
    "q: typing.Any, k_cache: typing.Any, v_cache: typing.Any, context_lengths: typing.Any, "
    "page_table: typing.Any = None, *, v_head_dim: int | None = None, scale: float | None = None, "
    "out: typing.Any = None, return_lse: bool = False, out_lse: typing.Any = None, kv_layout: str = 'HND', "
    "kv_dtype: str | None = None, k_scale: typing.Any = None, v_scale: typing.Any = None, "
    "k_block_scales: typing.Any = None, v_block_scales: typing.Any = None, "
    "max_q_len: int | None = None, q_offsets: typing.Any = None, kv_offsets: typing.Any = None, mask: str | None = "
    "None, "
    "tree_mask: typing.Any = None, spans: typing.Any = None, window: int = 0, sink_tokens: int = 0, sink_logits: "
    "typing.Any = None, "
    "soft_cap: float = 0.0, alibi_slopes: typing.Any = None, score: str | None = None, k_new: typing.Any = None, "
    "v_new: typing.Any = None, rope_table: typing.Any = None, rope: str | None = None, selection: typing.Any = None, "
    "selected_counts: typing.Any = None, selection_block: int | None = None, second_k_cache: typing.Any = None, "
    "second_v_cache: typing.Any = None, second_page_table: typing.Any = None, second_lengths: typing.Any = None, "
    "batch_invariant: bool = False, pdl: bool = False, typical_batch: int | None = None, "
    "max_batch: int | None = None, longest_context: int | None = None, total_context: int | None = None, "
    "shape: leanattn.Shape | None = None, "
    "group: Group | None = None, full_context_lengths: typing.Any = None, context_starts: typing.Any = None, "
    "context_interleave: int = 0, replicate_output: bool = False, stream: typing.Any = None, "
    "engine: Engine | None = None, workspace: Workspace | None = None";

/// So many parameters does a part of it have.
constexpr std::size_t count_parameters(std::string_view part) {
  return static_cast<std::size_t>(std::count(part.begin(), part.end(), ':'));
}
constexpr std::size_t kCount = count_parameters(kParameters);
constexpr std::size_t kPositional = count_parameters(kParameters.substr(0, kParameters.find('*')));
constexpr std::size_t kRequired = count_parameters(kParameters.substr(0, kParameters.find('='))) - 1;

struct Parameter {
  std::string name, type, usual;  // the default; empty: none
};
const std::vector<Parameter>& parameters() {
  static const auto all = [] {
    std::vector<Parameter> made;
    for (std::string_view rest = kParameters; !rest.empty();) {
      const std::string_view one = rest.substr(0, rest.find(", "));
      rest.remove_prefix(std::min(one.size() + 2, rest.size()));
      const std::size_t colon = one.find(": "), equals = std::min(one.find(" = "), one.size());
      if (colon == one.npos) continue;  // the star
      made.push_back({std::string(one.substr(0, colon)), std::string(one.substr(colon + 2, equals - colon - 2)),
                      std::string(one.substr(std::min(equals + 3, one.size())))});
    }
    return made;
  }();
  return all;
}
nb::object default_of(std::size_t index) { return nb::eval(nb::str(parameters()[index].usual.c_str()), nb::dict()); }
auto argument(std::size_t index) { return nb::arg(parameters()[index].name.c_str()).none(); }
auto optional(std::size_t index) { return argument(index) = default_of(index); }

constexpr const char* kDocumentation =
    R"(One decode step: softmax(scale * q k^T) v for the last tokens of every request, in one launch.

Tensors are CUDA tensors of any framework that speaks DLPack (PyTorch, CuPy, JAX). None of them is copied. The call
enqueues one launch on the framework's current stream and returns at once. The first call for a kernel compiles it, or
takes it from the cache. The result is `out`, or a new tensor of q's framework; with return_lse it is a pair of this and
the log-sum-exp. Of a batch of 0 requests it is empty, and nothing is launched.

q                [batch, q_heads, head_dim], or with several query tokens [batch, q_len, q_heads, head_dim]; bf16 or fp16
k_cache, v_cache [batch, kv_heads, context, head_dim]; kv_layout "NHD": [batch, context, kv_heads, head_dim]. With
                 page_table pools of pages: [pages, kv_heads, page_size, head_dim], [pages, page_size, kv_heads, head_dim]
context_lengths  [batch] int32: tokens of each request, its query tokens included; read when the kernel runs
page_table       [batch, max_pages] int32: the numbers of each request's pages in the pool; or, with None as
                 context_lengths, a tuple (indptr, indices, last_page_len), of which page_table() makes both
v_head_dim       for latent attention, where v_cache is None: values are the first v_head_dim columns of k_cache, which may
                 lack the dimension kv_heads

scale            the softmax scale; None: 1 / sqrt(head_dim), but not for latent attention
out, out_lse     tensors to write to; out_lse is [batch, q_heads] or [batch, q_len, q_heads], fp32
return_lse       also returns the log-sum-exp of every query row, a natural logarithm
kv_dtype         what a uint8 cache holds: "fp8_e4m3", "fp8_e5m2", "int8", "int4" or "nvfp4" (head_dim / 2 bytes a row;
                 docs/how-to/caches.md), or "fp8_ds_mla" and "fp8_ds_v4" (latent rows of 656 and of 584 bytes
                 in place of head_dim columns; docs/how-to/latent.md); not needed for other caches
k_scale, v_scale the scales of a one-byte cache, fp32: [1], [kv_heads], or [batch or pages, kv_heads, tokens]; of an int4
                 cache the last, with zero points in them. Where they lie among the rows, as views of the same memory,
                 rows of k_cache and v_cache are multiples of 4 bytes apart, of 16 bytes otherwise
k_block_scales, v_block_scales
                 of a cache of "nvfp4" the scales of 16 columns each, fp8 e4m3 or uint8, shaped as k_cache and v_cache with
                 head_dim / 16 in place of the columns, and both with the same strides
q_offsets        [batch + 1] int32: the query tokens of request r are q[q_offsets[r]:q_offsets[r + 1]]
kv_offsets       [batch + 1] int32, with None as context_lengths: K and V are no cache, but [tokens, kv_heads, head_dim],
                 of which request r has k_cache[kv_offsets[r]:kv_offsets[r + 1]]; for self attention they may be q_offsets
max_q_len        with q_offsets: the most query tokens of a request
mask             which of a request's query tokens each sees: "causal" (the default), "tree" (by tree_mask), "full"
tree_mask        [query tokens] uint32 or int32: bit j says that the token sees its request's query token j
spans            with q_offsets [query tokens, 2] int32: the index in its context of the first token of the span that a
                 query token is in, and of the one behind the last; both 0: in none. Tokens of a span see each other both
                 ways, beside what the causal mask and the window show (images of a prompt)
window           tokens that a query token sees, itself the last of them; with mask "full" as many to either side; 0: all
sink_tokens      first tokens of the context that stay visible beside the window
sink_logits      [q_heads] fp32: logits that count in the denominator of the softmax
soft_cap         scores become cap * tanh(score / cap); 0: unchanged
alibi_slopes     [q_heads] fp32: slope * (key index - query index) is added to scores
score            an expression (docs/features.md) of score, q_index, kv_index and head that replaces scores
k_new, v_new     shaped as q, with kv_heads: the kernel writes them into the cache as the query tokens' keys and values;
                 for latent attention k_new alone, in q's type; in rows of 656 bytes it is quantised
rope_table       [positions, rope_dim] fp32, cosines and then sines, by which q and k_new are rotated; a row for every
                 position that the cache, or with a group the caches of all ranks together, have room for
rope             which dims are rotated together: "half_split" (the default) or "interleaved"
selection        [batch, kv_heads or 1, entries] int32, or with several query tokens [batch, q_len, kv_heads or 1, entries]:
                 the blocks that each query token sees, in any order; -1 for a hole. With page_table they are blocks of
                 the request's context, and without it of the pool, where context_lengths may be None
selected_counts  [batch] or [batch, q_len] int32: how many entries of a query token's lists count
selection_block  tokens of a block: 1 (the default), 16, 32, 64 or 128
second_k_cache, second_v_cache
                 with a selection, pools of pages shaped and strided as k_cache and v_cache, of which query tokens see the
                 first tokens beside what they select (docs/how-to/sparse.md)
second_page_table
                 [batch, pages of a request] int32: the numbers of each request's pages in these pools
second_lengths   [batch] or [batch, q_len] int32: how many tokens each query token sees there
batch_invariant  the bits of a request depend on neither the other requests nor the load of the GPU
pdl              the launch may overlap the kernel before it; docs/api.md has the contract

typical_batch, max_batch, longest_context, total_context
                 the shape for which a configuration is looked up: requests of a typical step and most requests of any
                 step, tokens of the longest request and of all together. They decide how fast the launch is, never
                 whether it is right. Where they are left out, the batch is q's, and requests are taken to fill the cache
shape            a leanattn.Shape to look up instead: of a step with prefill it also says the mix of chunks and of
                 requests with one query token. Without it only the number of query tokens is known, by q
group            this rank's Group, where several GPUs hold a part of every context each: the caches and context_lengths
                 are those of this rank, q has all query heads, and of `out` and `out_lse` this rank writes the heads
                 Group.heads(q_heads) only. All ranks make the same calls in the same order
full_context_lengths
                 [batch] int32: tokens of the whole contexts, over all ranks; needed where something depends on
                 positions: a window, ALiBi, a score expression, new tokens, a rotation, or several query tokens and a
                 causal mask
context_starts   [batch] int32: where in the whole context this rank's tokens begin; needed for the same, and only then,
                 where ranks hold contiguous parts
context_interleave
                 ranks hold units of so many tokens in turn, a power of two up to 256; 0: contiguous parts
replicate_output every rank writes the result of all query heads
stream           a CUDA stream, or its handle, to use instead of the framework's current one. An `out` or `out_lse` that is
                 made here still belongs to the current one: keep it until the work of `stream` has ended, or give it
engine           an Engine to use instead of the one that is made for the GPU, or that of the group
workspace        a Workspace to use instead of the one that the engine keeps for the stream or the captured graph; launches
                 that share one must follow one another. A launch that needs more than it has uses the engine's, but in
                 a capture is refused

While a CUDA graph is captured, the same call records the launch. Make it once before the capture, with the same shapes,
because a kernel that is not loaded yet raises leanattn.NotPrepared. The graph stays right when lengths and page tables
change.

Raises a TypeError or ValueError that names the argument, or another leanattn.Error, with code and hint. Nothing has
been launched then.)";

template <std::size_t>
using Handle = nb::handle;
template <std::size_t... All, std::size_t... Required, std::size_t... Named>
void bind_table(nb::module_& module, std::index_sequence<All...>, std::index_sequence<Required...>,
                std::index_sequence<Named...>) {
  module.def(
      "decode", [](Handle<All>... values) { return decode({values...}); }, argument(Required)..., optional(kRequired),
      nb::kw_only(), optional(kPositional + Named)...,
      nb::sig(fmt::format("def decode({}) -> typing.Any", kParameters).c_str()), kDocumentation);
}

}  // namespace

void bind_decode(nb::module_& module) {
  static_assert(kPositional == kRequired + 1);
  bind_table(module, std::make_index_sequence<kCount>(), std::make_index_sequence<kRequired>(),
             std::make_index_sequence<kCount - kPositional>());
  nb::list options;  // for the operators of PyTorch
  for (std::size_t i = kPositional; i < kCount; ++i)
    options.append(nb::make_tuple(parameters()[i].name, parameters()[i].type, default_of(i)));
  module.attr("_decode_options") = options;
}

}  // namespace leanattn::python
