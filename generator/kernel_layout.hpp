// kernel_layout.hpp -- KernelLayout: the numbers that follow from a KernelSpec, worked out once. Plain data; any
// thread.
#pragma once

#include "generator/kernel_spec.hpp"

namespace leanattn {
inline namespace v1 {

struct KernelFamily;

/// How the kernel of a spec deals its work out, and what that takes. layout_of() makes it.
struct KernelLayout {
  const KernelFamily* family = nullptr;  ///< families/family.hpp

  // Query rows.
  int rows = 0;           ///< that one CTA carries in a pass over the cache: those of an output tile
  int row_blocks = 0;     ///< output tiles of a KV head
  int rows_of_warp = 16;  ///< query rows of a warp, where these are on the rows of the matrix instructions: 16 or 32
  /// CTAs that take a range of the line together, a row block each, so that they read the same KV at about the same
  /// time, and all but the first of them from L2 (templates/line/rows.cuh). 1: the line has the row blocks of a KV head
  /// one after the other.
  int row_blocks_in_step = 1;
  /// Whether KV heads whose rows share sectors of memory go in step likewise, as many as lean_heads_in_step says.
  bool heads_in_step = false;

  /// Positions of the line that a LeanTile takes, and one of an output tile of which at most half of the rows exist.
  /// They stand for what these take on an SM, so that equal ranges take equal times. 1: all LeanTiles count alike.
  int tile_positions = 1, light_tile_positions = 1;
  /// Ranges of a CTA, at most: a long line is walked in so many passes (templates/line/walk.cuh).
  int most_passes = 1;

  // How KV travels.
  int step_tokens = 0;  ///< that one warp (load path tensor: one warpgroup) takes per step
  /// Tokens of a run of a paged cache: the largest power of two that divides the page size, and at most a step and a
  /// block of a selection; 1 where load path tensor has no copies of such runs, because they have fewer than 8 tokens
  /// (as where the page size is no multiple of 8), lie in two caches, or are converted row by row. A run's tokens are
  /// adjacent in memory whatever the page table and the selection say. 1 for a dense cache.
  int page_run = 1;
  /// Whether the producer of load path tensor turns rows of bytes into operands of the matrix instructions
  /// (templates/kv/produce_rows.cuh or produce_buffered_rows.cuh): rows with a format of their own, or with elements of
  /// one byte.
  bool converts_rows = false;
  /// Whether rows are gathered one by one: those that are converted, and all of load path tensor where it has no copies
  /// of runs (templates/kv/produce_gathered.cuh).
  bool gathers_rows = false;
  int gathering_warps = 0;  ///< producer warps that do; 0 where rows are not gathered
  /// CTAs that convert the rows of a step together: two, which are a cluster, where row blocks in step need the same
  /// rows of a format of their own (templates/kv/row_panels.cuh). Otherwise each CTA converts its rows alone.
  int converting_ctas = 1;
  /// Bytes of a buffer beside the ring in which rows wait to be converted (templates/kv/row_buffer.cuh). 0 where they
  /// wait in the stages (templates/kv/row_panels.cuh).
  int row_buffer_bytes = 0;
  /// Whether load path tensor of family mma copies rows and their scales in boxes of 16 tokens
  /// (templates/kv/boxes.cuh).
  bool copies_boxes = false;
  /// With append, whether load path tensor takes new rows from where they are given (templates/kv/append_to_stage.cuh).
  /// Elsewhere they are written into the cache and read from there (templates/kv/append_to_cache.cuh).
  bool appends_to_stage = false;
  /// Parts of a stage of the ring that become full and empty one by one. 1, or where warpgroups have roles 2: the
  /// columns of the first half of V, and all others (templates/kv/tensor.cuh).
  int stage_parts = 1;

  // Threads.
  /// Warps beside the spec's, which hold no part of O: those of load path tensor that request KV. One, or a warpgroup,
  /// which can hand over its registers or gather rows, or two warpgroups, which convert rows beside a buffer.
  int producer_warps = 0;
  int threads = 0;  ///< of a CTA, producer warps included
  /// Registers of a thread once the producer's warpgroups have handed some of theirs to the others
  /// (templates/attend/wgmma.cuh), and of a thread of the producer. Such a CTA needs an SM for itself. 0: all keep what
  /// the launch gives.
  int consumer_registers = 0, producer_registers = 0;
  int registers = 0;  ///< an even share of an SM's registers for each thread of a CTA; no thread has more than 255

  // Shared memory.
  int shared_bytes = 0;  ///< dynamic
  int static_bytes = 0;  ///< an upper bound of the static part: tickets, barriers, and what the search in a large batch
                         ///< and converted rows need

  // Partials, and how results are written.
  int partial_columns =
      0;                   ///< of four values each, the unit in which partials are merged (templates/merge/partial.cuh)
  int partial_floats = 0;  ///< O [rows, value_dim], and (max, sum) once for each state_columns columns
  /// Neighbouring columns of a partial that have one maximum and sum between them. A warp loads so many of them
  /// together. Of counted partials, how far apart the places for states are; only the first one of a row is used.
  int state_columns = 1;
  /// Columns of partials that a thread asks for at once where contributors wait and take strips of neighbouring columns
  /// (templates/merge/share_strips.cuh): 4 or 8, as it has columns and registers for. 1 where a thread that merges has
  /// fewer than four columns of a partial, or the columns are no multiple of 32; contributors then take single columns
  /// (templates/merge/slice.cuh).
  int strip_loads = 1;
  /// Whether the contributors to an output tile count their partials (templates/merge/counted_partials.cuh). Elsewhere
  /// partials announce themselves.
  bool counts_partials = false;
  /// Whether partials stay in L2 by a hint with all that is written to them (templates/merge/l2_hint.cuh), as counted
  /// ones and those of more than 32 KiB do. Other partials are prefetched (templates/merge/l2_prefetch.cuh), except
  /// those of batch-invariant kernels, of which a CTA stores many: nothing keeps these in L2.
  bool keeps_partials_by_hint = false;
  /// Whether the cache is latent, and a partial has so many columns that one CTA alone takes long to merge it.
  bool has_large_partials = false;
  /// Whether the results of a segment stay in registers until they are written, because one warpgroup has a row's whole
  /// softmax state (templates/merge/held_results.cuh). Elsewhere the states of a CTA's warps or warpgroups meet in
  /// shared memory.
  bool holds_results = false;
  /// Where warpgroups have roles, whether a stage has a place for weights beside K, all of which is V.
  bool weights_beside = false;
  /// Whether the warps write a whole output tile row by row, by way of shared memory (templates/merge/write_rows.cuh).
  bool writes_rows = false;

  // Where a CTA has two walks (families/wgmma_mixed.cpp).
  /// Of the layout of one walk: what it has of the CTA. few_tokens: up to how many query tokens the requests of the
  /// other walk, or with takes_few its own, have; 0: there is no other one. The rest is what the other one has in
  /// front: barriers, bytes of dynamic shared memory, and for each CTA tickets and floats of partials.
  struct Share {
    int few_tokens = 0;
    bool takes_few = false;
    int first_barrier = 0, shared_before = 0, tickets_before = 0, partials_before = 0;
  } share;
  /// Of the layout of both: floats of a partial of the second walk, which a CTA shares as many of as of its own.
  int few_partial_floats = 0;
};

/// The layout of a spec whose group and warps are positive.
KernelLayout layout_of(const KernelSpec& spec);
/// The same, for a caller who has asked which family the spec is of.
KernelLayout layout_of(const KernelSpec& spec, const KernelFamily& family);

}  // namespace v1
}  // namespace leanattn
