// group_case.cpp -- deals a decode case to the ranks of a group, launches them beside each other, and compares.
#include "tuner/oracle/group_case.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <span>

#include "runtime/cuda/device.hpp"
#include "runtime/cuda/driver.hpp"
#include "runtime/lookup/grids.hpp"
#include "tuner/oracle/decode_case_detail.hpp"
#include "tuner/oracle/random_data.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

using decode_case_detail::round_up;
using decode_case_detail::wait_for;

/// Tokens of a context of `length` that a rank holds where units go in turn.
int interleaved_length(int length, int unit, int ranks, int rank) {
  const int round = unit * ranks;
  return length / round * unit + std::clamp(length % round - rank * unit, 0, unit);
}

Result<std::vector<unsigned char>> download(const void* device, std::int64_t bytes, CUstream_st* stream) {
  std::vector<unsigned char> host(static_cast<std::size_t>(bytes));
  LEANATTN_TRY(copy_to_host_async(host.data(), device, bytes, stream));
  LEANATTN_TRY(wait_for(stream));
  return host;
}

template <class T>
Result<void> upload_to(DeviceBuffer& buffer, const std::vector<T>& values, CUstream_st* stream) {
  const auto bytes = static_cast<std::int64_t>(values.size() * sizeof(T));
  if (buffer.bytes() < bytes) {
    auto made = DeviceBuffer::allocate(bytes);
    if (!made) return tl::unexpected(made.error());
    buffer = std::move(*made);
  }
  LEANATTN_TRY(copy_to_device_async(buffer.data(), values.data(), bytes, stream));
  return wait_for(stream);
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

/// Tokens of a whole context that the first rank holds, which has the most of them.
int even_part(int length, int unit, int ranks) {
  return unit > 0 ? interleaved_length(length, unit, ranks, 0) : (length + ranks - 1) / ranks;
}

}  // namespace

GroupCase::Rank::~Rank() {
  const CurrentContext scope(context());
  workspace.reset();
  member.reset();
  status.reset();
  stream = Stream();
  for (DeviceBuffer* buffer :
       {&k, &v, &o, &lse, &lengths_device, &starts_device, &full_device, &page_table, &q, &q_offsets, &sink_logits,
        &alibi_slopes, &rope_table, &k_new, &v_new, &k_scale, &v_scale})
    *buffer = DeviceBuffer();
}

Result<GroupCase> GroupCase::create(DecodeCase whole, const Features& features, std::int64_t wait_bound_ms,
                                    CUstream_st* stream, const GroupCaseOptions& options) {
  GroupCase made;
  made.options_ = options;
  made.whole_ = std::make_unique<DecodeCase>(std::move(whole));
  made.problem_ = made.whole_->problem();
  const Features& has = made.problem_.features;
  if (has.page_size != 0 || in_group(has) || !in_group(features) || made.whole_->options().padded ||
      made.problem_.layout != KvLayout::contiguous ||
      (has.kv_format != KvFormat::same && has.kv_scale == KvScale::token))
    return fail(ErrorCode::invalid_argument, "a group case of such a decode case",
                "Deal a dense, contiguous case without padding and without scales per token.");
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
  // Pages in random order, the same on all ranks, of a pool with some pages more.
  if (features.page_size > 0) {
    made.pages_.resize(static_cast<std::size_t>(made.whole_->batch() * (made.rank_capacity() / features.page_size)));
    std::iota(made.pages_.begin(), made.pages_.end(), 2);
    std::shuffle(made.pages_.begin(), made.pages_.end(), std::mt19937_64(made.whole_->options().seed));
  }
  LEANATTN_TRY(made.deal());
  for (Rank& rank : made.ranks_) {
    if (rank.gpu) LEANATTN_TRY(made.copy_inputs(rank));
  }
  return made;
}

int GroupCase::ranks_on_a_gpu() const {
  int most = 0;
  for (int gpu = 0; gpu < gpus_; ++gpu)
    most = std::max(most, static_cast<int>(std::count(gpu_of_.begin(), gpu_of_.end(), gpu)));
  return most;
}

