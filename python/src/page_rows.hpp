// page_rows.hpp -- PageRows: page tables in compressed rows (indptr, indices, last_page_len), checked and made into the
// page table and context lengths of a launch; and PageRowsKernel, which does it. Python objects are used with the GIL
// held.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>

#include "runtime/cuda/gpu.hpp"
#include "streams.hpp"
#include "tensor.hpp"

// Of templates/standalone/page_rows.cuh; that file is a part of one source file only.
struct LeanPageRows;

namespace leanattn::python {

struct EngineObject;

/// The kernel of one GPU, which is loaded at the first launch. Thread-safe.
class PageRowsKernel {
 public:
  /// `directory` is that of cubin.db; nullopt: nothing is kept on the disk.
  PageRowsKernel(Context context, std::optional<std::filesystem::path> directory)
      : context_(std::move(context)), directory_(std::move(directory)) {}
  PageRowsKernel(const PageRowsKernel&) = delete;
  PageRowsKernel& operator=(const PageRowsKernel&) = delete;
  /// No launch may be running, and no graph that has one may run again.
  ~PageRowsKernel();

  /// Enqueues one launch. Errors: not_prepared (the kernel is not loaded, and the stream is being captured), those of
  /// compile_source and LoadedSource, launch_failed, context_lost.
  Result<void> launch(const LeanPageRows& rows, CUstream_st* stream);

 private:
  Result<void> load();

  Context context_;
  const std::optional<std::filesystem::path> directory_;
  std::mutex mutex_;  // guards source_ while it is loaded
  std::unique_ptr<LoadedSource> source_;
  std::atomic<CUfunc_st*> function_ = nullptr;
};

/// The arguments of one conversion. It keeps the tensors, and so must live until the launch is enqueued.
class PageRows {
 public:
  /// Reads the three arrays. Raises an error that names the argument.
  PageRows(nanobind::handle indptr, nanobind::handle indices, nanobind::handle last_page_len, std::int64_t page_size,
           CUstream_st* stream);

  const TensorView& indptr() const { return indptr_; }
  int device() const { return indptr_.device(); }
  std::int64_t batch() const { return batch_; }
  /// Of an array that an empty batch may leave empty.
  std::int64_t least_extent() const { return batch_ == 0 ? 0 : 1; }
  /// Pages of all requests together, or more: the length of indices.
  std::int64_t pages() const { return pages_; }

  /// Takes the results, or makes them of the framework of the arrays: [batch, max_pages] and [batch].
  void set_results(nanobind::handle page_table, nanobind::handle context_lengths, std::int64_t max_pages);
  const nanobind::object& page_table() const { return page_table_; }
  const nanobind::object& context_lengths() const { return context_lengths_; }

  /// Instead of tensors, results may be in device memory of bytes_for(max_pages). The GIL need not be held.
  std::int64_t bytes_for(std::int64_t max_pages) const;
  void set_results(void* memory, std::int64_t max_pages);
  /// Where the results are, once they are set.
  const std::int32_t* page_table_data() const { return table_; }
  const std::int32_t* context_lengths_data() const { return lengths_; }

  /// Enqueues the conversion. The GIL need not be held.
  Result<void> launch(PageRowsKernel& kernel) const;

 private:
  std::int64_t bytes_of_lengths() const;

  nanobind::handle like_;
  CUstream_st* stream_;
  TensorView indptr_, indices_, last_page_len_;
  std::int64_t batch_ = 0, pages_ = 0, page_size_ = 0;
  nanobind::object page_table_, context_lengths_;
  std::deque<TensorView> results_;  // the tensors, if they are
  std::int32_t *table_ = nullptr, *lengths_ = nullptr;
  std::int64_t table_stride_ = 0, max_pages_ = 0;
};

void bind_page_table(nanobind::module_& module);

}  // namespace leanattn::python
