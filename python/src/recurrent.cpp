#include "recurrent.hpp"

#include <fmt/format.h>

#include <deque>
#include <tuple>
#include <utility>

#include "engine_object.hpp"
#include "errors.hpp"
#include "leanattn/recurrent.hpp"
#include "names.hpp"
#include "streams.hpp"
#include "tensor.hpp"

namespace leanattn::python {
namespace nb = nanobind;
namespace {

constexpr Name kRecurrences[] = {{"gated_delta", LEANATTN_GATED_DELTA},
                                 {"kda", LEANATTN_KDA},
                                 {"mamba2", LEANATTN_MAMBA2},
                                 {"lightning", LEANATTN_LIGHTNING},
                                 {"gla", LEANATTN_GLA},
                                 {"gdn2", LEANATTN_GDN2},
                                 {"rwkv7", LEANATTN_RWKV7}};
constexpr Name kGateForms[] = {{"given", LEANATTN_GATES_GIVEN},
                               {"softplus", LEANATTN_GATES_SOFTPLUS},
                               {"bounded", LEANATTN_GATES_BOUNDED},
                               {"constant", LEANATTN_GATES_CONSTANT}};

constexpr Name kOutputs[] = {
    {"silu", LEANATTN_OUTPUT_SILU}, {"sigmoid", LEANATTN_OUTPUT_SIGMOID}, {"silu_first", LEANATTN_OUTPUT_SILU_FIRST}};

/// The tensors of one call, which live until its launch is enqueued.
class Tensors {
 public:
  Tensors(CUstream_st* stream) : stream_(stream) {}

  /// A tensor that must be on the device of the first one. Null for None.
  const TensorView* read(nb::handle object, const char* name) {
    if (object.is_none()) return nullptr;
    const TensorView& added = tensors_.emplace_back(object, name, stream_);
    added.require_device(tensors_.front().device());
    return &added;
  }
  /// One of three dimensions, of which each token has [heads, columns] without gaps.
  const TensorView& read_rows(nb::handle object, const char* name, bool written = false) {
    const TensorView& rows = *read(object, name);
    rows.require_rank(3, "[tokens, heads, columns]");
    rows.require_rows(written);
    if (rows.extent(1) > 1 && rows.stride(1) != rows.extent(2))
      bad_value(name, "has gaps between heads of a token; only tokens may be apart");
    return rows;
  }
  /// One of int32 with this many entries, without gaps.
  const std::int32_t* read_numbers(nb::handle object, const char* name, std::int64_t count) {
    const TensorView* const numbers = read(object, name);
    if (numbers == nullptr) return nullptr;
    numbers->require_type(ElementType::int32);
    numbers->require_rank(1, "[requests]");
    numbers->require_extent(0, count, "of the requests");
    numbers->require_contiguous();
    return numbers->data<std::int32_t>();
  }
  /// One of fp32 with this many elements, without gaps.
  const float* read_vector(nb::handle object, const char* name, std::int64_t count) {
    const TensorView* const vector = read(object, name);
    if (vector == nullptr) return nullptr;
    vector->require_type(ElementType::fp32);
    vector->require_contiguous();
    if (vector->elements() != count) bad_value(name, fmt::format("has {} elements, not {}", vector->elements(), count));
    return vector->data<float>();
  }