Result<void> GroupCase::copy_inputs(Rank& rank) {
  const LeanDecodeArgs& from = whole_->args();
  const Features& features = problem_.features;
  const std::int64_t batch = whole_->batch();
  const std::vector<int>& tokens = whole_->query_tokens();
  const std::int64_t q_elements =
      features.ragged_q ? std::accumulate(tokens.begin(), tokens.end(), std::int64_t{0}) * from.q_stride_token
                        : batch * from.q_stride_batch;
  const std::int64_t scales = features.kv_scale == KvScale::head ? problem_.kv_heads : 1;
  const std::int64_t rope_dim = features.rope_dim > 0 ? features.rope_dim : turning_dims(features, problem_.head_dim);
  const auto new_bytes = [&](long long of_batch, long long of_token) {
    return (features.ragged_q ? std::accumulate(tokens.begin(), tokens.end(), std::int64_t{0}) * of_token
                              : batch * of_batch) *
           2;
  };
  struct Input {
    const void* at;
    std::int64_t bytes;
    DeviceBuffer& to;
  };
  for (const Input& input :
       {Input{from.q, q_elements * 2, rank.q}, Input{from.q_offsets, (batch + 1) * 4, rank.q_offsets},
        Input{from.sink_logits, std::int64_t{problem_.q_heads} * 4, rank.sink_logits},
        Input{from.alibi_slopes, std::int64_t{problem_.q_heads} * 4, rank.alibi_slopes},
        Input{from.rope_table, std::max(1, whole_->options().context_capacity) * rope_dim * 4, rank.rope_table},
        Input{from.k_new, new_bytes(from.k_new_stride_batch, from.k_new_stride_token), rank.k_new},
        Input{from.v_new, new_bytes(from.v_new_stride_batch, from.v_new_stride_token), rank.v_new},
        Input{from.k_scale, scales * 4, rank.k_scale}, Input{from.v_scale, scales * 4, rank.v_scale}}) {
    if (input.at == nullptr || input.bytes == 0) continue;
    const auto bytes = download(input.at, input.bytes, stream_);
    if (!bytes) return tl::unexpected(bytes.error());
    const CurrentContext scope(rank.context());
    LEANATTN_TRY(scope.entered());
    LEANATTN_TRY(upload_to(input.to, *bytes, rank.stream.get()));
  }
  return {};
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
  for (const auto& [buffer, bytes] :
       {std::pair(&rank.o, whole_->o_bytes()), std::pair(&rank.lse, whole_->lse_bytes())}) {
    auto allocated = DeviceBuffer::allocate(bytes);
    if (!allocated) return tl::unexpected(allocated.error());
    *buffer = std::move(*allocated);
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

std::int64_t GroupCase::rank_capacity() const {
  constexpr int kBehind = 8, kStep = 16;  // tokens of NaN behind an even part at least
  const int page = problem_.features.page_size, whole = whole_->options().context_capacity;
  const std::int64_t tokens =
      options_.even ? round_up(even_part(whole, problem_.features.context_interleave, ranks()) + kBehind, kStep)
                    : whole;
  return round_up(tokens, page > 0 ? page : 1);
}

GroupCase::Strides GroupCase::strides(std::int64_t columns) const {
  const std::int64_t heads = problem_.kv_heads,
                     tokens = problem_.features.page_size > 0 ? problem_.features.page_size : rank_capacity();
  if (problem_.layout == KvLayout::contiguous) return {heads * tokens * columns, tokens * columns, columns};
  return {tokens * heads * columns, columns, heads * columns};
}

Result<void> GroupCase::deal() {
  const Features& features = problem_.features;
  const int batch = whole_->batch(), count = ranks(), unit = features.context_interleave;
  std::mt19937_64 random(whole_->options().seed);
  for (Rank& rank : ranks_) rank.lengths.clear(), rank.starts.clear();
  std::vector<int> full;
  for (int request = 0; request < batch; ++request) {
    const int length = whole_->clamped_length(request);
    full.push_back(length);
    // Where the parts begin: contiguous ones are cut anywhere, or one rank has all.
    std::vector<int> cuts{0};
    for (int rank = 1; rank < count; ++rank) {
      const int anywhere = static_cast<int>(random() % static_cast<unsigned>(length + 1));
      cuts.push_back(options_.even || request % 4 == 0 ? static_cast<int>(std::int64_t{length} * rank / count)
                     : request % 4 == 1                ? (rank <= request / 4 % count ? 0 : length)
                                                       : anywhere);
    }
    cuts.push_back(length);
    std::sort(cuts.begin(), cuts.end());
    for (int rank = 0; rank < count; ++rank) {
      const auto r = static_cast<std::size_t>(rank);
      ranks_[r].starts.push_back(unit > 0 ? 0 : cuts[r]);
      ranks_[r].lengths.push_back(unit > 0 ? interleaved_length(length, unit, count, rank) : cuts[r + 1] - cuts[r]);
    }
  }
  const LeanDecodeArgs from = whole_->args();
  const std::int64_t element = kv_element_bytes(features);
  const auto k = download(from.k, batch * from.k_stride_batch * element, stream_);
  if (!k) return tl::unexpected(k.error());
  const auto v = features.latent ? k : download(from.v, batch * from.v_stride_batch * element, stream_);
  if (!v) return tl::unexpected(v.error());
  for (int number = 0; number < count; ++number) {
    Rank& rank = ranks_[static_cast<std::size_t>(number)];
    const CurrentContext scope = enter(number);
    LEANATTN_TRY(scope.entered());
    LEANATTN_TRY(deal_tensor(rank, number, true, *k));
    if (!features.latent) LEANATTN_TRY(deal_tensor(rank, number, false, *v));
    LEANATTN_TRY(upload_to(rank.lengths_device, rank.lengths, rank.stream.get()));
    LEANATTN_TRY(upload_to(rank.starts_device, rank.starts, rank.stream.get()));
    LEANATTN_TRY(upload_to(rank.full_device, full, rank.stream.get()));
    if (features.page_size == 0) continue;
    // Entries behind a rank's tokens and outside of windows hold pages that no pool has.
    std::vector<int> table = pages_;
    const auto per_request = static_cast<int>(table.size()) / batch;
    for (int request = 0; request < batch; ++request)
      for (int page = 0; page < per_request; ++page)
        if (!page_is_seen(rank, number, request, page))
          table[static_cast<std::size_t>(request) * static_cast<std::size_t>(per_request) +
                static_cast<std::size_t>(page)] = 0x7ffffff0;
    LEANATTN_TRY(upload_to(rank.page_table, table, rank.stream.get()));
  }
  return {};
}

std::int64_t GroupCase::position_of(const Rank& rank, int number, std::int64_t request, std::int64_t token) const {
  const int unit = problem_.features.context_interleave;
  if (unit > 0) return ((token / unit) * ranks() + number) * unit + token % unit;
  return rank.starts[static_cast<std::size_t>(request)] + token;
}

bool GroupCase::seen(std::int64_t request, std::int64_t position) const {
  const Features& features = problem_.features;
  if (features.window == 0 || position < features.sink_tokens) return true;
  const int queries = whole_->query_tokens()[static_cast<std::size_t>(request)];
  return position > whole_->clamped_length(static_cast<int>(request)) - queries - features.window;
}

bool GroupCase::is_new(std::int64_t request, std::int64_t position) const {
  return position >=
         whole_->clamped_length(static_cast<int>(request)) - whole_->query_tokens()[static_cast<std::size_t>(request)];
}

Result<void> GroupCase::check_caches(ComparisonReport& report) {
  const KvFormat format = problem_.features.kv_format;
  const std::size_t element = static_cast<std::size_t>(kv_element_bytes(problem_.features));
  for (std::size_t number = 0; number < ranks_.size(); ++number) {
    const Rank& rank = ranks_[number];
    const CurrentContext scope(rank.context());
    LEANATTN_TRY(scope.entered());
    for (const bool is_k : {true, false}) {
      const std::vector<unsigned char>& expected = is_k ? rank.k_expected : rank.v_expected;
      if (expected.empty()) continue;
      const auto found =
          download((is_k ? rank.k : rank.v).data(), static_cast<std::int64_t>(expected.size()), rank.stream.get());
      if (!found) return tl::unexpected(found.error());
      if (*found == expected) continue;
      std::int64_t wrong = 0;
      for (std::size_t at = 0; at < expected.size(); at += element) {
        // Turning a zero may change its sign, which is in the last byte.
        const unsigned char sign = format == KvFormat::int8 ? 0 : 0x80;
        bool zeros = true, equal = true;
        for (std::size_t i = 0; i < element; ++i) {
          const auto bits = static_cast<unsigned char>(i + 1 == element ? ~sign : 0xff);
          equal &= (*found)[at + i] == expected[at + i];
          zeros &= ((*found)[at + i] & bits) == 0 && (expected[at + i] & bits) == 0;
        }
        wrong += !equal && !zeros;
      }
      report.wrong_appended += wrong;
      if (wrong > 0)
        note_failure(report, fmt::format("rank {} has {} wrong elements in its cache of {} after an append", number,
                                         wrong, is_k ? "K" : "V"));
    }
  }
  return {};
}

bool GroupCase::page_is_seen(const Rank& rank, int number, std::int64_t request, std::int64_t page) const {
  const std::int64_t first = page * problem_.features.page_size,
                     end = std::min<std::int64_t>(first + problem_.features.page_size,
                                                  rank.lengths[static_cast<std::size_t>(request)]);
  for (std::int64_t token = first; token < end; ++token)
    if (seen(request, position_of(rank, number, request, token))) return true;
  return false;
}

Result<void> GroupCase::deal_tensor(Rank& rank, int number, bool is_k, const std::vector<unsigned char>& from) {
  const Features& features = problem_.features;
  const LeanDecodeArgs whole = whole_->args();
  const std::int64_t columns = is_k ? problem_.head_dim : whole_->v_head_dim();
  const std::int64_t row = columns * kv_element_bytes(features), capacity = rank_capacity();
  const std::int64_t page = features.page_size, heads = problem_.kv_heads, batch = whole_->batch();
  const std::int64_t from_batch = is_k ? whole.k_stride_batch : whole.v_stride_batch,
                     from_head = is_k ? whole.k_stride_head : whole.v_stride_head,
                     from_token = is_k ? whole.k_stride_token : whole.v_stride_token;
  const std::int64_t pool = page > 0 ? static_cast<std::int64_t>(pages_.size()) + 5 : 0;
  const std::int64_t tokens = page > 0 ? pool * page : batch * capacity;
  const Strides place = strides(columns);
  // What no kernel may read is NaN, or a value that no data has. What it may read but must not use, tokens outside the
  // window in a page with tokens that are seen, is neither that nor data.
  constexpr unsigned char kUnseenByte = 0x40;  // 3 in bf16, 2 in fp16 and fp8, 64 in int8
  const unsigned char kSpoiltByte = features.kv_format == KvFormat::int8 ? 0x80 : kPoisonByte;  // of new tokens' rows
  std::vector<unsigned char> to(static_cast<std::size_t>(tokens * heads * row),
                                features.kv_format == KvFormat::int8 ? 0x80 : kPoisonByte);
  const int unit = features.context_interleave;
  for (std::int64_t request = 0; request < batch; ++request) {
    const auto r = static_cast<std::size_t>(request);
    // Tokens that follow each other here and there are copied at once.
    const std::int64_t element = kv_element_bytes(features);
    const bool in_a_row = place.token == columns && from_token == columns;
    for (std::int64_t token = 0, run = 0; token < rank.lengths[r]; token += run) {
      run = in_a_row ? rank.lengths[r] - token : 1;
      if (unit > 0) run = std::min(run, unit - token % unit);
      if (page > 0) run = std::min(run, page - token % page);
      const std::int64_t position = position_of(rank, number, request, token);
      const bool mixed = page > 0 && features.window > 0 && page_is_seen(rank, number, request, token / page);
      const std::int64_t block =
          page > 0 ? pages_[static_cast<std::size_t>(request * (capacity / page) + token / page)] : request;
      for (std::int64_t head = 0; head < heads; ++head) {
        const std::int64_t at =
            block * place.batch + head * place.head + (page > 0 ? token % page : token) * place.token;
        const std::int64_t source = request * from_batch + head * from_head + position * from_token;
        std::memcpy(to.data() + at * element, from.data() + source * element, static_cast<std::size_t>(run * row));
        for (std::int64_t i = 0; mixed && i < run; ++i)
          if (!seen(request, position + i))
            std::memset(to.data() + (at + i * place.token) * element, kUnseenByte, static_cast<std::size_t>(row));
      }
    }
  }
  if (features.append) {
    (is_k ? rank.k_expected : rank.v_expected) = to;
    for (std::int64_t request = 0; request < batch; ++request) {
      for (std::int64_t token = 0; token < rank.lengths[static_cast<std::size_t>(request)]; ++token) {
        if (!is_new(request, position_of(rank, number, request, token))) continue;
        const std::int64_t block =
            page > 0 ? pages_[static_cast<std::size_t>(request * (capacity / page) + token / page)] : request;
        for (std::int64_t head = 0; head < heads; ++head) {
          const std::int64_t at =
              block * place.batch + head * place.head + (page > 0 ? token % page : token) * place.token;
          std::memset(to.data() + at * kv_element_bytes(features), kSpoiltByte, static_cast<std::size_t>(row));
        }
      }
    }
    (is_k ? rank.k_spoilt : rank.v_spoilt) = to;
  }
  DeviceBuffer& buffer = is_k ? rank.k : rank.v;
  const auto bytes = static_cast<std::int64_t>(to.size());
  if (buffer.bytes() < bytes * options_.kv_copies) {
    auto allocated = DeviceBuffer::allocate(bytes * options_.kv_copies);
    if (!allocated) return tl::unexpected(allocated.error());
    buffer = std::move(*allocated);
  }
  for (int copy = 0; copy < options_.kv_copies; ++copy)
    LEANATTN_TRY(copy_to_device_async(buffer.at(copy * bytes), to.data(), bytes, rank.stream.get()));
  return wait_for(rank.stream.get());
}

LeanDecodeArgs GroupCase::args(int number, int kv_copy) const {
  const Rank& rank = ranks_[static_cast<std::size_t>(number)];
  const Features& features = problem_.features;
  LeanDecodeArgs args = whole_->args();
  const std::int64_t capacity = rank_capacity();
  const Strides k = strides(problem_.head_dim), v = features.latent ? k : strides(whole_->v_head_dim());
  args.k_stride_batch = k.batch, args.k_stride_head = k.head, args.k_stride_token = k.token;
  args.v_stride_batch = v.batch, args.v_stride_head = v.head, args.v_stride_token = v.token;
  args.k = rank.k.at(rank.k.bytes() / options_.kv_copies * kv_copy);
  args.v = features.latent ? args.k : rank.v.at(rank.v.bytes() / options_.kv_copies * kv_copy);
  args.context_capacity = static_cast<int>(capacity);
  args.context_lengths = rank.lengths_device.as<int>();
  if (features.page_size > 0) {
    args.page_table = rank.page_table.as<int>();
    args.page_table_stride = capacity / features.page_size;
    args.pool_pages = static_cast<int>(pages_.size()) + 5;
  }
  args.full_lengths = rank.full_device.as<int>();
  args.context_starts = rank.starts_device.as<int>();
  args.group_checks = 1;
  args.o = rank.o.data(), args.lse = rank.lse.as<float>();
  if (rank.gpu) {
    args.q = rank.q.data(), args.q_offsets = rank.q_offsets.as<int>();
    args.sink_logits = rank.sink_logits.as<float>(), args.alibi_slopes = rank.alibi_slopes.as<float>();
    args.rope_table = rank.rope_table.as<float>();
    args.k_new = rank.k_new.data(), args.v_new = rank.v_new.data();
    args.k_scale = rank.k_scale.as<float>(), args.v_scale = rank.v_scale.as<float>();
  }
  args.status = rank.status->block();
  rank.member->bind(args);
  return args;
}

WorkspaceLayout GroupCase::workspace(const KernelSpec& spec, LaunchGrid grid) const {
  const std::int64_t outputs = output_tiles(problem_, whole_->batch(), spec);
  return workspace_layout(spec, partial_slots(spec, grid.ctas, outputs, rank_capacity()), outputs);
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
    for (const auto& [buffer, spoilt] : {std::pair(&rank.k, &rank.k_spoilt), std::pair(&rank.v, &rank.v_spoilt)})
      if (!spoilt->empty())
        LEANATTN_TRY(copy_to_device_async(buffer->data(), spoilt->data(), static_cast<std::int64_t>(spoilt->size()),
                                          rank.stream.get()));
    LEANATTN_TRY(fill_bytes_async(rank.o.data(), kPoisonByte, rank.o.bytes(), rank.stream.get()));
    LEANATTN_TRY(fill_bytes_async(rank.lse.data(), kPoisonByte, rank.lse.bytes(), rank.stream.get()));
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
    auto o = download(rank.o.data(), rank.o.bytes(), rank.stream.get());
    if (!o) return tl::unexpected(o.error());
    const auto lse = download(rank.lse.data(), rank.lse.bytes(), rank.stream.get());
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
  LEANATTN_TRY(whole_->set_context_lengths(std::move(context_lengths), stream_));
  LEANATTN_TRY(wait_for(stream_));
  // Where rows are turned, q depends on positions, as new tokens always do.
  for (Rank& rank : ranks_) {
    if (rank.gpu) LEANATTN_TRY(copy_inputs(rank));
  }
  return deal();
}

Result<void> GroupCase::reset() {
  for (Rank& rank : ranks_) {
    const CurrentContext scope(rank.context());
    LEANATTN_TRY(scope.entered());
    LEANATTN_TRY(rank.workspace->reset(rank.stream.get()));
    LEANATTN_TRY(rank.member->reset(rank.stream.get()));
    rank.status->acknowledge();
    LEANATTN_TRY(wait_for(rank.stream.get()));
  }
  return {};
}

}  // namespace v1
}  // namespace leanattn
