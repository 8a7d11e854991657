// group_case.cpp -- deals a decode case to the ranks of a group, launches them beside each other, and compares.
#include "tuner/oracle/group_case.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <span>

#include "generator/kv_encoding.hpp"
#include "runtime/cuda/device.hpp"
#include "runtime/cuda/driver.hpp"
#include "tuner/oracle/decode_case_detail.hpp"
#include "tuner/oracle/random_data.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

using decode_case_detail::round_up;
using decode_case_detail::wait_for;

Result<std::vector<unsigned char>> download(const void* device, std::int64_t bytes, CUstream_st* stream) {
  std::vector<unsigned char> host(static_cast<std::size_t>(bytes));
  LEANATTN_TRY(copy_to_host_async(host.data(), device, bytes, stream));
  LEANATTN_TRY(wait_for(stream));
  return host;
}

std::int64_t count_other_than(const unsigned char* begin, std::int64_t bytes, unsigned char value) {
  return bytes - std::count(begin, begin + bytes, value);
}

void note_failure(ComparisonReport& report, std::string text) {
  if (report.first_failure.empty()) report.first_failure = std::move(text);
}

/// The contexts of up to `most` other GPUs that are like the current one, which reach it and which it reaches.
Result<std::vector<std::shared_ptr<const Context>>> gpus_beside(int most) {
  std::vector<std::shared_ptr<const Context>> found;
  const auto api = driver();
  if (!api) return tl::unexpected(api.error());
  CUcontext current = nullptr;
  CUdevice own = 0;
  int count = 0;
  LEANATTN_TRY(leanattn::check((*api)->cuCtxGetCurrent(&current), "cuCtxGetCurrent"));
  LEANATTN_TRY(leanattn::check((*api)->cuCtxGetDevice(&own), "cuCtxGetDevice"));
  LEANATTN_TRY(leanattn::check((*api)->cuDeviceGetCount(&count), "cuDeviceGetCount"));
  if (most < 1 || count < 2 || (*api)->cuDeviceCanAccessPeer == nullptr) return found;
  const auto mine = device_facts(own);
  if (!mine) return tl::unexpected(mine.error());
  for (int other = 0; other < count && static_cast<int>(found.size()) < most; ++other) {
    if (other == own) continue;
    const auto facts = device_facts(other);
    if (!facts || facts->name != mine->name || facts->sm_count != mine->sm_count) continue;
    int there = 0, back = 0;
    if ((*api)->cuDeviceCanAccessPeer(&there, own, other) != CUDA_SUCCESS || there == 0) continue;
    if ((*api)->cuDeviceCanAccessPeer(&back, other, own) != CUDA_SUCCESS || back == 0) continue;
    auto context = Context::retain(other);
    (*api)->cuCtxSetCurrent(current);
    if (!context) continue;  // such as a GPU that another process has for itself
    found.push_back(std::make_shared<const Context>(*std::move(context)));
  }
  return found;
}

/// The contexts of these GPUs but for the first, which is the current one.
Result<std::vector<std::shared_ptr<const Context>>> gpus_named(std::span<const int> ordinals) {
  std::vector<std::shared_ptr<const Context>> found;
  const auto api = driver();
  if (!api) return tl::unexpected(api.error());
  CUcontext current = nullptr;
  LEANATTN_TRY(leanattn::check((*api)->cuCtxGetCurrent(&current), "cuCtxGetCurrent"));
  const auto first = device_facts(ordinals.front());
  if (!first) return tl::unexpected(first.error());
  for (const int ordinal : ordinals.subspan(1)) {
    const auto facts = device_facts(ordinal);
    if (!facts) return tl::unexpected(facts.error());
    if (facts->name != first->name || facts->sm_count != first->sm_count)
      return fail(ErrorCode::unsupported,
                  fmt::format("a group of different GPUs: {} is {} with {} SMs, {} is {} with {}", ordinals.front(),
                              first->name, first->sm_count, ordinal, facts->name, facts->sm_count),
                  "Name GPUs of one kind. `leanattn devices` lists them.");
    auto context = Context::retain(ordinal);
    (*api)->cuCtxSetCurrent(current);
    if (!context) return tl::unexpected(context.error());
    found.push_back(std::make_shared<const Context>(*std::move(context)));
  }
  return found;
}

