// copies.cpp -- copies to shared memory that land later (PTX ISA, "cp.async", "cp.async.bulk", "cp.async.bulk.tensor",
// "st.async"). When they land is drawn. Their sources are read when they land.
#include <algorithm>

#include "tests/emulator/decoder.hpp"
#include "tests/emulator/tensor_map.hpp"

namespace emulator {
namespace {

using u32 = std::uint32_t;
using u64 = std::uint64_t;

constexpr u64 kLongestFlight = 4000;  // ns

void land(const CopyAsync& copy) {
  std::memcpy(copy.to, copy.from, copy.bytes);
  std::memset(copy.to + copy.bytes, 0, copy.zeros);
}
/// Lands a lane's copies of groups below `group`.
void land_groups(Warp& w, int lane, u64 group) {
  std::erase_if(w.copies, [&](const CopyAsync& copy) {
    if (copy.lane != lane || copy.group >= group) return false;
    land(copy);
    return true;
  });
}

void run_copy_async(Warp& w, const Instruction& in) {
  const u64 *to = w.at<u64>(in, 0), *from = w.at<u64>(in, 1);
  const u32* size = w.at<u32>(in, 2);
  const auto bytes = static_cast<u32>(in.immediate[1] >> 32);
  w.for_each_lane([&](int lane) {
    const u32 taken = std::min(size[lane], bytes);
    CopyAsync copy{w.shared(in, to[lane] + static_cast<u32>(in.immediate[0]), bytes),
                   nullptr,
                   taken,
                   bytes - taken,
                   lane,
                   w.copy_group[static_cast<std::size_t>(lane)]};
    if (taken > 0) copy.from = w.global(in, from[lane] + static_cast<u32>(in.immediate[1]), taken, false);
    if (w.machine->random() % 2 == 0) {
      land(copy);
    } else {
      w.copies.push_back(copy);
    }
  });
}
void run_commit_group(Warp& w, const Instruction&) {
  w.for_each_lane([&](int lane) { ++w.copy_group[static_cast<std::size_t>(lane)]; });
}
void run_wait_group(Warp& w, const Instruction& in) {
  w.for_each_lane([&](int lane) {
    const u64 groups = w.copy_group[static_cast<std::size_t>(lane)], pending = static_cast<u64>(in.immediate[0]);
    if (groups > pending) land_groups(w, lane, groups - pending);
  });
}
void run_wait_all(Warp& w, const Instruction&) {
  for (const CopyAsync& copy : w.copies)
    if ((w.exec >> copy.lane & 1) != 0) land(copy);
  std::erase_if(w.copies, [&](const CopyAsync& copy) { return (w.exec >> copy.lane & 1) != 0; });
}

/// The CTA whose shared memory the address means.
Cta& owner_of(Warp& w, u64 address) {
  const u64 rank = (address & ~kSharedWindow) >> kRankShift;
  return rank == 0 ? *w.cta : *w.cta->cluster->ctas[rank - 1];
}

/// `happen` at a time that is drawn. A CTA must not end before.
template <class F>
void later(Warp& w, const Instruction& in, Cta& cta, F happen) {
  ++cta.copies_on_their_way;
  const u32 lanes = w.exec;
  w.machine->at(w.machine->clock + 1 + w.machine->draw(kLongestFlight), [&w, &in, &cta, lanes, happen] {
    --cta.copies_on_their_way;
    w.exec = lanes;
    try {
      happen();
    } catch (const Fault& fault) {
      w.fault(in, std::string("when its copy lands: ") + fault.what());
    }
  });
}

void run_arrive_after_copies(Warp& w, const Instruction& in) {
  const u64* barrier = w.at<u64>(in, 0);
  w.for_each_lane([&](int lane) {
    unsigned char* at = w.shared(in, barrier[lane] + static_cast<u64>(in.immediate[0]), 8);
    // A group of its own, so that later copies are not waited for.
    const u64 group = ++w.copy_group[static_cast<std::size_t>(lane)];
    later(w, in, *w.cta, [&w, at, lane, group] {
      land_groups(w, lane, group);
      MBarrier(at).arrive(1);
    });
  });
}

void run_bulk_copy(Warp& w, const Instruction& in) {
  const u64 *to = w.at<u64>(in, 0), *from = w.at<u64>(in, 1), *barrier = w.at<u64>(in, 3);
  const u32* size = w.at<u32>(in, 2);
  w.for_each_lane([&](int lane) {
    const u32 bytes = size[lane];
    if (bytes == 0) return;
    if (bytes % 16 != 0 || to[lane] % 16 != 0 || from[lane] % 16 != 0)
      w.fault(in, "a bulk copy that is not aligned to 16 bytes");
    unsigned char* target = w.shared(in, to[lane], bytes);
    const unsigned char* source = w.global(in, from[lane], bytes, false);
    unsigned char* at = w.shared(in, barrier[lane], 8);
    later(w, in, owner_of(w, to[lane]), [target, source, at, bytes] {
      std::memcpy(target, source, bytes);
      MBarrier(at).expect(-static_cast<std::int64_t>(bytes));
    });
  });
}

/// Copies the box at the coordinates to the shared address. What lies outside of the tensor is zero.
void copy_box(Warp& w, const Instruction& in, const TensorMap& map, u64 to, const std::int32_t (&first)[5]) {
  const u64 row_bytes = u64{map.box[0]} * map.element_bytes;
  const std::int64_t inner = std::clamp<std::int64_t>(std::int64_t{map.sizes[0]} - first[0], 0, map.box[0]);
  const auto valid_bytes = static_cast<u64>(inner) * map.element_bytes;
  u64 offset = 0;
  u32 at[5] = {};
  for (at[4] = 0; at[4] < map.box[4]; ++at[4])
    for (at[3] = 0; at[3] < map.box[3]; ++at[3])
      for (at[2] = 0; at[2] < map.box[2]; ++at[2])
        for (at[1] = 0; at[1] < map.box[1]; ++at[1], offset += row_bytes) {
          bool inside = first[0] >= 0 && inner > 0;
          u64 from = map.address + static_cast<u64>(first[0]) * map.element_bytes;
          for (int i = 1; i < 5; ++i) {
            const std::int64_t place = std::int64_t{first[i]} + at[i];
            inside = inside && place >= 0 && place < map.sizes[i];
            from += static_cast<u64>(place) * map.strides[i - 1];
          }
          if (inside) w.global(in, from, valid_bytes, false);
          for (u64 piece = 0; piece < row_bytes; piece += 16) {
            unsigned char* target = w.shared(in, swizzled(to + offset + piece, map.swizzle_bytes), 16);
            const u64 bytes = !inside || piece >= valid_bytes ? 0 : std::min<u64>(16, valid_bytes - piece);
            std::memset(target, 0, 16);
            if (bytes > 0) std::memcpy(target, reinterpret_cast<const void*>(from + piece), bytes);
          }
        }
}

// Operands: destination, map, barrier, coordinates.
void run_tensor_copy(Warp& w, const Instruction& in) {
  const u64 *to = w.at<u64>(in, 0), *maps = w.at<u64>(in, 1), *barrier = w.at<u64>(in, 2);
  w.for_each_lane([&](int lane) {
    TensorMap map;
    if (maps[lane] % 64 != 0) w.fault(in, "a tensor map that is not aligned to 64 bytes");
    std::memcpy(&map, w.global(in, maps[lane], 128, false), sizeof map);
    if (map.mark != kTensorMapMark) w.fault(in, "no tensor map is there");
    if (map.rank != in.count - 3) w.fault(in, "a tensor of " + std::to_string(map.rank) + " dimensions");
    if (to[lane] % 128 != 0) w.fault(in, "the destination of a tensor copy is not aligned to 128 bytes");
    struct {
      std::int32_t first[5] = {};
    } coordinates;
    for (int i = 0; i < map.rank; ++i) coordinates.first[i] = w.at<std::int32_t>(in, 3 + i)[lane];
    // On GPUs this is an illegal instruction (findings/tensor_copy_begins_at_16_bytes.sh).
    if (std::int64_t{coordinates.first[0]} * map.element_bytes % 16 != 0)
      w.fault(in, "a box that does not begin at a multiple of 16 bytes");
    const u64 target = to[lane];
    unsigned char* at = w.shared(in, barrier[lane], 8);
    later(w, in, owner_of(w, target), [&w, &in, map, target, at, coordinates] {
      copy_box(w, in, map, target, coordinates.first);
      std::int64_t bytes = map.element_bytes;
      for (const u32 extent : map.box) bytes *= extent;
      MBarrier(at).expect(-bytes);
    });
  });
}

void run_store_async(Warp& w, const Instruction& in) {
  const u64 *to = w.at<u64>(in, 0), *barrier = w.at<u64>(in, 1);
  const u32 bytes = static_cast<u32>(in.count - 2) * 4;
  w.for_each_lane([&](int lane) {
    struct {
      u32 words[4];
    } values;
    for (int k = 2; k < in.count; ++k) values.words[k - 2] = w.at<u32>(in, k)[lane];
    unsigned char *target = w.shared(in, to[lane], bytes), *at = w.shared(in, barrier[lane], 8);
    later(w, in, owner_of(w, to[lane]), [target, at, values, bytes] {
      std::memcpy(target, values.words, bytes);
      MBarrier(at).expect(-static_cast<std::int64_t>(bytes));
    });
  });
}

void run_nothing(Warp&, const Instruction&) {}

void select_bulk(Decoder& d) {
  const bool prefetches = d.take("prefetch"), tensor = d.take("tensor");
  if (tensor && d.take_any({"1d", "2d", "3d", "4d", "5d"}).empty()) d.unknown();
  if (prefetches) {
    while (!d.take_any({"L2", "global", "tile", "L2::cache_hint"}).empty()) continue;
    d.emit(run_nothing, {}, {});
    return;
  }
  if (!d.take("shared::cluster") && !d.take("shared::cta")) d.unknown();
  if (!d.take("global")) d.unknown();
  if (tensor && !d.take("tile")) d.unknown();
  if (!d.take("mbarrier::complete_tx::bytes")) d.unknown();
  d.take("L2::cache_hint");
  std::int64_t offset = 0, other = 0;
  if (tensor) {
    std::vector<Operand> sources = {d.address(0, offset), d.address(1, other), d.address(2, other)};
    for (const Argument& coordinate : d.argument(1).items) sources.push_back(d.source(coordinate, Type::s32));
    if (offset != 0 || other != 0) d.unknown("an offset");
    d.emit(run_tensor_copy, {}, sources);
    return;
  }
  const Operand to = d.address(0, offset), from = d.address(1, other);
  if (offset != 0 || other != 0) d.unknown("an offset");
  const Operand size = d.source(2, Type::u32), barrier = d.address(3, other);
  if (other != 0) d.unknown("an offset");
  d.emit(run_bulk_copy, {}, {to, from, size, barrier});
}

void select_copy(Decoder& d) {  // cp
  if (!d.take("async")) d.unknown();
  if (d.take("bulk")) return select_bulk(d);
  if (d.take("commit_group")) {
    d.emit(run_commit_group, {}, {});
  } else if (d.take("wait_group")) {
    d.emit(run_wait_group, {}, {}).in.immediate[0] = d.integer(0);
  } else if (d.take("wait_all")) {
    d.emit(run_wait_all, {}, {});
  } else if (d.take("mbarrier")) {
    if (!d.take("arrive") || !d.take("noinc")) d.unknown();
    d.take_any({"shared", "shared::cta"});
    if (d.type() != Type::b64) d.unknown();
    std::int64_t offset = 0;
    const Operand barrier = d.address(0, offset);
    d.emit(run_arrive_after_copies, {}, {barrier}).in.immediate[0] = offset;
  } else {
    if (d.take_any({"ca", "cg"}).empty() || (!d.take("shared") && !d.take("shared::cta")) || !d.take("global"))
      d.unknown();
    while (!d.take_any({"L2::64B", "L2::128B", "L2::256B"}).empty()) continue;
    std::int64_t to_offset = 0, from_offset = 0;
    const Operand to = d.address(0, to_offset), from = d.address(1, from_offset);
    const std::int64_t bytes = d.integer(2);
    const Operand size = d.arguments() > 3 ? d.source(3, Type::u32) : d.constant<u32>(static_cast<u32>(bytes));
    if (to_offset < 0 || from_offset < 0 || from_offset > INT32_MAX) d.unknown("an offset");
    RawInstruction& raw = d.emit(run_copy_async, {}, {to, from, size});
    raw.in.immediate[0] = to_offset;
    raw.in.immediate[1] = bytes << 32 | from_offset;
  }
}

}  // namespace

void select_store_async(Decoder& d) {
  if (!d.take("weak") || !d.take("shared::cluster") || !d.take("mbarrier::complete_tx::bytes")) d.unknown();
  d.take_any({"v2", "v4"});
  if (bytes_of(d.type()) != 4) d.unknown();
  std::int64_t offset = 0, other = 0;
  std::vector<Operand> sources = {d.address(0, offset), d.address(2, other)};
  for (const Operand value : d.sources(1, Type::b32)) sources.push_back(value);
  if (offset != 0 || other != 0) d.unknown("an offset");
  d.emit(run_store_async, {}, sources);
}

void add_copies(Selects& selects) { selects["cp"] = select_copy; }

}  // namespace emulator
