// fuzz_problem.cpp -- any text is read as a valid problem or shape that reads back as itself, or is an error.
#include "fuzz.hpp"
#include "runtime/lookup/key.hpp"
#include "runtime/problem.hpp"

using namespace leanattn;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text = fuzz::text_of(data, size);
  if (const auto shape = shape_from_json(text)) {
    const auto again = shape_from_json(to_json(*shape));
    fuzz::expect(again && *again == *shape, "a shape reads back as itself");
    fuzz::expect(total_tokens(*shape) >= 1, "a shape has tokens");
  }
  const auto problem = problem_from_json(text);
  if (!problem) {
    fuzz::expect(!problem.error().message.empty(), "an error has a message");
    return 0;
  }
  fuzz::expect(validate(*problem).has_value(), "what was read is a problem");
  const auto again = problem_from_json(to_json(*problem));
  fuzz::expect(again && *again == *problem, "a problem reads back as itself");
  const Shape shape{.batch = 3, .max_batch = 8, .longest_context = 1000, .total_context = 1500};
  fuzz::expect(make_lookup_key(*problem, shape) == make_lookup_key(*again, shape), "equal problems have equal keys");
  if (validate(*problem, shape)) fuzz::expect(kv_bytes(*problem, shape) > 0, "a step reads something");
  return 0;
}