/// The different ones, in the order in which they come first.
std::vector<int> distinct_of(const std::vector<int>& ordinals) {
  std::vector<int> distinct;
  for (const int ordinal : ordinals)
    if (std::find(distinct.begin(), distinct.end(), ordinal) == distinct.end()) distinct.push_back(ordinal);
  return distinct;
}

}  // namespace

GroupCase::Rank::~Rank() {
  const CurrentContext scope(context());
  part.reset();
  workspace.reset();
  member.reset();
  status.reset();
  stream = Stream();
}

Result<GroupCase> GroupCase::create(DecodeCase whole, const Features& features, std::int64_t wait_bound_ms,
                                    CUstream_st* stream, const GroupCaseOptions& options) {
  GroupCase made;
  made.options_ = options;
  made.whole_ = std::make_unique<DecodeCase>(std::move(whole));
  made.problem_ = made.whole_->problem();
  const Features& has = made.problem_.features;
  if (in_group(has) || !in_group(features) || made.whole_->options().padded)
    return fail(ErrorCode::invalid_argument, "a group case of such a decode case",
                "Deal a case of one GPU without padding.");
  made.problem_.features = features;
  made.problem_.layout = options.layout;
  LEANATTN_TRY(validate(made.problem_));
  made.stream_ = stream;
  if (!options.devices.empty() && options.devices.size() != static_cast<std::size_t>(features.context_parallel))
    return fail(ErrorCode::invalid_argument,
                fmt::format("{} GPUs for {} ranks", options.devices.size(), features.context_parallel),
                "Name a GPU for each rank.");
  const std::vector<int> distinct = distinct_of(options.devices);
  const auto others =
      distinct.empty() ? gpus_beside(std::min(options.most_gpus, features.context_parallel) - 1) : gpus_named(distinct);
  if (!others) return tl::unexpected(others.error());
  made.gpus_ = 1 + static_cast<int>(others->size());
  made.gpu_of_.clear();
  for (int number = 0; number < features.context_parallel; ++number) {
    const auto at = static_cast<std::size_t>(number);
    made.gpu_of_.push_back(
        distinct.empty()
            ? number % made.gpus_
            : static_cast<int>(std::find(distinct.begin(), distinct.end(), options.devices[at]) - distinct.begin()));
  }
  const auto gpu_of = [&](int number) {
    const int gpu = made.gpu_of(number);
    return gpu == 0 ? nullptr : (*others)[static_cast<std::size_t>(gpu - 1)];
  };
  // One after the other, so that the driver gives each a work queue of its own as long as it has any
  // (CUDA_DEVICE_MAX_CONNECTIONS): a rank whose launch stands behind another's in a queue would never begin.
  std::vector<Stream> streams;
  for (int number = 0; number < features.context_parallel; ++number) {
    const CurrentContext scope(gpu_of(number) ? gpu_of(number)->get() : nullptr);
    auto own = Stream::create();
    if (!own) return tl::unexpected(own.error());
    streams.push_back(std::move(*own));
  }
  made.ranks_.reserve(streams.size());
  for (int number = 0; number < features.context_parallel; ++number)
    LEANATTN_TRY(
        made.add_rank(number, wait_bound_ms, gpu_of(number), std::move(streams[static_cast<std::size_t>(number)])));
  std::vector<GroupMember::Blob> blobs;
  for (const Rank& rank : made.ranks_) {
    const auto blob = rank.member->export_blob();
    if (!blob) return tl::unexpected(blob.error());
    blobs.push_back(*blob);
  }
  for (Rank& rank : made.ranks_) LEANATTN_TRY(rank.member->connect(blobs));
  LEANATTN_TRY(made.keep_spoilt_caches());
  return made;
}

int GroupCase::ranks_on_a_gpu() const {
  int most = 0;
  for (int gpu = 0; gpu < gpus_; ++gpu)
    most = std::max(most, static_cast<int>(std::count(gpu_of_.begin(), gpu_of_.end(), gpu)));
  return most;
}

