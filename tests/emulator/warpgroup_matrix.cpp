// warpgroup_matrix.cpp -- wgmma (PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions"). Each warp computes its
// 16 of 64 rows. When it does is drawn: as it issues the instruction, or as late as it waits for it. Until then the
// accumulators belong to the instruction.
#include <algorithm>

#include "tests/emulator/decoder.hpp"
#include "tests/emulator/lanewise.hpp"
#include "tests/emulator/matrix.hpp"
#include "tests/emulator/tensor_map.hpp"

namespace emulator {
namespace {

using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

constexpr int kInner = 16;

// What an instruction's immediate has beside its number of columns.
constexpr std::int64_t kBf16 = 1, kTransposedA = 2, kTransposedB = 4, kRegistersA = 8;

/// Where eight adjacent elements of an operand lie (PTX ISA, "Matrix descriptor", "Canonical layouts"). `outer` counts
/// rows of A or columns of B. Of an operand that is not transposed, inner elements are adjacent.
class Descriptor {
 public:
  Descriptor(u64 bits, bool transposed) : transposed_(transposed) {
    start_ = (bits & 0x3fff) << 4;
    leading_ = (bits >> 16 & 0x3fff) << 4;
    stride_ = (bits >> 32 & 0x3fff) << 4;
    constexpr int kSwizzles[] = {0, 128, 64, 32};
    swizzle_ = kSwizzles[bits >> 62];
  }
  u64 address(int outer, int inner) const {
    const auto o = static_cast<u64>(outer), i = static_cast<u64>(inner);
    u64 offset = 0;
    if (swizzle_ == 0) {
      offset = o / 8 * stride_ + i / 8 * leading_ + (transposed_ ? i % 8 : o % 8) * 16;
    } else if (transposed_) {
      const u64 wide = static_cast<u64>(swizzle_) / 2;
      offset = o / wide * leading_ + i / 8 * stride_ + i % 8 * static_cast<u64>(swizzle_) + o % wide * 2;
    } else {
      offset = o / 8 * stride_ + o % 8 * static_cast<u64>(swizzle_) + i * 2;
    }
    return swizzled(start_ + offset, swizzle_);
  }