 private:
  CUstream_st* stream_;
  std::deque<TensorView> tensors_;
};

/// Gates of a token, [tokens, heads] or [tokens, heads, key_dim], with tokens as far apart as the result says.
std::int64_t gate_stride(const TensorView& gates, std::int64_t tokens, std::int64_t of_token) {
  if (gates.rank() < 2) gates.require_rank(2, "[tokens, heads] or [tokens, heads, key_dim]");
  gates.require_extent(0, tokens, "of q");
  gates.require_rows();
  std::int64_t dense = 1;
  for (int i = gates.rank() - 1; i > 0; --i) {
    if (gates.extent(i) > 1 && gates.stride(i) != dense) bad_value(gates.name(), "has gaps inside a token");
    dense *= gates.extent(i);
  }
  if (dense != of_token) bad_value(gates.name(), fmt::format("has {} gates a token, not {}", dense, of_token));
  return gates.launch_stride(0);
}

/// Slots, [requests] or [requests, tokens], and their stride.
const std::int32_t* read_slots(const TensorView& slots, std::int64_t requests, int entries, std::int32_t& stride) {
  slots.require_type(ElementType::int32);
  if (slots.rank() != 1) slots.require_rank(2, "[requests], or [requests, tokens] with snapshots");
  slots.require_extent(0, requests, "of slots");
  if (const std::int64_t columns = slots.rank() == 2 ? slots.extent(1) : 1; columns < entries)
    bad_value(slots.name(), fmt::format("has {} slots a request, and a step stores {} states", columns, entries));
  slots.require_rows();
  stride = slots.rank() == 2 ? static_cast<std::int32_t>(slots.launch_stride(0)) : 1;
  return slots.data<std::int32_t>();
}

/// One tensor whose channels are those of q, k and v, or of v, k and q, or three tensors: what a launch takes of each.
class ConvParts {
 public:
  ConvParts(Tensors& tensors, nb::handle given_parts, const char* name, ElementType type, const char* shape, int rank,
            int channel_dimension, const std::int64_t (&channels)[3], bool values_first) {
    const bool apart = nb::isinstance<nb::tuple>(given_parts) || nb::isinstance<nb::list>(given_parts);
    if (apart && nb::len(given_parts) != 3) bad_value(name, "has not three parts, of q, k and v");
    std::int64_t first[3] = {0, channels[0], channels[0] + channels[1]};
    if (values_first) first[0] = channels[2] + channels[1], first[1] = channels[2], first[2] = 0;
    const std::int64_t all = channels[0] + channels[1] + channels[2];
    const TensorView* packed = apart ? nullptr : tensors.read(given_parts, name);
    for (int i = 0; i < 3; ++i) {
      const TensorView& part = apart ? *tensors.read(given_parts[i], name) : *packed;
      part.require_type(type);
      part.require_rank(rank, shape);
      part.require_extent(channel_dimension, apart ? channels[i] : all, "of the channels of q, k and v");
      const std::int64_t offset = apart ? 0 : first[i] * part.stride(channel_dimension) * bytes_of(type);
      parts_[i] = {&part, part.data<char>() + offset};
    }
  }
  const TensorView& tensor(int part) const { return *parts_[part].tensor; }
  void* data(int part) const { return parts_[part].data; }