Result<void> GroupCase::add_rank(int number, std::int64_t wait_bound_ms, const std::shared_ptr<const Context>& gpu,
                                 Stream stream) {
  Rank& rank = ranks_.emplace_back();
  rank.gpu = gpu;
  rank.stream = std::move(stream);
  const CurrentContext scope(rank.context());
  LEANATTN_TRY(scope.entered());
  auto status = LaunchStatus::allocate(wait_bound_ms);
  if (!status) return tl::unexpected(status.error());
  rank.status = std::make_shared<LaunchStatus>(*std::move(status));
  const int ranks = problem_.features.context_parallel;
  auto member = GroupMember::create(
      {.rank = number, .size = ranks, .memory_bytes = group_bytes(ranks, group_columns(problem_, whole_->batch()))},
      gpu, rank.status);
  if (!member) return tl::unexpected(member.error());
  rank.member = *std::move(member);
  rank.workspace = std::make_unique<CheckWorkspace>();
  std::shared_ptr<const OracleKernels>& kernels = oracles_[gpu_of(number)];
  if (!gpu) kernels = whole_->kernels();
  if (!kernels) {
    auto loaded = whole_->kernels()->in_current_context();
    if (!loaded) return tl::unexpected(loaded.error());
    kernels = *std::move(loaded);
  }
  const DecodeCaseOptions& whole = whole_->options();
  auto part = DecodeCase::create(kernels, without_group(problem_), whole_->context_lengths(),
                                 {.seed = whole.seed,
                                  .data = whole.data,
                                  .context_capacity = whole.context_capacity,
                                  .kv_copies = options_.kv_copies,
                                  .query_tokens = whole_->query_tokens(),
                                  .part = {.rank = number,
                                           .ranks = ranks,
                                           .interleave = problem_.features.context_interleave,
                                           .even = options_.even}},
                                 rank.stream.get());
  if (!part) return tl::unexpected(part.error());
  rank.part = std::make_unique<DecodeCase>(*std::move(part));
  return {};
}

Result<void> GroupCase::keep_spoilt_caches() {
  if (!problem_.features.append) return {};
  for (Rank& rank : ranks_) {
    const CurrentContext scope(rank.context());
    LEANATTN_TRY(scope.entered());
    LEANATTN_TRY(rank.part->spoil_new_rows(rank.stream.get()));
    auto caches = caches_of(rank);
    if (!caches) return tl::unexpected(caches.error());
    rank.spoilt = *std::move(caches);
  }
  return {};
}

Result<std::vector<unsigned char>> GroupCase::caches_of(const Rank& rank) {
  std::vector<unsigned char> caches;
  for (const DeviceBuffer* const cache : {&rank.part->k_buffer(), &rank.part->v_buffer()}) {
    if (cache->bytes() == 0) continue;
    const auto bytes = download(cache->data(), rank.part->kv_copy_bytes(), rank.stream.get());
    if (!bytes) return tl::unexpected(bytes.error());
    caches.insert(caches.end(), bytes->begin(), bytes->end());
  }
  return caches;
}

Result<void> GroupCase::check_caches(ComparisonReport& report) {
  for (std::size_t number = 0; number < ranks_.size(); ++number) {
    const Rank& rank = ranks_[number];
    const CurrentContext scope(rank.context());
    LEANATTN_TRY(scope.entered());
    const auto wrong = rank.part->wrong_appended(rank.stream.get());
    if (!wrong) return tl::unexpected(wrong.error());
    // With the rows of new tokens spoilt again, the caches must be as they were before the launch.
    LEANATTN_TRY(rank.part->spoil_new_rows(rank.stream.get()));
    const auto caches = caches_of(rank);
    if (!caches) return tl::unexpected(caches.error());
    std::int64_t elsewhere = 0;
    for (std::size_t at = 0; at < caches->size(); ++at) elsewhere += (*caches)[at] != rank.spoilt[at];
    report.wrong_appended += *wrong + elsewhere;
    if (*wrong + elsewhere > 0)
      note_failure(report, fmt::format("rank {} has {} wrong elements of new tokens in its cache, and {} wrong bytes "
                                       "elsewhere in it, after an append",
                                       number, *wrong, elsewhere));
  }
  return {};
}

