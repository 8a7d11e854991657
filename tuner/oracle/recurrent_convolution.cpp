#include "tuner/oracle/recurrent_convolution.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "tuner/oracle/random_data.hpp"
#include "tuner/oracle/recurrent_oracle.hpp"

namespace leanattn {
inline namespace v1 {

void RecurrentConvolution::draw(const RecurrentProblem& problem, int batch, int slot_count, bool padded,
                                std::mt19937_64& random) {
  width_ = problem.conv_width, snapshots_ = problem.snapshots, dtype_ = problem.dtype;
  counters_ = std::int64_t{batch} * problem.qk_heads;
  const int keys = problem.qk_heads * problem.key_dim, values = problem.v_heads * problem.value_dim,
            tokens = conv_tokens(problem);
  const auto element = [&] {
    return bits_of(dtype_, static_cast<float>(static_cast<double>(random() >> 11) * 0x1p-52 - 1));
  };
  for (std::size_t i = 0; i < kParts; ++i) {
    Part& part = parts_[i];
    part.channels = i < 2 ? keys : values;
    part.channel_stride = padded ? 1 : tokens, part.token_stride = padded ? part.channels + 5 : 1;
    part.slot_stride = padded ? tokens * part.token_stride + 3 : std::int64_t{part.channels} * tokens;
    part.weight.fill(std::int64_t{part.channels} * width_, element);
    if (padded) part.bias.fill(part.channels, element);
    fresh_[i].resize(static_cast<std::size_t>(slot_count * part.slot_stride));
    std::generate(fresh_[i].begin(), fresh_[i].end(), element);
  }
}

Result<void> RecurrentConvolution::upload(const Stream& stream) {
  for (Part& part : parts_) {
    for (CaseArray<std::uint16_t>* array : {&part.weight, &part.bias}) {
      if (auto ok = array->upload(stream); !ok) return ok;
    }
  }
  return {};
}

std::vector<std::uint16_t> RecurrentConvolution::seen(std::size_t part, const States& states, const Request& request,
                                                      int channel, std::span<const std::uint16_t> rows,
                                                      std::int64_t row_stride) const {
  std::vector<std::uint16_t> all;
  for (int i = 0; i + 1 < width_; ++i)
    all.push_back(request.from < 0 ? 0 : states[part][parts_[part].at(request.from, channel, request.past + i)]);
  for (int t = 0; t < request.tokens; ++t)
    all.push_back(rows[static_cast<std::size_t>((request.first_token + t) * row_stride + channel)]);
  return all;
}

template <class Real>
std::vector<Real> RecurrentConvolution::values(std::size_t part, const States& states, const Request& request,
                                               std::span<const std::uint16_t> rows, std::int64_t row_stride) const {
  const Part& of = parts_[part];
  const auto value = [&](std::uint16_t bits) { return static_cast<Real>(value_of(dtype_, bits)); };
  std::vector<Real> result(static_cast<std::size_t>(request.tokens) * static_cast<std::size_t>(of.channels));
  for (int channel = 0; channel < of.channels; ++channel) {
    const auto index = static_cast<std::size_t>(channel), width = static_cast<std::size_t>(width_);
    std::vector<Real> inputs, weight;
    for (const std::uint16_t bits : seen(part, states, request, channel, rows, row_stride))
      inputs.push_back(value(bits));
    for (std::size_t j = 0; j < width; ++j) weight.push_back(value(of.weight.host[index * width + j]));
    const Real bias = of.bias.host.empty() ? 0 : value(of.bias.host[index]);
    for (std::size_t t = 0; t < static_cast<std::size_t>(request.tokens); ++t)
      result[t * static_cast<std::size_t>(of.channels) + index] =
          convolve<Real>(weight, bias, std::span<const Real>(inputs).subspan(t, width));
  }
  return result;
}

template std::vector<float> RecurrentConvolution::values(std::size_t, const States&, const Request&,
                                                         std::span<const std::uint16_t>, std::int64_t) const;
template std::vector<double> RecurrentConvolution::values(std::size_t, const States&, const Request&,
                                                          std::span<const std::uint16_t>, std::int64_t) const;

void RecurrentConvolution::take(std::size_t part, States& states, const Request& request,
                                std::span<const std::uint16_t> rows, std::int64_t row_stride) const {
  if (request.to < 0 || request.tokens == 0) return;
  for (int channel = 0; channel < parts_[part].channels; ++channel) {
    // With snapshots the state keeps all tokens of the step behind those that the first of them reads.
    std::vector<std::uint16_t> all = seen(part, states, request, channel, rows, row_stride);
    all.erase(all.begin(), all.begin() + (snapshots_ ? 1 : request.tokens));
    for (int i = 0; i < static_cast<int>(all.size()); ++i)
      states[part][parts_[part].at(request.to, channel, i)] = all[static_cast<std::size_t>(i)];
  }
}

Result<RecurrentConvolution::Run> RecurrentConvolution::start(const Stream& stream) const {
  Run run;
  for (std::size_t i = 0; i < kParts; ++i) {
    auto copy = CaseArray<std::uint16_t>{.host = fresh_[i], .device = {}}.copy_of_host(stream);
    if (!copy) return tl::unexpected(copy.error());
    run.states[i] = *std::move(copy);
  }
  auto readers = DeviceBuffer::allocate(counters_ * 4);
  if (!readers) return tl::unexpected(readers.error());
  run.readers = *std::move(readers);
  if (auto ok = fill_bytes_async(run.readers.data(), 0, run.readers.bytes(), stream.get()); !ok)
    return tl::unexpected(ok.error());
  return run;
}

void RecurrentConvolution::bind(const Run& run, LeanRecurrentArgs& args) const {
  for (std::size_t i = 0; i < kParts; ++i) {
    const Part& part = parts_[i];
    args.conv[i] = {part.weight.device.data(), part.bias.device.data(), run.states[i].data(),
                    part.slot_stride,          part.channel_stride,     part.token_stride};
  }
  args.readers = run.readers.as<unsigned>();
}

Result<std::string> RecurrentConvolution::compare(const Run& run, const States& right, const Stream& stream) const {
  for (std::size_t i = 0; i < kParts; ++i) {
    std::vector<std::uint16_t> got(right[i].size());
    if (auto ok = copy_to_host(got.data(), run.states[i].data(), run.states[i].bytes(), stream); !ok)
      return tl::unexpected(ok.error());
    const auto [wrong, expected] = std::mismatch(got.begin(), got.end(), right[i].begin());
    if (wrong != got.end())
      return fmt::format("the convolution's state of {}, element {}, has the bits {:04x} instead of {:04x}", "qkv"[i],
                         wrong - got.begin(), *wrong, *expected);
  }
  std::vector<unsigned> readers(static_cast<std::size_t>(counters_));
  if (auto ok = copy_to_host(readers.data(), run.readers.data(), run.readers.bytes(), stream); !ok)
    return tl::unexpected(ok.error());
  if (std::any_of(readers.begin(), readers.end(), [](unsigned count) { return count != 0; }))
    return "a counter of readers is not zero after a launch";
  return "";
}

}  // namespace v1
}  // namespace leanattn
