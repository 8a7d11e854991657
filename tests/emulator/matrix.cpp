// matrix.cpp -- matrices in the registers of a warp (PTX ISA, "Matrix Instructions"): mma.sync, ldmatrix, stmatrix,
// movmatrix. Lane 4 g + c holds rows g and g + 8 and, of each eight columns, columns 2 c and 2 c + 1.
#include "tests/emulator/decoder.hpp"
#include "tests/emulator/lanewise.hpp"

namespace emulator {
namespace {

using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

float half_of(u32 word, int half, bool bf16) {
  const auto bits = static_cast<u16>(word >> 16 * half);
  return bf16 ? from_bf16(bits) : from_f16(bits);
}

// D[16 x 8] = A[16 x 16] B[16 x 8] + C, of 16-bit operands and fp32 sums.
template <bool kBf16>
void run_mma(Warp& w, const Instruction& in) {
  if (!w.together(kAllLanes)) return;
  float a[16][16], b[16][8], d[16][8];
  for (int lane = 0; lane < kLanes; ++lane) {
    const int g = lane / 4, c = lane % 4;
    for (int half = 0; half < 2; ++half) {
      for (int k = 0; k < 4; ++k)
        a[g + k % 2 * 8][2 * c + k / 2 * 8 + half] = half_of(w.at<u32>(in, 4 + k)[lane], half, kBf16);
      for (int k = 0; k < 2; ++k) b[2 * c + k * 8 + half][g] = half_of(w.at<u32>(in, 8 + k)[lane], half, kBf16);
    }
    for (int k = 0; k < 4; ++k) d[g + k / 2 * 8][2 * c + k % 2] = w.at<float>(in, 10 + k)[lane];
  }
  for (auto& row : d) {
    const auto& factors = a[&row - d];
    for (int k = 0; k < 16; ++k)
      for (int n = 0; n < 8; ++n) row[n] += factors[k] * b[k][n];
  }
  for (int k = 0; k < 4; ++k) {
    float values[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) values[lane] = d[lane / 4 + k / 2 * 8][lane % 4 * 2 + k % 2];
    w.set(in, k, values);
  }
}

void select_mma(Decoder& d) {
  if (!d.take("sync") || !d.take("aligned") || !d.take("m16n8k16") || !d.take("row") || !d.take("col")) d.unknown();
  if (d.type() != Type::f32) d.unknown();
  const Type a = d.type();
  if (d.type() != a || d.type() != Type::f32 || (a != Type::bf16 && a != Type::f16)) d.unknown();
  std::vector<Operand> sources = d.sources(1, Type::b32);
  for (const Operand o : d.sources(2, Type::b32)) sources.push_back(o);
  for (const Operand o : d.sources(3, Type::f32)) sources.push_back(o);
  const std::vector<Operand> results = d.destinations(0, Type::f32);
  if (results.size() != 4 || sources.size() != 10) d.unknown();
  d.emit(a == Type::bf16 ? run_mma<true> : run_mma<false>, results, sources);
}

// Lane 8 m + r gives the address of row r of matrix m, which has 8 rows of 16 bytes.
template <bool kTransposed>
void run_load_matrices(Warp& w, const Instruction& in) {
  if (!w.together(kAllLanes)) return;
  const u64* addresses = w.at<u64>(in, in.results);
  u32 values[4][kLanes];
  for (int m = 0; m < in.results; ++m) {
    u16 matrix[8][8];
    for (int row = 0; row < 8; ++row)
      std::memcpy(matrix[row], w.shared(in, addresses[8 * m + row] + static_cast<u64>(in.immediate[0]), 16), 16);
    for (int lane = 0; lane < kLanes; ++lane) {
      const int g = lane / 4, c = lane % 4 * 2;
      values[m][lane] = kTransposed ? matrix[c][g] | static_cast<u32>(matrix[c + 1][g]) << 16
                                    : matrix[g][c] | static_cast<u32>(matrix[g][c + 1]) << 16;
    }
  }
  for (int m = 0; m < in.results; ++m) w.set(in, m, values[m]);
}
template <bool kTransposed>
void run_store_matrices(Warp& w, const Instruction& in) {
  if (!w.together(kAllLanes)) return;
  const u64* addresses = w.at<u64>(in, 0);
  for (int m = 0; m + 1 < in.count; ++m) {
    u16 matrix[8][8];
    const u32* words = w.at<u32>(in, m + 1);
    for (int lane = 0; lane < kLanes; ++lane) {
      const int g = lane / 4, c = lane % 4 * 2;
      for (int half = 0; half < 2; ++half)
        (kTransposed ? matrix[c + half][g] : matrix[g][c + half]) = static_cast<u16>(words[lane] >> 16 * half);
    }
    for (int row = 0; row < 8; ++row)
      std::memcpy(w.shared(in, addresses[8 * m + row] + static_cast<u64>(in.immediate[0]), 16), matrix[row], 16);
  }
}
void run_transpose(Warp& w, const Instruction& in) {
  if (!w.together(kAllLanes)) return;
  const u32* words = w.at<u32>(in, 1);
  u32 values[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) {
    const int g = lane / 4, c = lane % 4 * 2;
    const auto element = [&](int row) { return words[row * 4 + g / 2] >> g % 2 * 16 & 0xffff; };
    values[lane] = element(c) | element(c + 1) << 16;
  }
  w.set(in, 0, values);
}

void select_matrices(Decoder& d) {
  const bool loads = d.opcode().starts_with("ld");
  if (!d.take("sync") || !d.take("aligned") || !d.take("m8n8")) d.unknown();
  const std::size_t count = d.take("x1") ? 1 : d.take("x2") ? 2 : d.take("x4") ? 4 : 0;
  const bool transposed = d.take("trans");
  if (!d.take("shared") && !d.take("shared::cta")) d.unknown();
  if (d.type() != Type::b16 || count == 0) d.unknown();
  std::int64_t offset = 0;
  const Operand address = d.address(loads ? 1 : 0, offset);
  if (loads) {
    d.emit(transposed ? run_load_matrices<true> : run_load_matrices<false>, d.destinations(0, Type::b32), {address})
        .in.immediate[0] = offset;
    return;
  }
  std::vector<Operand> sources = {address};
  for (const Operand o : d.sources(1, Type::b32)) sources.push_back(o);
  d.emit(transposed ? run_store_matrices<true> : run_store_matrices<false>, {}, sources).in.immediate[0] = offset;
}
void select_transpose(Decoder& d) {
  if (!d.take("sync") || !d.take("aligned") || !d.take("m8n8") || !d.take("trans") || d.type() != Type::b16)
    d.unknown();
  d.emit(run_transpose, {d.destination(0, Type::b32)}, {d.source(1, Type::b32)});
}

}  // namespace

void add_matrix(Selects& selects) {
  selects["mma"] = select_mma;
  selects["ldmatrix"] = select_matrices;
  selects["stmatrix"] = select_matrices;
  selects["movmatrix"] = select_transpose;
}

}  // namespace emulator