Result<const LoadedKernel*> GroupCase::kernel_of(int number, const LoadedKernel& kernel) {
  const int gpu = gpu_of(number);
  if (gpu == 0) return &kernel;
  auto key = std::pair(gpu, kernel_name(kernel.spec()));
  if (const auto found = kernels_.find(key); found != kernels_.end()) return &found->second;
  const CurrentContext scope = enter(number);
  LEANATTN_TRY(scope.entered());
  auto loaded = kernel.in_current_context();
  if (!loaded) return tl::unexpected(loaded.error());
  return &kernels_.emplace(std::move(key), *std::move(loaded)).first->second;
}

Result<void> GroupCase::prepare(const LoadedKernel& kernel) {
  for (int rank = 0; rank < ranks(); ++rank) {
    const auto loaded = kernel_of(rank, kernel);
    if (!loaded) return tl::unexpected(loaded.error());
  }
  return {};
}

LeanDecodeArgs GroupCase::args(int number, int kv_copy) const {
  const Rank& rank = ranks_[static_cast<std::size_t>(number)];
  LeanDecodeArgs args = rank.part->args(kv_copy);
  args.group_checks = 1;
  args.status = rank.status->block();
  rank.member->bind(args);
  return args;
}

WorkspaceLayout GroupCase::workspace(const KernelSpec& spec, LaunchGrid grid) const {
  return ranks_.front().part->workspace(spec, grid.ctas);
}

Result<LeanDecodeArgs> GroupCase::bind(int number, const KernelSpec& spec, LaunchGrid grid) {
  Rank& rank = ranks_[static_cast<std::size_t>(number)];
  LeanDecodeArgs bound = args(number);
  const CurrentContext scope = enter(number);
  LEANATTN_TRY(scope.entered());
  bound.segment_cost = static_cast<unsigned>(grid.segment_cost);
  LEANATTN_TRY(rank.workspace->bind(bound, workspace(spec, grid), rank.stream.get()));
  LEANATTN_TRY(wait_for(rank.stream.get()));
  return bound;
}

Result<void> GroupCase::launch(int number, const LoadedKernel& kernel, LaunchGrid grid, const LeanDecodeArgs& args) {
  const auto loaded = kernel_of(number, kernel);
  if (!loaded) return tl::unexpected(loaded.error());
  const CurrentContext scope = enter(number);
  LEANATTN_TRY(scope.entered());
  return (*loaded)->launch(args, grid.ctas, stream(number).get(), grid.l2_promotion, member(number).shares_gpu());
}

Result<void> GroupCase::reset_outputs() {
  for (const Rank& rank : ranks_) {
    const CurrentContext scope(rank.context());
    LEANATTN_TRY(scope.entered());
    LEANATTN_TRY(rank.part->reset_outputs(rank.stream.get()));
    LEANATTN_TRY(wait_for(rank.stream.get()));
  }
  return {};
}

std::vector<unsigned char> GroupCase::merged_of_parts(const std::vector<std::vector<unsigned char>>& parts,
                                                      ComparisonReport& report) const {
  const std::vector<int>& tokens = whole_->query_tokens();
  const std::size_t rows = static_cast<std::size_t>(std::accumulate(tokens.begin(), tokens.end(), std::int64_t{0})) *
                           static_cast<std::size_t>(problem_.q_heads),
                    columns = static_cast<std::size_t>(whole_->v_head_dim()),
                    lse_begin = static_cast<std::size_t>(whole_->o_bytes());
  std::vector<unsigned char> merged = parts.front();  // with its padding, which must be poison
  std::vector<float> lse(parts.size());
  for (std::size_t row = 0; row < rows; ++row) {
    const auto bits_at = [&](std::size_t part, std::size_t column) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, parts[part].data() + (row * columns + column) * 2, 2);
      return bits;
    };
    for (std::size_t part = 0; part < parts.size(); ++part)
      std::memcpy(&lse[part], parts[part].data() + lse_begin + row * 4, 4);
    const float most = *std::max_element(lse.begin(), lse.end());
    double sum = 0;
    for (const float each : lse) sum += std::isinf(most) && most < 0 ? 0 : std::exp(static_cast<double>(each) - most);
    for (std::size_t column = 0; column < columns; ++column) {
      double o = 0;
      for (std::size_t part = 0; part < parts.size(); ++part) {
        const double value = value_of(problem_.dtype, bits_at(part, column));
        const double weight = std::isinf(lse[part]) ? 0 : std::exp(static_cast<double>(lse[part]) - most) / sum;
        o += weight == 0 ? 0 : weight * value;
        if (std::isinf(lse[part]) && value != 0) {
          ++report.stray_writes;
          note_failure(report, fmt::format("rank {} sees nothing in row {}, and its O is {}", part, row, value));
        }
      }
      const std::uint16_t bits = bits_of(problem_.dtype, static_cast<float>(o));
      std::memcpy(merged.data() + (row * columns + column) * 2, &bits, 2);
    }
    const auto whole = static_cast<float>(sum == 0 ? most : most + std::log(sum));
    std::memcpy(merged.data() + lse_begin + row * 4, &whole, 4);
  }
  return merged;
}