 private:
  bool transposed_;
  u64 start_, leading_, stride_;
  int swizzle_;
};

/// Calls put(outer, inner, value) for all elements of an operand with so many rows or columns from `first` on.
template <class F>
void read_operand(Warp& w, const Instruction& in, u64 bits, bool transposed, bool bf16, int first, int count, F put) {
  const Descriptor descriptor(bits, transposed);
  const int outer_step = transposed ? 8 : 1, inner_step = transposed ? 1 : 8;
  for (int outer = 0; outer < count; outer += outer_step) {
    for (int inner = 0; inner < kInner; inner += inner_step) {
      u16 elements[8];
      std::memcpy(elements, w.shared(in, descriptor.address(first + outer, inner), 16), 16);
      for (int e = 0; e < 8; ++e)
        put(outer + (transposed ? e : 0), inner + (transposed ? 0 : e),
            bf16 ? from_bf16(elements[e]) : from_f16(elements[e]));
    }
  }
}

/// Half of a warp's lanes, and of B what each four of them share.
using Half = float __attribute__((vector_size(64)));

void multiply(Warp& w, const MatrixWork& work) {
  const Instruction& in = *work.in;
  const bool bf16 = (in.immediate[0] & kBf16) != 0;
  const int columns = in.results * 2;
  std::array<std::array<float, kInner>, 16> a = work.a;
  if ((in.immediate[0] & kRegistersA) == 0) {
    read_operand(w, in, work.a_descriptor, (in.immediate[0] & kTransposedA) != 0, bf16, w.index % 4 * 16, 16,
                 [&](int row, int k, float x) { a[static_cast<std::size_t>(row)][static_cast<std::size_t>(k)] = x; });
  }
  alignas(64) float rows[2][kInner][kLanes];  // of each lane, its two rows of A
  for (int half = 0; half < 2; ++half)
    for (int k = 0; k < kInner; ++k)
      for (int lane = 0; lane < kLanes; ++lane)
        rows[half][k][lane] = a[static_cast<std::size_t>(lane / 4 + 8 * half)][static_cast<std::size_t>(k)];
  alignas(64) float b[256 / 8][2][kInner][16];
  read_operand(w, in, work.b_descriptor, (in.immediate[0] & kTransposedB) != 0, bf16, 0, columns,
               [&](int column, int k, float x) {
                 float* to = b[column / 8][column % 2][k] + column % 8 / 2;
                 to[0] = to[4] = to[8] = to[12] = x;
               });
  for (int result = 0; result < in.results; ++result) {
    float* const d = w.at<float>(in, result);
    const int tile = result / 4, half = result / 2 % 2, odd = result % 2;
    Half low = {}, high = {};
    if (work.accumulates) std::memcpy(&low, d, 64), std::memcpy(&high, d + 16, 64);
    for (int k = 0; k < kInner; ++k) {
      Half shared, first, second;
      std::memcpy(&shared, b[tile][odd][k], 64);
      std::memcpy(&first, rows[half][k], 64);
      std::memcpy(&second, rows[half][k] + 16, 64);
      low += first * shared;
      high += second * shared;
    }
    std::memcpy(d, &low, 64), std::memcpy(d + 16, &high, 64);
  }
}

/// Executes what has been issued, up to and with a group.
void execute(Warp& w, u64 last_group) {
  MatrixQueue& queue = *w.matrix;
  const u32 lanes = std::exchange(w.exec, kAllLanes);
  for (; !queue.work.empty() && queue.work.front().group <= last_group; queue.work.pop_front()) {
    const MatrixWork& work = queue.work.front();
    if (work.is_copy) {
      work.in->run(w, *work.in);
    } else {
      multiply(w, work);
    }
  }
  w.exec = lanes;
}

void run_issue(Warp& w, const Instruction& in) {
  if (!w.together(kAllLanes)) return;
  if (w.live != kAllLanes) w.fault(in, "lanes have ended");
  if (w.matrix == nullptr) w.matrix = std::make_shared<MatrixQueue>();
  MatrixQueue& queue = *w.matrix;
  MatrixWork work;
  work.in = &in;
  work.group = queue.group;
  const u32 accumulates = *w.at<u32>(in, in.count - 1);
  if (accumulates != 0 && accumulates != kAllLanes) w.fault(in, "lanes differ in whether they accumulate");
  work.accumulates = accumulates != 0;
  int next = in.results;
  if ((in.immediate[0] & kRegistersA) != 0) {
    for (int k = 0; k < 4; ++k) {
      const u32* words = w.at<u32>(in, next++);
      for (int lane = 0; lane < kLanes; ++lane)
        for (int half = 0; half < 2; ++half) {
          const auto bits = static_cast<u16>(words[lane] >> 16 * half);
          work.a[static_cast<std::size_t>(lane / 4 + k % 2 * 8)]
                [static_cast<std::size_t>(lane % 4 * 2 + k / 2 * 8 + half)] =
              (in.immediate[0] & kBf16) != 0 ? from_bf16(bits) : from_f16(bits);
        }
    }
  } else {
    work.a_descriptor = w.at<u64>(in, next++)[0];
  }
  const u64* b = w.at<u64>(in, next);
  work.b_descriptor = b[0];
  for (int lane = 1; lane < kLanes; ++lane)
    if (b[lane] != b[0]) w.fault(in, "lanes name different operands");
  for (int k = 0; k < in.results; ++k) queue.pending[in.operands[k]] = queue.group;
  queue.work.push_back(work);
  if (w.machine->random() % 3 == 0) execute(w, queue.group);
  w.machine->progress();
}

void run_commit(Warp& w, const Instruction&) {
  if (!w.together(kAllLanes) || w.matrix == nullptr) return;
  ++w.matrix->group;
}
void run_wait(Warp& w, const Instruction& in) {
  if (!w.together(kAllLanes) || w.matrix == nullptr) return;
  MatrixQueue& queue = *w.matrix;
  const auto pending = static_cast<u64>(in.immediate[0]);
  if (queue.group <= pending) return;
  const u64 last = queue.group - pending - 1;
  execute(w, last);
  std::erase_if(queue.pending, [&](const auto& entry) { return entry.second <= last; });
}
void run_fence(Warp& w, const Instruction&) { w.together(kAllLanes); }

void select(Decoder& d) {
  const std::string_view what = d.take_any({"fence", "commit_group", "wait_group", "mma_async"});
  if (!d.take("sync") || !d.take("aligned")) d.unknown();
  if (what == "fence") {
    d.emit(run_fence, {}, {});
  } else if (what == "commit_group") {
    d.emit(run_commit, {}, {});
  } else if (what == "wait_group") {
    d.emit(run_wait, {}, {}).in.immediate[0] = d.integer(0);
  } else {
    const std::vector<Operand> results = d.destinations(0, Type::f32);
    const std::string shape = "m64n" + std::to_string(results.size() * 2) + "k16";
    if (!d.take(shape) || d.type() != Type::f32) d.unknown();
    const Type type = d.type();
    if (d.type() != type || (type != Type::bf16 && type != Type::f16)) d.unknown();
    const bool registers = d.argument(1).kind == Argument::Kind::list;
    if (d.arguments() != (registers ? 7 : 8) || d.integer(4) != 1 || d.integer(5) != 1) d.unknown();
    std::vector<Operand> sources = d.sources(1, registers ? Type::b32 : Type::u64);
    sources.push_back(d.source(2, Type::u64));
    sources.push_back(d.source(3, Type::pred));
    const std::int64_t transposed_b = d.integer(registers ? 6 : 7), transposed_a = registers ? 0 : d.integer(6);
    for (const Operand result : results) d.pin(result);
    // Accumulators are read as well, so that they stay where they are from one instruction to the next.
    const std::size_t last = sources.size() - 1;
    const Operand predicate = sources[last];
    sources.back() = results.front();
    sources.insert(sources.end(), results.begin() + 1, results.end());
    sources.push_back(predicate);
    d.emit(run_issue, results, sources).in.immediate[0] =
        (type == Type::bf16 ? kBf16 : 0) | (transposed_a != 0 ? kTransposedA : 0) |
        (transposed_b != 0 ? kTransposedB : 0) | (registers ? kRegistersA : 0);
  }
}

}  // namespace

bool defers(Warp& w, const Instruction& in) {
  MatrixQueue& queue = *w.matrix;
  if (queue.pending.empty()) return false;
  const bool issues = in.run == run_issue;
  for (int k = 0; k < in.count; ++k) {
    const auto found = queue.pending.find(in.operands[k]);
    if (found == queue.pending.end()) continue;
    // The accumulators of one instruction may be those of the next one.
    const bool accumulator =
        issues && std::find(in.operands, in.operands + in.results, in.operands[k]) != in.operands + in.results;
    if (accumulator) continue;
    if (in.run != kCopy32 || w.exec != kAllLanes) {
      w.fault(in, k < in.results ? "writes an accumulator of a wgmma that has not been waited for"
                                 : "reads an accumulator of a wgmma that has not been waited for");
    }
    if (k < in.results) continue;
    queue.pending[in.operands[0]] = found->second;
    if (queue.work.empty()) return false;
    MatrixWork copy;
    copy.in = &in;
    copy.is_copy = true;
    copy.group = std::max(found->second, queue.work.back().group);
    queue.work.push_back(copy);
    return true;
  }
  if (in.run == kCopy32 && queue.pending.contains(in.operands[0]))
    w.fault(in, "writes an accumulator of a wgmma that has not been waited for");
  return false;
}

void add_warpgroup_matrix(Selects& selects) { selects["wgmma"] = select; }

}  // namespace emulator
