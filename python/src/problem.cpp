// problem.cpp -- reads problems, and checks what the library would refuse later.
#include "problem.hpp"

#include <type_traits>

#include "errors.hpp"
#include "generator/feature_table.hpp"
#include "names.hpp"

namespace leanattn::python {
namespace nb = nanobind;
namespace {

template <class T>
T read_value(nb::handle value, const char* name) {
  if constexpr (std::is_enum_v<T>) {
    return static_cast<T>(number_of(kNames<T>, value, name));
  } else if constexpr (std::is_same_v<T, bool>) {
    return bool_of(value, name);
  } else if constexpr (std::is_same_v<T, int>) {
    return int_of(value, name);
  } else if constexpr (std::is_same_v<T, double>) {
    return float_of(value, name);
  } else {
    return text_of(value, name);
  }
}

}  // namespace

DecodeProblem read_problem(nb::handle object) {
  const auto integer = [&](const char* name) { return int_of(object.attr(name), name); };
  DecodeProblem problem;
  problem.q_heads = integer("q_heads");
  problem.kv_heads = integer("kv_heads");
  problem.head_dim = integer("head_dim");
  const bool bf16 = number_of(kDataTypes, object.attr("dtype"), "dtype") == LEANATTN_BF16;
  problem.dtype = bf16 ? DType::bf16 : DType::fp16;
  const bool head_major = number_of(kCacheLayouts, object.attr("kv_layout"), "kv_layout") == LEANATTN_KV_CONTIGUOUS;
  problem.layout = head_major ? KvLayout::contiguous : KvLayout::strided;
  problem.lse = bool_of(object.attr("lse"), "lse");
  problem.pdl = bool_of(object.attr("pdl"), "pdl");
  for_each_feature([&]<class T>(const Feature<T>& row) {
    if (row.c_member == nullptr) return;
    problem.features.*row.member = read_value<T>(object.attr(row.python_name()), row.python_name());
  });
  return problem;
}

leanattn_problem to_c(const DecodeProblem& problem) {
  leanattn_problem out;
  leanattn_problem_init(&out);
  out.q_heads = problem.q_heads;
  out.kv_heads = problem.kv_heads;
  out.head_dim = problem.head_dim;
  out.dtype = problem.dtype == DType::bf16 ? LEANATTN_BF16 : LEANATTN_FP16;
  out.kv_layout = problem.layout == KvLayout::contiguous ? LEANATTN_KV_CONTIGUOUS : LEANATTN_KV_STRIDED;
  out.lse = problem.lse;
  out.pdl = problem.pdl;
  for_each_feature([&]<class T>(const Feature<T>& row) {
    if (row.c_member == nullptr || row.differs(problem.features) == 0) return;
    const T& value = problem.features.*row.member;
    if constexpr (std::is_same_v<T, std::string>) {
      out.*row.c_member = value.c_str();
    } else {
      out.*row.c_member = static_cast<typename Feature<T>::C>(value);
    }
  });
  return out;
}

PlanShape read_plan_shape(nb::handle object) {
  const auto integer = [&](const char* name) { return int64_of(object.attr(name), name); };
  return {.batch = int_of(object.attr("batch"), "batch"),
          .max_batch = 0,
          .longest_context = integer("longest_context"),
          .total_context = integer("total_context"),
          .query_tokens = integer("query_tokens"),
          .chunks = int_of(object.attr("chunks"), "chunks"),
          .chunk_context = integer("chunk_context"),
          .chunk_pairs = integer("chunk_pairs")};
}

void bind_problem(nb::module_& module) {
  module.def(
      "_check_problem", [](nb::handle problem) { unwrap(validate(canonical(read_problem(problem)))); },
      nb::arg("problem"), nb::sig("def _check_problem(problem: leanattn.Problem) -> None"),
      "Raises where no kernel can be made for a problem; the message names the field. Needs neither GPU nor NVRTC.");
}

}  // namespace leanattn::python