Result<std::vector<std::vector<unsigned char>>> GroupCase::outputs(ComparisonReport& report) {
  std::vector<std::vector<unsigned char>> raw;
  for (const Rank& rank : ranks_) {
    const CurrentContext scope(rank.context());
    LEANATTN_TRY(scope.entered());
    auto o = download(rank.part->o_buffer().data(), rank.part->o_bytes(), rank.stream.get());
    if (!o) return tl::unexpected(o.error());
    const auto lse = download(rank.part->lse_buffer().data(), rank.part->lse_bytes(), rank.stream.get());
    if (!lse) return tl::unexpected(lse.error());
    o->insert(o->end(), lse->begin(), lse->end());
    raw.push_back(*std::move(o));
  }
  if (options_.merged_here) return std::vector<std::vector<unsigned char>>{merged_of_parts(raw, report)};
  if (problem_.features.replicate_output) return raw;
  // Each rank has its heads of every row; all else must still be poison.
  const auto o_bytes = static_cast<std::size_t>(whole_->o_bytes()),
             row = static_cast<std::size_t>(whole_->v_head_dim()) * 2;
  const auto heads = static_cast<std::size_t>(problem_.q_heads), of_rank = heads / ranks_.size();
  std::vector<unsigned char> merged(raw.front().size(), kPoisonByte);
  for (std::size_t rank = 0; rank < raw.size(); ++rank) {
    const auto take = [&](std::size_t begin, std::size_t bytes, std::size_t head) {
      if (head / of_rank == rank) {
        std::memcpy(merged.data() + begin, raw[rank].data() + begin, bytes);
      } else if (const std::int64_t stray =
                     count_other_than(raw[rank].data() + begin, static_cast<std::int64_t>(bytes), kPoisonByte);
                 stray > 0) {
        report.stray_writes += stray;
        note_failure(report, fmt::format("rank {} wrote query head {}, which is not one of its own", rank, head));
      }
    };
    std::size_t at = 0;
    for (std::size_t i = 0; at + row <= o_bytes; ++i, at += row) take(at, row, i % heads);
    // What is left behind the rows is padding of the allocation.
    std::memcpy(merged.data() + at, raw[rank].data() + at, o_bytes - at);
    for (std::size_t i = 0; o_bytes + (i + 1) * 4 <= merged.size(); ++i) take(o_bytes + i * 4, 4, i % heads);
  }
  return std::vector<std::vector<unsigned char>>{std::move(merged)};
}

