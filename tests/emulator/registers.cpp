// registers.cpp -- which registers of a function share a place, so that a warp's registers stay in the host's caches.
#include <algorithm>
#include <map>

#include "tests/emulator/decoder.hpp"

namespace emulator {
namespace {

using Bits = std::vector<std::uint64_t>;

struct Block {
  std::size_t begin, end;
  std::vector<std::size_t> next;
  Bits in, out, used, defined;  // used before it is defined
};

bool has(const Bits& bits, std::size_t i) { return (bits[i / 64] >> i % 64 & 1) != 0; }
void add(Bits& bits, std::size_t i) { bits[i / 64] |= std::uint64_t{1} << i % 64; }
bool is_register(Operand o) { return o >= 0 && o < kFixed; }

std::vector<Block> blocks_of(const std::vector<RawInstruction>& code, std::size_t words) {
  std::vector<bool> starts(code.size() + 1);
  starts[0] = true;
  for (std::size_t i = 0; i < code.size(); ++i) {
    for (const std::uint32_t place : code[i].places) starts[place] = true;
    if (!code[i].places.empty() || code[i].ends) starts[i + 1] = true;
  }
  std::vector<Block> blocks;
  std::vector<std::size_t> block_at(code.size() + 1);
  for (std::size_t i = 0; i < code.size(); ++i) {
    if (starts[i]) blocks.push_back({i, i, {}, Bits(words), Bits(words), Bits(words), Bits(words)});
    blocks.back().end = i + 1;
    block_at[i] = blocks.size() - 1;
  }
  for (Block& block : blocks) {
    const RawInstruction& last = code[block.end - 1];
    for (const std::uint32_t place : last.places) block.next.push_back(block_at[place]);
    const bool falls = !last.ends || last.guard != kNoOperand;
    if (falls && block.end < code.size()) block.next.push_back(block_at[block.end]);
    for (std::size_t i = block.begin; i < block.end; ++i) {
      const RawInstruction& raw = code[i];
      const auto uses = [&](Operand o) {
        if (is_register(o) && !has(block.defined, static_cast<std::size_t>(o)))
          add(block.used, static_cast<std::size_t>(o));
      };
      uses(raw.guard);
      for (std::size_t k = raw.in.results; k < raw.operands.size(); ++k) uses(raw.operands[k]);
      for (std::size_t k = 0; k < raw.in.results; ++k) {
        if (raw.guard != kNoOperand) uses(raw.operands[k]);  // other lanes keep their values
        if (is_register(raw.operands[k])) add(block.defined, static_cast<std::size_t>(raw.operands[k]));
      }
    }
  }
  return blocks;
}

}  // namespace

std::int64_t place_registers(const std::vector<RawInstruction>& code, const std::vector<int>& widths,
                             const std::set<Operand>& pinned, std::int64_t begin, std::vector<Operand>& places) {
  const std::size_t words = widths.size() / 64 + 1;
  std::vector<Block> blocks = blocks_of(code, words);
  for (bool changed = true; changed;) {
    changed = false;
    for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) {
      for (std::size_t w = 0; w < words; ++w) {
        std::uint64_t out = 0;
        for (const std::size_t next : block->next) out |= blocks[next].in[w];
        const std::uint64_t in = block->used[w] | (out & ~block->defined[w]);
        changed |= in != block->in[w] || out != block->out[w];
        block->out[w] = out, block->in[w] = in;
      }
    }
  }
  // The instructions from the first to the last at which a register is alive, in the order of the text.
  struct Interval {
    std::size_t first = SIZE_MAX, last = 0;
  };
  std::vector<Interval> intervals(widths.size());
  const auto alive = [&](std::size_t r, std::size_t at) {
    intervals[r].first = std::min(intervals[r].first, at);
    intervals[r].last = std::max(intervals[r].last, at);
  };
  for (const Block& block : blocks) {
    for (std::size_t r = 0; r < widths.size(); ++r) {
      if (has(block.in, r)) alive(r, block.begin);
      if (has(block.out, r)) alive(r, block.end - 1);
    }
    for (std::size_t i = block.begin; i < block.end; ++i) {
      if (is_register(code[i].guard)) alive(static_cast<std::size_t>(code[i].guard), i);
      for (const Operand o : code[i].operands)
        if (is_register(o)) alive(static_cast<std::size_t>(o), i);
    }
  }
  for (const Operand r : pinned) intervals[static_cast<std::size_t>(r)] = {0, code.size()};
  std::vector<std::size_t> order;
  for (std::size_t r = 0; r < widths.size(); ++r)
    if (intervals[r].first != SIZE_MAX) order.push_back(r);
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return intervals[a].first < intervals[b].first; });
  std::map<int, std::vector<Operand>> free;
  std::multimap<std::size_t, std::size_t> ending;
  places.assign(widths.size(), 0);
  for (const std::size_t r : order) {
    while (!ending.empty() && ending.begin()->first < intervals[r].first) {
      free[widths[ending.begin()->second]].push_back(places[ending.begin()->second]);
      ending.erase(ending.begin());
    }
    auto& of_width = free[widths[r]];
    if (of_width.empty()) {
      places[r] = static_cast<Operand>(begin);
      begin += widths[r] == 0 ? 4 : widths[r] * kLanes;
      begin = (begin + 63) / 64 * 64;
    } else {
      places[r] = of_width.back();
      of_width.pop_back();
    }
    ending.emplace(intervals[r].last, r);
  }
  return begin;
}

}  // namespace emulator
