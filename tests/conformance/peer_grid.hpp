// peer_grid.hpp -- PeerGrid: a grid of problems that another library's tests run, as data; peer_grids.inc has them all.
// Plain data; any thread.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "generator/kernel_spec.hpp"
#include "tuner/random_data.hpp"

namespace leanattn {

/// Every combination of its lists is a case; each request of a batch has the same context, or they are listed one by
/// one. The tolerance is the peer's own; ours is twice the error of a plain implementation of the same precision, and a
/// 2^-21 of LSE, which is tighter everywhere.
struct PeerGrid {
  std::string name;       ///< of the test, too: letters and digits
  std::string tolerance;  ///< as the peer states it
  std::vector<int> batches = {1};
  std::vector<int> contexts = {};
  std::vector<std::vector<int>> ragged = {};  ///< context lengths of whole batches, beside batches x contexts
  std::vector<int> page_sizes = {0};
  std::vector<std::pair<int, int>> heads = {};  ///< of q, of K and V
  std::vector<int> head_dims = {128};
  std::vector<DType> dtypes = {DType::bf16};
  std::vector<KvLayout> layouts = {KvLayout::contiguous};
  std::vector<Features> features = {{}};  ///< their page size is that of page_sizes
  std::vector<DataKind> data = {DataKind::uniform};
};

/// All of peer_grids.inc.
std::span<const PeerGrid> peer_grids();

}  // namespace leanattn