Result<ComparisonReport> GroupCase::compare(const KernelSpec& spec) {
  const Result<const Reference*> expected = whole_->reference(stream_);
  if (!expected) return tl::unexpected(expected.error());
  ComparisonReport report;
  const auto raw = outputs(report);
  if (!raw) return tl::unexpected(raw.error());
  for (const std::vector<unsigned char>& of_rank : *raw)
    merge(report, whole_->compare_raw(**expected, of_rank.data(), of_rank.data() + whole_->o_bytes(), spec.lse));
  if (options_.merged_here) {
    // A part's O is rounded before it is merged, which may cost half as much again as the rounding of the result.
    report.error_ratio /= 1.5, report.mean_ratio /= 1.5;
  }
  if (problem_.features.append) LEANATTN_TRY(check_caches(report));
  for (std::size_t number = 0; number < ranks_.size(); ++number) {
    const Rank& rank = ranks_[number];
    const CurrentContext scope(rank.context());
    LEANATTN_TRY(scope.entered());
    if (auto fault = rank.status->check(); !fault) {
      report.workspace_left += 1;
      note_failure(report, fmt::format("rank {}: {}", number, fault.error().message));
    }
    struct Zeros {
      const char* name;
      const void* at;
      std::int64_t bytes;
    };
    for (const Zeros& zeros : {Zeros{"the workspace", rank.workspace->buffer().data(), rank.workspace->bound_bytes()},
                               Zeros{"the exchange memory", rank.member->slots(), rank.member->slot_bytes()}}) {
      const auto bytes = download(zeros.at, zeros.bytes, rank.stream.get());
      if (!bytes) return tl::unexpected(bytes.error());
      const std::int64_t left = count_other_than(bytes->data(), zeros.bytes, 0);
      report.workspace_left += left;
      if (left > 0)
        note_failure(report, fmt::format("rank {} left {} bytes of {} non-zero, the first at byte {}", number, left,
                                         zeros.name, std::find_if(bytes->begin(), bytes->end(), [](unsigned char b) {
                                                       return b != 0;
                                                     }) - bytes->begin()));
    }
  }
  return report;
}

Result<ComparisonReport> GroupCase::check(const LoadedKernel& kernel, LaunchGrid grid, int launches) {
  LEANATTN_TRY(prepare(kernel));
  std::vector<LeanDecodeArgs> bound;
  for (int rank = 0; rank < ranks(); ++rank) {
    auto args = bind(rank, kernel.spec(), grid);
    if (!args) return tl::unexpected(args.error());
    bound.push_back(*args);
  }
  ComparisonReport report;
  std::vector<std::vector<unsigned char>> first;
  for (int i = 0; i < launches; ++i) {
    LEANATTN_TRY(reset_outputs());
    // Each rank goes first now and then.
    for (int rank = 0; rank < ranks(); ++rank) {
      const int number = (rank + i) % ranks();
      LEANATTN_TRY(launch(number, kernel, grid, bound[static_cast<std::size_t>(number)]));
    }
    for (const Rank& rank : ranks_) LEANATTN_TRY(rank.stream.synchronize());
    auto one = compare(kernel.spec());
    if (!one) return one;
    merge(report, *one);
    ComparisonReport ignored;
    auto raw = outputs(ignored);
    if (!raw) return tl::unexpected(raw.error());
    if (first.empty()) first = *raw;
    for (std::size_t k = 0; k < first.size(); ++k) {
      for (std::size_t byte = 0; byte < first[k].size(); ++byte)
        report.unequal_repeats += first[k][byte] != (*raw)[k][byte];
    }
    if (report.unequal_repeats > 0) note_failure(report, fmt::format("launch {} differs from the first one", i + 1));
    if (!report.passed()) break;
  }
  if (!report.passed()) LEANATTN_TRY(reset());
  return report;
}

Result<void> GroupCase::set_context_lengths(std::vector<int> context_lengths) {
  for (const Rank& rank : ranks_) {
    const CurrentContext scope(rank.context());
    LEANATTN_TRY(scope.entered());
    LEANATTN_TRY(rank.part->set_context_lengths(context_lengths, rank.stream.get()));
    LEANATTN_TRY(wait_for(rank.stream.get()));
  }
  LEANATTN_TRY(whole_->set_context_lengths(std::move(context_lengths), stream_));
  LEANATTN_TRY(wait_for(stream_));
  return keep_spoilt_caches();
}

Result<void> GroupCase::reset() {
  for (Rank& rank : ranks_) {
    const CurrentContext scope(rank.context());
    LEANATTN_TRY(scope.entered());
    LEANATTN_TRY(rank.workspace->reset(rank.stream.get()));
    if (problem_.features.append) LEANATTN_TRY(rank.part->plant_kv(rank.stream.get()));
    LEANATTN_TRY(rank.member->reset(rank.stream.get()));
    rank.status->acknowledge();
    LEANATTN_TRY(wait_for(rank.stream.get()));
  }
  return {};
}

}  // namespace v1
}  // namespace leanattn
