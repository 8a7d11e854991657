// page_rows.cpp -- leanattn.page_table, and the kernel behind it.
#include "page_rows.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "cache/cubin/cubin_db.hpp"
#include "engine_object.hpp"
#include "errors.hpp"
#include "generator/templates.hpp"
#include "names.hpp"
#include "runtime/cuda/compiler.hpp"
#include "runtime/cuda/current_context.hpp"
#include "runtime/cuda/device.hpp"
#include "stream_capture.hpp"
#include "templates/standalone/page_rows.cuh"

namespace leanattn::python {
namespace nb = nanobind;
namespace {

constexpr unsigned kThreads = 256;
constexpr std::int64_t kAlignment = 256;      // of arrays that are together in one memory
constexpr std::int64_t kMostCtasOfARow = 64;  // more would find nothing to do but in contexts of very many pages

std::string_view page_rows_source() {
  const auto templates = embedded_templates();
  return std::find_if(templates.begin(), templates.end(),
                      [](const EmbeddedTemplate& t) { return t.name == "standalone/page_rows.cuh"; })
      ->text;
}

void require_integers(const TensorView& tensor, const char* shape) {
  tensor.require_type(ElementType::int32);
  tensor.require_rank(1, shape);
  tensor.require_contiguous();
}

}  // namespace

PageRowsKernel::~PageRowsKernel() {
  const CurrentContext scope(context_.get());
  source_.reset();
}

Result<void> PageRowsKernel::load() {
  const std::lock_guard lock(mutex_);
  if (function_.load(std::memory_order_acquire) != nullptr) return {};
  const auto facts = device_facts(context_.ordinal());
  if (!facts) return tl::unexpected(facts.error());
  const auto cubins = open_cubin_db(directory_, nullptr);
  const auto compiled = compile_source(page_rows_source(), facts->arch, cubins.get());
  if (!compiled) return tl::unexpected(compiled.error());
  auto loaded = LoadedSource::load(*compiled);
  if (!loaded) return tl::unexpected(std::move(loaded.error()));
  const auto function = loaded->function("page_rows");
  if (!function) return tl::unexpected(function.error());
  source_ = std::make_unique<LoadedSource>(*std::move(loaded));
  function_.store(*function, std::memory_order_release);
  return {};
}

Result<void> PageRowsKernel::launch(const LeanPageRows& rows, CUstream_st* stream) {
  const CurrentContext scope(context_.get());
  if (!scope.entered()) return scope.entered();
  if (function_.load(std::memory_order_acquire) == nullptr) [[unlikely]] {
    const auto capture = stream_capture_of(stream);
    if (!capture) return tl::unexpected(capture.error());
    if (capture->id != 0) {
      return fail(ErrorCode::not_prepared,
                  "the kernel of page_table is not loaded yet, and the stream is being captured",
                  "Make the same call once before the stream capture begins.");
    }
    if (auto ok = load(); !ok) return ok;
  }
  LaunchDims dims;
  dims.grid_x = static_cast<unsigned>(rows.batch);
  dims.grid_y =
      static_cast<unsigned>(std::min<std::int64_t>((rows.max_pages + kThreads - 1) / kThreads, kMostCtasOfARow));
  dims.threads = kThreads;
  return launch_with(function_.load(std::memory_order_acquire), dims, stream, rows);
}

PageRows::PageRows(nb::handle indptr, nb::handle indices, nb::handle last_page_len, std::int64_t page_size,
                   CUstream_st* stream)
    : like_(indices),
      stream_(stream),
      indptr_(indptr, "indptr", stream),
      indices_(indices, "indices", stream),
      last_page_len_(last_page_len, "last_page_len", stream),
      page_size_(page_size) {
  require_integers(indptr_, "[batch + 1]");
  if (indptr_.extent(0) < 1)
    bad_value("indptr", fmt::format("has shape {}, not [batch + 1]", indptr_.shape_text()),
              "Of an empty batch it has one entry.");
  batch_ = indptr_.extent32(0) - 1;
  require_integers(indices_, "[pages]");
  pages_ = indices_.extent32(0, least_extent());
  require_integers(last_page_len_, "[batch]");
  last_page_len_.require_extent(0, batch_, "batch, one less than indptr has");
  for (const TensorView* array : {&indices_, &last_page_len_}) {
    if (array->device() != indptr_.device())
      bad_value(array->name(),
                fmt::format("is on CUDA device {}, but indptr is on device {}", array->device(), indptr_.device()),
                "All tensors of a call are on one GPU.");
  }
  if (page_size < 1 || page_size > std::numeric_limits<std::int32_t>::max())
    bad_value("page_size", fmt::format("is {}", page_size), "Give the tokens of a page.");
}

void PageRows::set_results(nb::handle page_table, nb::handle context_lengths, std::int64_t max_pages) {
  page_table_ = page_table.is_none() ? empty(like_, nb::make_tuple(batch_, max_pages), false) : nb::borrow(page_table);
  context_lengths_ =
      context_lengths.is_none() ? empty(like_, nb::make_tuple(batch_), false) : nb::borrow(context_lengths);
  const TensorView& table = results_.emplace_back(page_table_, "out", stream_);
  const TensorView& lengths = results_.emplace_back(context_lengths_, "out_lengths", stream_);
  for (const TensorView* result : {&table, &lengths}) {
    if (result->device() != device())
      bad_value(result->name(),
                fmt::format("is on CUDA device {}, but indptr is on device {}", result->device(), device()),
                "All tensors of a call are on one GPU.");
    result->require_type(ElementType::int32);
  }
  table.require_rank(2, "[batch, max_pages]");
  table.require_extent(0, batch_, "batch");
  table.require_extent(1, max_pages, "max_pages");
  table.require_rows(/*written=*/true);
  lengths.require_rank(1, "[batch]");
  lengths.require_extent(0, batch_, "batch");
  lengths.require_contiguous();
  table_ = table.data<std::int32_t>();
  lengths_ = lengths.data<std::int32_t>();
  table_stride_ = table.stride(0);
  max_pages_ = max_pages;
}

std::int64_t PageRows::bytes_of_lengths() const {
  return (batch_ * std::int64_t{sizeof(std::int32_t)} + kAlignment - 1) / kAlignment * kAlignment;
}

std::int64_t PageRows::bytes_for(std::int64_t max_pages) const {
  return bytes_of_lengths() + batch_ * max_pages * std::int64_t{sizeof(std::int32_t)};
}

void PageRows::set_results(void* memory, std::int64_t max_pages) {
  lengths_ = static_cast<std::int32_t*>(memory);
  table_ = lengths_ + bytes_of_lengths() / std::int64_t{sizeof(std::int32_t)};
  table_stride_ = max_pages_ = max_pages;
}

Result<void> PageRows::launch(PageRowsKernel& kernel) const {
  if (batch_ == 0) return {};
  LeanPageRows rows{};
  rows.indptr = indptr_.data<int>();
  rows.indices = indices_.data<int>();
  rows.last_page_len = last_page_len_.data<int>();
  rows.page_table = table_;
  rows.context_lengths = lengths_;
  rows.page_table_stride = table_stride_;
  rows.batch = static_cast<int>(batch_);
  rows.max_pages = static_cast<int>(max_pages_);
  rows.page_size = static_cast<int>(page_size_);
  rows.index_count = static_cast<int>(pages_);
  return kernel.launch(rows, stream_);
}

namespace {

nb::object page_table(nb::handle indptr, nb::handle indices, nb::handle last_page_len, nb::handle page_size,
                      nb::handle max_pages, nb::handle out, nb::handle out_lengths, nb::handle stream,
                      nb::handle engine) {
  const Stream on = find_stream(stream, indptr);
  PageRows rows(indptr, indices, last_page_len, int64_of(page_size, "page_size"), on.handle);
  std::int64_t wide = rows.pages();
  if (given(max_pages)) {
    wide = int64_of(max_pages, "max_pages");
    if (wide < 1 || wide > std::numeric_limits<std::int32_t>::max())
      bad_value("max_pages", fmt::format("is {}", wide), "Give the most pages that a request has, at least 1.");
  } else if (given(out)) {
    const TensorView table(out, "out", on.handle);
    table.require_rank(2, "[batch, max_pages]");
    wide = table.extent32(1, rows.least_extent());
  }
  EngineObject& object = find_engine(engine, rows.device());
  rows.set_results(out, out_lengths, wide);
  const auto launched = [&]() -> Result<void> {
    const nb::gil_scoped_release without_gil;
    if (auto ok = rows.launch(object.page_rows); !ok) return ok;
    return on.synchronise ? object.workspaces.wait(on.handle) : Result<void>{};
  }();
  unwrap(launched);
  return nb::make_tuple(rows.page_table(), rows.context_lengths());
}

}  // namespace

void bind_page_table(nb::module_& module) {
  module.def(
      "page_table", &page_table, nb::arg("indptr").none(), nb::arg("indices").none(), nb::arg("last_page_len").none(),
      nb::arg("page_size").none(), nb::kw_only(), nb::arg("max_pages") = nb::none(), nb::arg("out") = nb::none(),
      nb::arg("out_lengths") = nb::none(), nb::arg("stream") = nb::none(), nb::arg("engine") = nb::none(),
      nb::sig("def page_table(indptr: typing.Any, indices: typing.Any, last_page_len: typing.Any, page_size: int, *, "
              "max_pages: int | None = None, out: typing.Any = None, out_lengths: typing.Any = None, "
              "stream: typing.Any = None, engine: Engine | None = None) -> tuple[typing.Any, typing.Any]"),
      R"(Makes the page_table and context_lengths of decode() of page tables in compressed rows, as FlashInfer has them.

It enqueues one launch on the framework's current stream, and copies nothing to the host. Call it once a step, and give
its results to the decode() of every layer. In a captured graph it follows what the arrays hold at each replay.

indptr        [batch + 1] int32: request r has the pages indices[indptr[r]:indptr[r + 1]]
indices       [pages] int32: the numbers of pages in the pool; may be longer than the batch needs
last_page_len [batch] int32: tokens in the last page of each request, 1 to page_size
page_size     tokens of a page
max_pages     the most pages that any request has; None: the columns of `out`, else the length of indices, which is
              always enough but makes a large table. Tokens of a request beyond that many pages are left out
out           [batch, max_pages] int32 to write to, also a slice of a larger one; entries behind a request's last page
              keep what they hold
out_lengths   [batch] int32 to write to
stream        a CUDA stream, or its handle, to use instead of the framework's current one. Results that are made here still
              belong to the current one: keep them until the work of `stream` has ended, or give out and out_lengths
engine        an Engine to use instead of the one that is made for the GPU
Returns the pair (page_table, context_lengths), of the framework of indices.
Raises what decode() raises. The first call compiles the kernel, so make one before a graph is captured. A decode() with
pdl must not be the next launch, because it may read the results before they are there.)");
}

}  // namespace leanattn::python
