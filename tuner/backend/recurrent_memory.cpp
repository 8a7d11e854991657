#include "tuner/backend/recurrent_memory.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "tuner/oracle/random_data.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr std::int64_t kBlockBytes = 16 << 20;  // of random bytes that repeat in memory

/// Fills a buffer with copies of one block of random values.
Result<void> fill_random(const DeviceBuffer& buffer, const std::vector<std::uint16_t>& block, const Stream& stream) {
  const auto block_bytes = static_cast<std::int64_t>(block.size() * 2);
  const std::int64_t first = std::min(block_bytes, buffer.bytes());
  if (first == 0) return {};
  if (auto ok = copy_to_device(buffer.data(), block.data(), first, stream); !ok) return ok;
  for (std::int64_t at = first; at < buffer.bytes(); at += block_bytes) {
    const std::int64_t bytes = std::min(block_bytes, buffer.bytes() - at);
    if (auto ok = copy_on_device_async(buffer.at(at), buffer.data(), bytes, stream.get()); !ok) return ok;
  }
  return stream.synchronize();
}

/// A block of values between -1 and 1.
std::vector<std::uint16_t> random_block(std::int64_t bytes, bool fp32, DType dtype) {
  std::mt19937 random(1);
  const auto value = [&] { return static_cast<float>(random()) * 0x1p-31F - 1; };
  std::vector<std::uint16_t> block(static_cast<std::size_t>(bytes / 2));
  for (std::size_t i = 0; i + 1 < block.size(); i += 2) {
    if (const float x = value(); fp32) {
      std::memcpy(&block[i], &x, sizeof x);
    } else {
      block[i] = bits_of(dtype, x), block[i + 1] = bits_of(dtype, value());
    }
  }
  return block;
}

}  // namespace

Result<RecurrentMemory> RecurrentMemory::make(const RecurrentProblem& problem, int batch, int copies,
                                              const Stream& stream) {
  RecurrentMemory memory(problem, batch);
  const std::int64_t slots = std::int64_t{batch} * memory.slots_of_request(),
                     tokens = std::int64_t{batch} * problem.tokens;
  memory.bytes_of_copy_ = slots * state_bytes(problem);
  const std::int64_t row = memory.channels(), conv_row = problem.conv_width > 0 ? row : 0;
  const std::int64_t gate_bytes = problem.gates == Gates::given ? 4 : 2;
  const std::pair<DeviceBuffer*, std::int64_t> sizes[] = {
      {&memory.pool_, copies * memory.bytes_of_copy_},
      {&memory.slots_, slots * 4},
      {&memory.offsets_, (batch + 1) * std::int64_t{4}},
      {&memory.inputs_, copies * tokens * row * 2},
      {&memory.gates_, copies * tokens * (gates_of_token(problem) + problem.v_heads) * gate_bytes},
      {&memory.o_, copies * tokens * problem.v_heads * problem.value_dim * 2},
      {&memory.z_, copies * tokens * problem.v_heads * problem.value_dim * 2},
      {&memory.erasures_, copies * tokens * (erases_of_token(problem) + writes_of_token(problem)) * 2},
      {&memory.conv_states_, copies * slots * conv_row * conv_tokens(problem) * 2},
      {&memory.conv_weights_, conv_row * problem.conv_width * 2},
      {&memory.ring_spans_, problem.ring > 0 ? copies * batch * std::int64_t{8} : 0},
      {&memory.ring_u_, copies * batch * problem.ring * std::int64_t{4} * problem.v_heads * problem.value_dim},
      {&memory.ring_k_, copies * batch * problem.ring * std::int64_t{4} * problem.qk_heads * problem.key_dim},
      {&memory.ring_w_, copies * batch * problem.ring * 4 * gates_of_token(problem)},
      {&memory.readers_, std::int64_t{4} * batch * problem.qk_heads},
      {&memory.constants_,
       std::int64_t{4} * (gates_of_token(problem) + std::int64_t{2} * problem.v_heads + norm_weights(problem))}};
  for (const auto& [buffer, bytes] : sizes) {
    auto allocated = DeviceBuffer::allocate(bytes);
    if (!allocated) return tl::unexpected(allocated.error());
    *buffer = *std::move(allocated);
  }
  const bool fp32 = problem.state == StateType::fp32;
  const auto elements = random_block(kBlockBytes, false, problem.dtype);
  if (auto ok = fill_random(memory.pool_, random_block(kBlockBytes, fp32, DType::bf16), stream); !ok)
    return tl::unexpected(ok.error());
  if (auto ok = fill_bytes_async(memory.readers_.data(), 0, memory.readers_.bytes(), stream.get()); !ok)
    return tl::unexpected(ok.error());
  for (const DeviceBuffer* buffer :
       {&memory.inputs_, &memory.z_, &memory.erasures_, &memory.conv_states_, &memory.conv_weights_}) {
    if (auto ok = fill_random(*buffer, elements, stream); !ok) return tl::unexpected(ok.error());
  }
  const auto logs = random_block(kBlockBytes, true, DType::bf16);
  if (auto ok = fill_random(memory.gates_, gate_bytes == 4 ? logs : elements, stream); !ok)
    return tl::unexpected(ok.error());
  for (const DeviceBuffer* buffer : {&memory.constants_, &memory.ring_u_, &memory.ring_k_, &memory.ring_w_}) {
    if (auto ok = fill_random(*buffer, logs, stream); !ok) return tl::unexpected(ok.error());
  }
  // Requests have slots in any order. They are the same in all copies, as those of a step are in all layers of a model.
  std::vector<int> order(static_cast<std::size_t>(slots)), requests(static_cast<std::size_t>(batch)), offsets;
  std::iota(requests.begin(), requests.end(), 0);
  std::shuffle(requests.begin(), requests.end(), std::mt19937(2));
  const int entries = memory.slots_of_request();
  for (int i = 0; i < slots; ++i)
    order[static_cast<std::size_t>(i)] = requests[static_cast<std::size_t>(i / entries)] * entries + i % entries;
  for (int request = 0; request <= batch; ++request) offsets.push_back(request * problem.tokens);
  if (auto ok = copy_to_device(memory.slots_.data(), order.data(), memory.slots_.bytes(), stream); !ok)
    return tl::unexpected(ok.error());
  if (auto ok = copy_to_device(memory.offsets_.data(), offsets.data(), memory.offsets_.bytes(), stream); !ok)
    return tl::unexpected(ok.error());
  // Requests and copies are spread over the steps of a period, so that each launch stores its share of the states.
  std::vector<int> spans;
  for (int i = 0; i < copies * batch && problem.ring > 0; ++i) {
    spans.push_back(i % problem.ring);
    spans.push_back(problem.tokens * (1 + i % ring_period(problem)));
  }
  if (!spans.empty()) {
    if (auto ok = copy_to_device(memory.ring_spans_.data(), spans.data(), memory.ring_spans_.bytes(), stream); !ok)
      return tl::unexpected(ok.error());
  }
  return memory;
}

