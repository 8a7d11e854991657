// merge.cpp -- leanattn.merge_partials.
#include <fmt/format.h>

#include <deque>

#include "decode.hpp"
#include "engine_object.hpp"
#include "errors.hpp"
#include "names.hpp"
#include "streams.hpp"
#include "tensor.hpp"

namespace leanattn::python {
namespace nb = nanobind;
namespace {

nb::object shape_of(const TensorView& tensor) {
  nb::list shape;
  for (int i = 0; i < tensor.rank(); ++i) shape.append(tensor.extent(i));
  return nb::tuple(shape);
}

/// Reads one of the two sequences of parts, which must be contiguous and have one shape.
void read_parts(std::deque<TensorView>& parts, nb::handle sequence, const char* name, CUstream_st* stream) {
  if (!PySequence_Check(sequence.ptr()) || nb::hasattr(sequence, "__dlpack__"))
    bad_type(name, "is not a sequence of tensors");
  for (const nb::handle part : nb::iter(sequence)) {
    const TensorView& added = parts.emplace_back(part, name, stream);
    added.require_device(parts.front().device());
    added.require_type(parts.front().type());
    added.require_rank(parts.front().rank(), "that of the first part");
    for (int i = 0; i < added.rank(); ++i) added.require_extent(i, parts.front().extent(i), "of the first part");
    added.require_contiguous();
  }
  if (parts.empty() || parts.size() > LEANATTN_MERGE_PARTS)
    bad_value(name, fmt::format("has {} parts, not 1 to {}", parts.size(), LEANATTN_MERGE_PARTS));
}

nb::object merge(nb::handle o_parts, nb::handle lse_parts, nb::handle out, nb::handle out_lse, nb::handle return_lse,
                 nb::handle stream, nb::handle engine) {
  if (!PySequence_Check(o_parts.ptr()) || PySequence_Size(o_parts.ptr()) < 1) {
    PyErr_Clear();
    bad_type("o_parts", "is not a sequence of tensors");
  }
  const nb::object first = nb::steal(PySequence_GetItem(o_parts.ptr(), 0));
  const Stream on = find_stream(stream, first);
  std::deque<TensorView> parts, lses;
  read_parts(parts, o_parts, "o_parts", on.handle);
  read_parts(lses, lse_parts, "lse_parts", on.handle);
  const TensorView& o = parts.front();
  const TensorView& lse = lses.front();
  if (o.type() != ElementType::bf16 && o.type() != ElementType::fp16) o.require_type(ElementType::bf16);
  if (o.rank() < 1) o.require_rank(2, "[..., head_dim]");
  lse.require_type(ElementType::fp32);
  lse.require_device(o.device());
  lse.require_rank(o.rank() - 1, "that of o_parts without head_dim");
  for (int i = 0; i < lse.rank(); ++i) lse.require_extent(i, o.extent(i), "of o_parts");
  if (lses.size() != parts.size())
    bad_value("lse_parts", fmt::format("has {} parts, but o_parts has {}", lses.size(), parts.size()));

  EngineObject& object = find_engine(engine, o.device());
  const bool wants_lse = !out_lse.is_none() || bool_of(return_lse, "return_lse");
  const nb::object result = out.is_none() ? empty(first, shape_of(o), false) : nb::borrow(out);
  std::deque<TensorView> outputs;
  const TensorView& merged = outputs.emplace_back(result, "out", on.handle);
  merged.require_device(o.device());
  merged.require_type(o.type());
  merged.require_rank(o.rank(), "that of o_parts");
  for (int i = 0; i < o.rank(); ++i) merged.require_extent(i, o.extent(i), "of o_parts");
  merged.require_contiguous();
  nb::object result_lse;
  leanattn_merge_args args;
  leanattn_merge_args_init(&args);
  if (wants_lse) {
    result_lse = out_lse.is_none() ? empty(first, shape_of(lse), true) : nb::borrow(out_lse);
    const TensorView& merged_lse = outputs.emplace_back(result_lse, "out_lse", on.handle);
    merged_lse.require_device(o.device());
    merged_lse.require_type(ElementType::fp32);
    merged_lse.require_rank(lse.rank(), "that of lse_parts");
    for (int i = 0; i < lse.rank(); ++i) merged_lse.require_extent(i, lse.extent(i), "of lse_parts");
    merged_lse.require_contiguous();
    args.out_lse = merged_lse.data<float>();
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    args.o[i] = parts[i].data();
    args.lse[i] = lses[i].data<float>();
  }
  args.out_o = merged.data();
  args.parts = static_cast<std::int32_t>(parts.size());
  args.rows = lse.elements();
  args.dim = o.extent32(o.rank() - 1);
  args.dtype = o.type() == ElementType::bf16 ? LEANATTN_BF16 : LEANATTN_FP16;
  const auto launched = [&]() -> Result<void> {
    const nb::gil_scoped_release without_gil;
    if (auto ok = object.engine.merge_partials(args, on.handle); !ok) return ok;
    return on.synchronise ? object.workspaces.wait(on.handle) : Result<void>{};
  }();
  unwrap(launched);
  return wants_lse ? nb::make_tuple(result, result_lse) : result;
}

}  // namespace

void bind_merge(nb::module_& module) {
  module.def(
      "merge_partials", &merge, nb::arg("o_parts").none(), nb::arg("lse_parts").none(), nb::kw_only(),
      nb::arg("out") = nb::none(), nb::arg("out_lse") = nb::none(), nb::arg("return_lse").none() = false,
      nb::arg("stream") = nb::none(), nb::arg("engine") = nb::none(),
      nb::sig("def merge_partials(o_parts: typing.Sequence[typing.Any], lse_parts: typing.Sequence[typing.Any], *, "
              "out: typing.Any = None, out_lse: typing.Any = None, return_lse: bool = False, "
              "stream: typing.Any = None, engine: Engine | None = None) -> typing.Any"),
      R"(Merges the results over disjoint pieces of a context into the result over all of it, in fp32 and in one launch.

o_parts    1 to 8 tensors [..., head_dim], bf16 or fp16, contiguous
lse_parts  as many tensors [...], fp32: the log-sum-exp of decode(); -inf: the part saw no token
out        a tensor to write to; may be one of o_parts
out_lse    a tensor for the log-sum-exp; may be one of lse_parts
stream     a CUDA stream, or its handle, to use instead of the framework's current one. Results that are made here still
           belong to the current one: keep them until the work of `stream` has ended, or give out and out_lse
Returns the merged tensor; with return_lse or out_lse a pair of it and its log-sum-exp.
Raises what decode() raises. The first call compiles the kernel, so make one before a graph is captured.)");
}

}  // namespace leanattn::python