 private:
  struct Part {
    const TensorView* tensor;
    char* data;
  };
  Part parts_[3] = {};
};

/// Reads what the short convolution takes. The heads and tokens of `layer` are known.
void bind_convolution(Tensors& tensors, nb::handle weight, nb::handle bias, nb::handle state, nb::handle readers,
                      ElementType type, RecurrentLayer& layer, RecurrentArgs& args) {
  const std::int64_t keys = std::int64_t{layer.qk_heads} * layer.key_dim,
                     channels[] = {keys, keys, std::int64_t{layer.v_heads} * layer.value_dim};
  const bool values_first = layer.recurrence == Recurrence::mamba2;
  const auto read = [&](nb::handle given_parts, const char* name, const char* shape, int rank, int channel_dimension) {
    return ConvParts(tensors, given_parts, name, type, shape, rank, channel_dimension, channels, values_first);
  };
  if (!given(state)) bad_type("conv_state", "is None, and conv_weight is not");
  if (!given(readers)) bad_type("conv_readers", "is None, and conv_weight is not");
  const ConvParts weights = read(weight, "conv_weight", "[channels, width]", 2, 0),
                  states = read(state, "conv_state", "[slots, channels, tokens]", 3, 1);
  leanattn_short_conv* const parts[] = {&args.q_conv, &args.k_conv, &args.v_conv};
  layer.conv_width = weights.tensor(0).extent32(1);
  for (int i = 0; i < 3; ++i) {
    weights.tensor(i).require_contiguous();
    weights.tensor(i).require_extent(1, layer.conv_width, "of conv_weight");
    const TensorView& pool = states.tensor(i);
    pool.require_extent(0, args.slot_count, "of state");
    pool.require_strides(/*written=*/true);
    const std::int64_t least = layer.conv_width - 1 + (layer.snapshots ? layer.tokens - 1 : 0);
    if (pool.extent(2) < least)
      bad_value("conv_state", fmt::format("has {} tokens of each channel, and a step needs {}", pool.extent(2), least));
    parts[i]->weight = weights.data(i), parts[i]->state = states.data(i);
    parts[i]->slot_stride = pool.stride(0), parts[i]->channel_stride = pool.stride(1);
    parts[i]->token_stride = pool.stride(2);
  }
  if (given(bias)) {
    const ConvParts biases = read(bias, "conv_bias", "[channels]", 1, 0);
    for (int i = 0; i < 3; ++i) biases.tensor(i).require_contiguous(), parts[i]->bias = biases.data(i);
  }
  const TensorView& counters = *tensors.read(readers, "conv_readers");
  counters.require_type(ElementType::int32);
  counters.require_contiguous();
  if (counters.elements() < std::int64_t{args.batch} * layer.qk_heads)
    bad_value("conv_readers", fmt::format("has {} elements, fewer than {} requests of {} heads", counters.elements(),
                                          args.batch, layer.qk_heads));
  args.readers = counters.data<std::uint32_t>();
}

/// Reads the ring of each slot, (u, k, w), and which entries of it count. Heads, dims and slots are known.
void bind_ring(Tensors& tensors, nb::handle ring, nb::handle spans, bool of_channels, RecurrentLayer& layer,
               RecurrentArgs& args) {
  if (!given(spans)) bad_type("ring_spans", "is None, and ring is not");
  const bool sequence = nb::isinstance<nb::tuple>(ring) || nb::isinstance<nb::list>(ring);
  if (!sequence || nb::len(ring) != 3) bad_type("ring", "is not (u, k, w)");
  struct Part {
    const char *name, *shape;
    int rank;
    std::int64_t heads, columns;
    float*& data;
    std::int64_t& stride;
  };
  const char* const of_u = "[slots, ring, v_heads, value_dim]";
  const char* const of_k = "[slots, ring, qk_heads, key_dim]";
  const char* const of_w = of_channels ? "[slots, ring, v_heads, key_dim]" : "[slots, ring, v_heads]";
  const Part parts[] = {
      {"ring[0]", of_u, 4, layer.v_heads, layer.value_dim, args.ring_u, args.ring_u_stride},
      {"ring[1]", of_k, 4, layer.qk_heads, layer.key_dim, args.ring_k, args.ring_k_stride},
      {"ring[2]", of_w, of_channels ? 4 : 3, layer.v_heads, layer.key_dim, args.ring_w, args.ring_w_stride}};
  for (int i = 0; i < 3; ++i) {
    const Part& part = parts[i];
    const TensorView& rings = *tensors.read(ring[i], part.name);
    rings.require_type(ElementType::fp32);
    rings.require_rank(part.rank, part.shape);
    rings.require_rows(/*written=*/true);
    if (i == 0) layer.ring = rings.extent32(1);
    const std::int64_t shape[] = {args.slot_count, layer.ring, part.heads, part.columns};
    rings.require_extent(0, args.slot_count, "of state");
    for (std::int64_t d = part.rank - 1, dense = 1; d > 0; --d) {
      const int dimension = static_cast<int>(d);
      rings.require_extent(dimension, shape[d], d == 1 ? "of ring[0]" : "of q, k or v");
      if (rings.extent(dimension) > 1 && rings.stride(dimension) != dense)
        bad_value(part.name, "has gaps inside a slot; only slots may be apart");
      dense *= shape[d];
    }
    part.data = rings.data<float>(), part.stride = rings.launch_stride(0);
  }
  const TensorView& counted = *tensors.read(spans, "ring_spans");
  counted.require_type(ElementType::int32);
  counted.require_rank(2, "[requests, 2]");
  counted.require_extent(0, args.batch, "of slots");
  counted.require_extent(1, 2, "for the first entry that counts and how many do");
  counted.require_contiguous();
  args.ring_spans = counted.data<std::int32_t>();
}

nb::object recurrent(nb::handle q, nb::handle k, nb::handle v, nb::handle state, nb::handle slots, nb::handle kind,
                     nb::handle gates, nb::handle a, nb::handle b, nb::handle a_log, nb::handle dt_bias,
                     nb::handle skip, nb::handle z, nb::handle norm_weight, nb::handle output_gate, nb::handle out,
                     nb::handle out_slots, nb::handle accepted, nb::handle token_offsets, nb::handle max_tokens,
                     nb::handle normalise, nb::handle snapshots, nb::handle first_slot, nb::handle scale,
                     nb::handle norm_eps, nb::handle output_eps, nb::handle lower_bound, nb::handle conv_weight,
                     nb::handle conv_bias, nb::handle conv_state, nb::handle conv_readers, nb::handle keys_first,
                     nb::handle erase, nb::handle write, nb::handle norm_heads, nb::handle ring, nb::handle ring_spans,
                     nb::handle stream, nb::handle engine) {
  const Stream on = find_stream(stream, q);
  Tensors tensors(on.handle);
  RecurrentLayer layer;
  layer.recurrence = static_cast<Recurrence>(number_of(kRecurrences, kind, "kind"));
  if (given(z)) layer.output = static_cast<HeadOutput>(number_of(kOutputs, output_gate, "output_gate"));
  if (given(gates)) layer.gates = static_cast<GateForm>(number_of(kGateForms, gates, "gates"));
  const bool delta = layer.recurrence == Recurrence::gated_delta || layer.recurrence == Recurrence::kda ||
                     layer.recurrence == Recurrence::gdn2;
  layer.normalise = given(normalise) ? bool_of(normalise, "normalise") : delta;
  layer.snapshots = bool_of(snapshots, "snapshots");
  layer.ragged = given(token_offsets);
  RecurrentArgs args = recurrent_args();

  const TensorView& queries = tensors.read_rows(q, "q");
  if (queries.type() != ElementType::fp16) queries.require_type(ElementType::bf16);
  const TensorView& keys = tensors.read_rows(k, "k");
  const TensorView& values = tensors.read_rows(v, "v");
  const std::int64_t tokens = queries.extent(0);
  for (const TensorView* rows : {&keys, &values}) {
    rows->require_type(queries.type());
    rows->require_extent(0, tokens, "of q");
  }
  for (const int dimension : {1, 2}) keys.require_extent(dimension, queries.extent(dimension), "of q");
  layer.dtype = queries.type() == ElementType::fp16 ? DataType::fp16 : DataType::bf16;
  layer.qk_heads = queries.extent32(1), layer.key_dim = queries.extent32(2);
  layer.v_heads = values.extent32(1), layer.value_dim = values.extent32(2);
  args.q = queries.data(), args.k = keys.data(), args.v = values.data();
  args.q_stride = queries.launch_stride(0), args.k_stride = keys.launch_stride(0);
  args.v_stride = values.launch_stride(0);

  if (!given(slots)) bad_type("slots", "is None");
  const TensorView& of_requests = *tensors.read(slots, "slots");
  if (of_requests.rank() < 1) of_requests.require_rank(1, "[requests]");
  args.batch = of_requests.extent32(0, 0);
  if (layer.ragged) {
    if (!given(max_tokens)) bad_value("max_tokens", "is None, and token_offsets lie on the GPU");
    layer.tokens = int_of(max_tokens, "max_tokens");
    args.token_offsets = tensors.read_numbers(token_offsets, "token_offsets", args.batch + 1);
  } else if (args.batch > 0) {
    layer.tokens = static_cast<int>(tokens / args.batch);
    if (tokens % args.batch != 0 || layer.tokens < 1)
      bad_value("q", fmt::format("has {} tokens for {} requests", tokens, args.batch));
    if (given(max_tokens) && int_of(max_tokens, "max_tokens") != layer.tokens)
      bad_value("max_tokens", fmt::format("is not {}, which each request has without token_offsets", layer.tokens));
  }
  const int entries = layer.snapshots ? layer.tokens : 1;
  args.slots = read_slots(of_requests, args.batch, entries, args.slots_stride);
  if (const TensorView* const to = tensors.read(out_slots, "out_slots"); to != nullptr)
    args.out_slots = read_slots(*to, args.batch, entries, args.out_slots_stride);
  args.accepted = tensors.read_numbers(accepted, "accepted", args.batch);

  const TensorView& pool = *tensors.read(state, "state");
  layer.keys_first = bool_of(keys_first, "keys_first");
  pool.require_rank(4, "[slots, v_heads, value_dim, key_dim]");
  if (pool.type() != ElementType::bf16) pool.require_type(ElementType::fp32);
  layer.state = pool.type() == ElementType::bf16 ? StateFormat::bf16 : StateFormat::fp32;
  pool.require_rows(/*written=*/true);
  std::int64_t shape[] = {0, layer.v_heads, layer.value_dim, layer.key_dim};
  if (layer.keys_first) std::swap(shape[2], shape[3]);
  for (std::int64_t i = 3, dense = 1; i > 0; --i) {
    const int dimension = static_cast<int>(i);
    pool.require_extent(dimension, shape[i], "of v and q");
    if (pool.extent(dimension) > 1 && pool.stride(dimension) != dense)
      bad_value("state", "has gaps inside a slot; only slots may be apart");
    dense *= shape[i];
  }
  args.state = pool.data();
  args.slot_count = pool.extent32(0);
  args.state_stride = pool.launch_stride(0);
  args.first_slot = int_of(first_slot, "first_slot");

  const bool channels = layer.recurrence != Recurrence::gated_delta && layer.recurrence != Recurrence::mamba2 &&
                        layer.recurrence != Recurrence::lightning;
  const std::int64_t of_token = std::int64_t{layer.v_heads} * (channels ? layer.key_dim : 1);
  const bool fp32_gates =
      layer.gates == GateForm::given || (layer.recurrence == Recurrence::gla && layer.gates == GateForm::usual);
  const ElementType gate_type = fp32_gates ? ElementType::fp32 : queries.type();
  if (const TensorView* const decays = tensors.read(a, "a"); decays != nullptr) {
    decays->require_type(gate_type);
    args.a = decays->data(), args.a_stride = gate_stride(*decays, tokens, of_token);
  }
  if (const TensorView* const weights = tensors.read(b, "b"); weights != nullptr) {
    weights->require_type(gate_type);
    args.b = weights->data(), args.b_stride = gate_stride(*weights, tokens, layer.v_heads);
  }
  const bool by_rows = layer.recurrence == Recurrence::gdn2;
  for (const auto& [object, name, columns, data, stride] :
       {std::tuple(erase, "erase", layer.key_dim, &args.erase, &args.erase_stride),
        std::tuple(write, "write", by_rows ? layer.value_dim : layer.key_dim, &args.write, &args.write_stride)}) {
    if (!given(object)) continue;
    const TensorView& rows = tensors.read_rows(object, name);
    rows.require_type(queries.type());
    rows.require_extent(0, tokens, "of q");
    rows.require_extent(1, layer.v_heads, "of v");
    rows.require_extent(2, columns, by_rows ? "of k or v" : "of k");
    *data = rows.data(), *stride = rows.launch_stride(0);
  }
  args.a_log = tensors.read_vector(a_log, "a_log", layer.v_heads);
  args.dt_bias = tensors.read_vector(dt_bias, "dt_bias", of_token);
  args.skip = tensors.read_vector(skip, "skip", layer.v_heads);
  if (given(z)) {
    const TensorView& gate = tensors.read_rows(z, "z");
    gate.require_type(queries.type());
    for (int i = 0; i < 3; ++i) gate.require_extent(i, values.extent(i), "of v");
    args.z = gate.data(), args.z_stride = gate.launch_stride(0);
  }
  layer.norm_heads = int_of(norm_heads, "norm_heads");
  const int heads_of_weights = layer.output == HeadOutput::silu_first ? layer.v_heads : 1;
  args.norm_weight = tensors.read_vector(norm_weight, "norm_weight", std::int64_t{heads_of_weights} * layer.value_dim);
  if (given(output_eps)) args.output_eps = static_cast<float>(float_of(output_eps, "output_eps"));
  if (given(scale)) args.scale = static_cast<float>(float_of(scale, "scale"));
  if (given(norm_eps)) args.norm_eps = static_cast<float>(float_of(norm_eps, "norm_eps"));
  if (given(lower_bound)) args.lower_bound = static_cast<float>(float_of(lower_bound, "lower_bound"));

  if (given(conv_weight))
    bind_convolution(tensors, conv_weight, conv_bias, conv_state, conv_readers, queries.type(), layer, args);
  else if (given(conv_bias) || given(conv_state) || given(conv_readers))
    bad_value("conv_weight", "is None, and other parts of a convolution are given");

  if (given(ring)) {
    bind_ring(tensors, ring, ring_spans, channels, layer, args);
  } else if (given(ring_spans)) {
    bad_value("ring", "is None, and ring_spans is not");
  }

  const nb::object result =
      given(out) ? nb::borrow(out) : empty(q, nb::make_tuple(tokens, layer.v_heads, layer.value_dim), false);
  const TensorView& outputs = tensors.read_rows(result, "out", /*written=*/true);
  outputs.require_type(queries.type());
  for (int i = 0; i < 3; ++i) outputs.require_extent(i, values.extent(i), "of v");
  args.o = outputs.data(), args.o_stride = outputs.launch_stride(0);

  EngineObject& object = find_engine(engine, queries.device());
  const auto launched = [&]() -> Result<void> {
    const nb::gil_scoped_release without_gil;
    if (args.batch == 0) return {};
    const auto plan = RecurrentPlan::make(object.engine, layer, args.batch, on.handle);
    if (!plan) return tl::unexpected<Error>(plan.error());
    if (auto ok = plan->launch(args, on.handle); !ok) return ok;
    return on.synchronise ? object.workspaces.wait(on.handle) : Result<void>{};
  }();
  unwrap(launched);
  return result;
}

}  // namespace

void bind_recurrent(nb::module_& module) {
  module.def(
      "recurrent", &recurrent, nb::arg("q").none(), nb::arg("k").none(), nb::arg("v").none(), nb::arg("state").none(),
      nb::arg("slots").none(), nb::kw_only(), nb::arg("kind").none() = "gated_delta", nb::arg("gates") = nb::none(),
      nb::arg("a") = nb::none(), nb::arg("b") = nb::none(), nb::arg("a_log") = nb::none(),
      nb::arg("dt_bias") = nb::none(), nb::arg("skip") = nb::none(), nb::arg("z") = nb::none(),
      nb::arg("norm_weight") = nb::none(), nb::arg("output_gate").none() = "silu", nb::arg("out") = nb::none(),
      nb::arg("out_slots") = nb::none(), nb::arg("accepted") = nb::none(), nb::arg("token_offsets") = nb::none(),
      nb::arg("max_tokens") = nb::none(), nb::arg("normalise") = nb::none(), nb::arg("snapshots").none() = false,
      nb::arg("first_slot").none() = 0, nb::arg("scale") = nb::none(), nb::arg("norm_eps") = nb::none(),
      nb::arg("output_eps") = nb::none(), nb::arg("lower_bound") = nb::none(), nb::arg("conv_weight") = nb::none(),
      nb::arg("conv_bias") = nb::none(), nb::arg("conv_state") = nb::none(), nb::arg("conv_readers") = nb::none(),
      nb::arg("keys_first").none() = false, nb::arg("erase") = nb::none(), nb::arg("write") = nb::none(),
      nb::arg("norm_heads").none() = 1, nb::arg("ring") = nb::none(), nb::arg("ring_spans") = nb::none(),
      nb::arg("stream") = nb::none(), nb::arg("engine") = nb::none(),
      nb::sig("def recurrent(q: typing.Any, k: typing.Any, v: typing.Any, state: typing.Any, slots: typing.Any, *, "
              "kind: str = 'gated_delta', gates: str | None = None, a: typing.Any = None, b: typing.Any = None, "
              "a_log: typing.Any = None, dt_bias: typing.Any = None, skip: typing.Any = None, "
              "z: typing.Any = None, norm_weight: typing.Any = None, output_gate: str = 'silu', "
              "out: typing.Any = None, out_slots: typing.Any = None, accepted: typing.Any = None, "
              "token_offsets: typing.Any = None, max_tokens: int | None = None, normalise: bool | None = None, "
              "snapshots: bool = False, first_slot: int = 0, scale: float | None = None, "
              "norm_eps: float | None = None, output_eps: float | None = None, lower_bound: float | None = None, "
              "conv_weight: typing.Any = None, conv_bias: typing.Any = None, conv_state: typing.Any = None, "
              "conv_readers: typing.Any = None, keys_first: bool = False, "
              "erase: typing.Any = None, write: typing.Any = None, norm_heads: int = 1, "
              "ring: typing.Any = None, ring_spans: typing.Any = None, stream: typing.Any = None, "
              "engine: Engine | None = None) -> typing.Any"),
      R"(A decode step of a layer that keeps a recurrent state instead of KV (linear attention), in one launch.

q, k       [tokens, qk_heads, key_dim], bf16 or fp16. The tokens of a request follow each other. Tokens may lie any
           multiple of 16 bytes apart, so that q, k and v may be parts of one tensor. mamba2: C and B
v          [tokens, v_heads, value_dim]; mamba2: x
state      [slots, v_heads, value_dim, key_dim], fp32 or bf16, changed in place. Slots may be any multiple of 16 bytes
           apart
slots      [requests], int32: the slot of each request. A slot below first_slot or beyond the pool is a null slot, which
           is neither read nor written, and whose output is zero. With snapshots [requests, tokens]: where the state after
           each token goes
kind       gated_delta, kda, mamba2, lightning, gla, gdn2 or rwkv7
gates      given, softplus, bounded or constant; default: softplus, for lightning constant, for gla given, for rwkv7
           bounded
a, b       [tokens, v_heads], for kda, gla, gdn2 and rwkv7 a is [tokens, v_heads, key_dim]: what decays and weights are made of, in
           the type of q; given gates: logarithms of factors, and weights, in fp32
a_log      [v_heads], fp32; dt_bias: one token's a, fp32; skip: D of mamba2, [v_heads], fp32
z          [tokens, v_heads, value_dim], in the type of q: the output of each head is divided by its root mean square (with
           output_eps, 1e-6), multiplied by norm_weight, [value_dim] in fp32, and by output_gate of z, silu or sigmoid.
           silu_first, as Mamba-2: it is multiplied by silu of z first, then divided by the root mean square over
           norm_heads neighbouring heads, and norm_weight is [v_heads, value_dim]
out        a tensor for the result
out_slots  as slots: where states go instead of back
accepted   with snapshots: [requests], int32, tokens of the step before that were accepted: the state of a request is
           read from entry accepted - 1 of its slots; default: 1 each
token_offsets  [requests + 1], int32: where each request's tokens begin, each having up to max_tokens; default: all
           requests have equally many
normalise  whether q and k are L2-normalised, with norm_eps (1e-6); default: for gated_delta, kda and gdn2
first_slot 1 where slot 0 is a null slot
scale      of q; default: key_dim ** -0.5, for mamba2, lightning and rwkv7 1
lower_bound  of bounded gates; default: -5
erase, write  gdn2: [tokens, v_heads, key_dim] and [tokens, v_heads, value_dim], in the type of q: what is taken out and
           what comes in is multiplied with their sigmoid, or with them where gates are given. rwkv7: vectors, both
           [tokens, v_heads, key_dim]: what the state had at erase before it decayed is added at write
conv_weight  [channels, width], in the type of q: q, k and v go through a short convolution first, with SiLU. The channels
           are those of q, k and v, in this order; mamba2: of v, k and q (x, B and C). Or three tensors, of q, k and v
conv_bias  [channels], likewise; default: none
conv_state [slots, channels, tokens], likewise, with any strides, changed in place: the last width - 1 inputs of each
           channel, with snapshots max_tokens - 1 more, in the slot of a request's first entry
conv_readers  [at least requests * qk_heads], int32, zero before the first call and after each; calls that may run at the
           same time have tensors of their own
keys_first whether state is [slots, v_heads, key_dim, value_dim]
ring       (u, k, w), fp32, changed in place: [slots, ring, v_heads, value_dim], [slots, ring, qk_heads, key_dim] and
           [slots, ring, v_heads], for kda, gla and gdn2 [slots, ring, v_heads, key_dim]. What tokens do to a state goes to
           the ring of its slot and is replayed, and the state is seldom stored. Up to 16 entries, and at least those of two
           steps. Not for rwkv7, nor with snapshots, out_slots, or a convolution of several tokens
ring_spans [requests, 2], int32: the first entry of a request's ring that counts, and how many do. The caller sets them before
           each step, on the GPU
stream     as of decode()
Returns [tokens, v_heads, value_dim] in the type of q.
Raises what decode() raises. The first call of a layer compiles its kernel, so make one before a graph is captured.)");
}

}  // namespace leanattn::python
