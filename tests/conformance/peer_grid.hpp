// peer_grid.hpp -- PeerGrid: the problems that another library's tests run, as data. peer_grids.inc has all of them.
// Plain data; any thread.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "generator/kernel_spec.hpp"
#include "tuner/oracle/random_data.hpp"

namespace leanattn {

/// Every combination of its lists is a case. The requests of a batch have the same context length, unless `ragged`
/// lists them one by one. The tolerance is the peer's own. Ours is twice the error of a plain implementation in the
/// same precision, and 2^-21 of LSE, which is tighter everywhere.
struct PeerGrid {
  std::string name;       ///< letters and digits; also the name of the test
  std::string tolerance;  ///< in the peer's words
  std::vector<int> batches = {1};
  std::vector<int> contexts = {};
  std::vector<std::vector<int>> ragged =
      {};  ///< context lengths of whole batches; more cases beside batches x contexts
  std::vector<int> page_sizes = {0};
  std::vector<std::pair<int, int>> heads = {};  ///< query heads and KV heads
  std::vector<int> head_dims = {128};
  std::vector<DType> dtypes = {DType::bf16};
  std::vector<KvLayout> layouts = {KvLayout::contiguous};
  std::vector<Features> features = {{}};  ///< page_sizes gives their page sizes
  std::vector<DataKind> data = {DataKind::uniform};
};

/// All grids of peer_grids.inc.
std::span<const PeerGrid> peer_grids();

}  // namespace leanattn