LeanRecurrentArgs RecurrentMemory::args(int copy) const {
  const std::int64_t slots = std::int64_t{batch_} * slots_of_request(), tokens = std::int64_t{batch_} * problem_.tokens;
  const std::int64_t keys = std::int64_t{problem_.qk_heads} * problem_.key_dim,
                     values = std::int64_t{problem_.v_heads} * problem_.value_dim;
  const std::int64_t gate_bytes = problem_.gates == Gates::given ? 4 : 2, row = channels();
  char* const inputs = static_cast<char*>(inputs_.at(copy * tokens * row * 2));
  char* const gates =
      static_cast<char*>(gates_.at(copy * tokens * (gates_of_token(problem_) + problem_.v_heads) * gate_bytes));
  LeanRecurrentArgs args{};
  args.slots = slots_.as<int>();
  args.token_offsets = offsets_.as<int>();
  // The packed rows of the convolution: q, k and v of a token beside each other.
  args.q = inputs, args.k = inputs + 2 * keys, args.v = inputs + 4 * keys;
  args.a = gates, args.b = gates + tokens * gates_of_token(problem_) * gate_bytes;
  args.a_log = constants_.as<float>();
  args.skip = args.a_log + problem_.v_heads;
  args.dt_bias = args.skip + problem_.v_heads;
  args.norm_weight = args.dt_bias + gates_of_token(problem_);
  args.z = z_.at(copy * tokens * values * 2);
  args.state = static_cast<char*>(states(copy));
  args.o = o_.at(copy * tokens * values * 2);
  args.q_stride = args.k_stride = args.v_stride = row;
  args.a_stride = gates_of_token(problem_), args.b_stride = problem_.v_heads, args.o_stride = args.z_stride = values;
  args.state_stride = state_bytes(problem_) / bytes_of(problem_.state);
  args.slots_stride = slots_of_request();
  args.slot_count = static_cast<int>(slots);
  args.scale = 1 / std::sqrt(static_cast<float>(problem_.key_dim)), args.norm_eps = 1e-6F, args.lower_bound = -5,
  args.output_eps = 1e-6F;
  args.erase_stride = erases_of_token(problem_), args.write_stride = writes_of_token(problem_);
  args.erase = erasures_.at(copy * tokens * (args.erase_stride + args.write_stride) * 2);
  args.write = static_cast<const char*>(args.erase) + tokens * args.erase_stride * 2;
  if (problem_.ring > 0) {
    args.ring_u_stride = problem_.ring * values, args.ring_k_stride = problem_.ring * keys;
    args.ring_w_stride = problem_.ring * gates_of_token(problem_);
    args.ring_spans = ring_spans_.as<int>() + std::int64_t{2} * copy * batch_;
    args.ring_u = ring_u_.as<float>() + copy * slots * args.ring_u_stride;
    args.ring_k = ring_k_.as<float>() + copy * slots * args.ring_k_stride;
    args.ring_w = ring_w_.as<float>() + copy * slots * args.ring_w_stride;
  }
  if (problem_.conv_width == 0) return args;
  // As vLLM stores states: all channels of a token beside each other.
  const std::int64_t tokens_of_slot = conv_tokens(problem_), first[] = {0, keys, 2 * keys};
  for (std::size_t i = 0; i < 3; ++i)
    args.conv[i] = {.weight = conv_weights_.at(2 * first[i] * problem_.conv_width),
                    .bias = nullptr,
                    .state = conv_states_.at(2 * (copy * slots * tokens_of_slot * row + first[i])),
                    .slot_stride = tokens_of_slot * row,
                    .channel_stride = 1,
                    .token_stride = row};
  args.readers = readers_.as<unsigned>();
  return args;
}

}  // namespace v1
}  // namespace leanattn
