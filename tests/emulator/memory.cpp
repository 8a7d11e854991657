// memory.cpp -- loads, stores and atomics (PTX ISA, "Data Movement and Conversion Instructions"). A warp's lanes access
// memory in their order, and what is stored is seen by all at once: of the memory model only programs without races of
// their own are right here and on a GPU.
#include <cmath>
#include <type_traits>

#include "tests/emulator/decoder.hpp"

namespace emulator {
namespace {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

enum class Space { generic, global, shared, local, parameter };

template <Space kSpace>
unsigned char* memory_at(Warp& w, const Instruction& in, u64 address, u64 bytes, bool writes, int lane) {
  if constexpr (kSpace == Space::global) return w.global(in, address, bytes, writes);
  if constexpr (kSpace == Space::shared) return w.shared(in, address, bytes);
  if constexpr (kSpace == Space::local) return w.local_memory(in, address, bytes, lane);
  if constexpr (kSpace == Space::parameter)
    return w.global(in, reinterpret_cast<u64>(w.launch->config.parameters.data()) + address, bytes, writes);
  if (address >= kLocalWindow) return w.local_memory(in, address, bytes, lane);
  if (address >= kSharedWindow) return w.shared(in, address, bytes);
  return w.global(in, address, bytes, writes);
}

/// The host's memory behind `bytes` at each address of the lanes that execute, if it is near that of the others and all
/// of it may be touched: the distance of addresses from memory, which is the same for all of them. Otherwise, lanes
/// have to be looked at one by one, which also says what is wrong.
template <Space kSpace>
const unsigned char* memory_of_all(Warp& w, const Instruction& in, const u64* addresses, u64 bytes, bool writes) {
  if constexpr (kSpace == Space::local) return nullptr;
  const u64 first = addresses[__builtin_ctz(w.exec)];
  u64 lowest = first, highest = first, bits = first;
  for (u32 lane = 0; lane < kLanes; ++lane) {
    const u64 address = (w.exec >> lane & 1) != 0 ? addresses[lane] : first;
    lowest = address < lowest ? address : lowest;
    highest = address > highest ? address : highest;
    bits |= address;
  }
  const auto offset = static_cast<u64>(in.immediate[0]);
  if (((bits | offset) & (bytes - 1)) != 0) return nullptr;
  const unsigned char* from = nullptr;
  if (kSpace == Space::shared || (kSpace == Space::generic && lowest >= kSharedWindow && highest < kLocalWindow)) {
    from = w.shared_if(lowest + offset, highest - lowest + bytes);
  } else if (kSpace == Space::global || (kSpace == Space::generic && highest < kSharedWindow)) {
    from = w.global_if(in, lowest + offset, highest - lowest + bytes, writes);
  }
  return from == nullptr ? nullptr : from - (lowest + offset);
}

template <class T, Space kSpace>
void run_load(Warp& w, const Instruction& in) {
  const u64* const addresses = w.at<u64>(in, in.results);
  const auto bytes = sizeof(T) * in.results;
  const auto offset = static_cast<u64>(in.immediate[0]);
  if (const unsigned char* base = memory_of_all<kSpace>(w, in, addresses, bytes, false); base != nullptr) {
    // Results may be the register of the addresses, which are therefore read first.
    u64 from[kLanes];
    std::memcpy(from, addresses, sizeof from);
    for (int k = 0; k < in.results; ++k) {
      T* const to = w.at<T>(in, k);
      const unsigned char* const source = base + offset + k * sizeof(T);
      w.for_each_lane([&](int lane) { std::memcpy(to + lane, source + from[lane], sizeof(T)); });
    }
    return;
  }
  w.for_each_lane([&](int lane) {
    const unsigned char* from = memory_at<kSpace>(w, in, addresses[lane] + offset, bytes, false, lane);
    for (int k = 0; k < in.results; ++k) std::memcpy(w.at<T>(in, k) + lane, from + k * sizeof(T), sizeof(T));
  });
}

template <class T, Space kSpace>
void run_store(Warp& w, const Instruction& in) {
  const u64* const addresses = w.at<u64>(in, 0);
  const int values = in.count - 1;
  const auto offset = static_cast<u64>(in.immediate[0]);
  const unsigned char* base = memory_of_all<kSpace>(w, in, addresses, sizeof(T) * static_cast<u64>(values), true);
  w.for_each_lane([&](int lane) {
    auto* to = const_cast<unsigned char*>(base) + addresses[lane] + offset;
    if (base == nullptr)
      to = memory_at<kSpace>(w, in, addresses[lane] + offset, sizeof(T) * static_cast<u64>(values), true, lane);
    for (int k = 0; k < values; ++k)
      std::memcpy(to + static_cast<std::size_t>(k) * sizeof(T), w.at<T>(in, k + 1) + lane, sizeof(T));
  });
  if constexpr (kSpace != Space::local) w.machine->progress();
}

template <class Make>
Handler of_width(int bytes, Make make) {
  switch (bytes) {
    case 1: return make(u8{});
    case 2: return make(u16{});
    case 4: return make(u32{});
    case 8: return make(u64{});
    case 16: return make(static_cast<unsigned __int128>(0));
    default: return nullptr;
  }
}

/// Takes what says how loads and stores are ordered and cached. Whether a cache policy is an operand.
bool skip_order_and_caches(Decoder& d) {
  bool policy = false;
  while (true) {
    if (d.take("L2::cache_hint")) {
      policy = true;
    } else if (d.take_any({"volatile",
                           "weak",
                           "relaxed",
                           "acquire",
                           "release",
                           "acq_rel",
                           "cta",
                           "cluster",
                           "gpu",
                           "sys",
                           "nc",
                           "ca",
                           "cg",
                           "cs",
                           "lu",
                           "cv",
                           "wb",
                           "wt",
                           "L1::no_allocate",
                           "L1::evict_first",
                           "L1::evict_last",
                           "L2::64B",
                           "L2::128B",
                           "L2::256B"})
                   .empty()) {
      return policy;
    }
  }
}

struct Access {
  Space space;
  Type type;
  std::size_t count;
};
Access take_access(Decoder& d, std::size_t address) {
  skip_order_and_caches(d);
  Space space = Space::generic;
  if (d.take("global") || d.take("const")) space = Space::global;
  if (d.take("shared") || d.take("shared::cta") || d.take("shared::cluster")) space = Space::shared;
  if (d.take("local")) space = Space::local;
  // What functions are given and give back is in local memory; what an entry is given is not.
  if (d.take("param")) {
    const std::string_view of = d.space_of(d.argument(address));
    space = of == "local" ? Space::local : of == "parameter" ? Space::parameter : Space::generic;
  } else if (d.space_of(d.argument(address)) == "global") {
    d.unknown("a variable named in an address");
  }
  skip_order_and_caches(d);
  const std::size_t count = d.take("v2") ? 2 : d.take("v4") ? 4 : d.take("v8") ? 8 : 1;
  return {space, d.type(), count};
}

template <class F>
Handler of_space(Space space, F make) {
  switch (space) {
    case Space::generic: return make(std::integral_constant<Space, Space::generic>{});
    case Space::global: return make(std::integral_constant<Space, Space::global>{});
    case Space::shared: return make(std::integral_constant<Space, Space::shared>{});
    case Space::local: return make(std::integral_constant<Space, Space::local>{});
    case Space::parameter: return make(std::integral_constant<Space, Space::parameter>{});
  }
  return nullptr;
}

void select_load(Decoder& d) {
  const Access access = take_access(d, 1);
  const Handler handler = of_width(bytes_of(access.type), [&](auto x) {
    return of_space(access.space, [](auto space) -> Handler { return run_load<decltype(x), decltype(space)::value>; });
  });
  std::int64_t offset = 0;
  const Operand address = d.address(1, offset);
  const std::vector<Operand> results = d.destinations(0, access.type);
  if (handler == nullptr || results.size() != access.count) d.unknown();
  d.emit(handler, results, {address}).in.immediate[0] = offset;
}

void select_store(Decoder& d) {
  if (d.take("async")) return select_store_async(d);
  const Access access = take_access(d, 0);
  const Handler handler = of_width(bytes_of(access.type), [&](auto x) {
    return of_space(access.space, [](auto space) -> Handler { return run_store<decltype(x), decltype(space)::value>; });
  });
  std::int64_t offset = 0;
  std::vector<Operand> sources = {d.address(0, offset)};
  for (const Operand value : d.sources(1, access.type)) sources.push_back(value);
  if (handler == nullptr || sources.size() != access.count + 1) d.unknown();
  d.emit(handler, {}, sources).in.immediate[0] = offset;
}

// Atomics.
template <class T, class F, Space kSpace>
void run_atomic(Warp& w, const Instruction& in) {
  const u64* const addresses = w.at<u64>(in, 1);
  const T* const b = w.at<T>(in, 2);
  const T* const c = w.at<T>(in, in.count > 3 ? 3 : 2);
  w.for_each_lane([&](int lane) {
    unsigned char* at =
        memory_at<kSpace>(w, in, addresses[lane] + static_cast<u64>(in.immediate[0]), sizeof(T), true, lane);
    T old;
    std::memcpy(&old, at, sizeof old);
    const T changed = F{}(old, b[lane], c[lane]);
    std::memcpy(at, &changed, sizeof changed);
    w.at<T>(in, 0)[lane] = old;
  });
  w.machine->progress();
}
template <class T, class F>
Handler atomic(Space space, F) {
  return of_space(space, [](auto s) -> Handler { return run_atomic<T, F, decltype(s)::value>; });
}
template <class T>
Handler atomic_named(std::string_view name, Space space) {
  if (name == "add") return atomic<T>(space, [](T a, T b, T) { return static_cast<T>(a + b); });
  if (name == "min") return atomic<T>(space, [](T a, T b, T) { return a < b ? a : b; });
  if (name == "max") return atomic<T>(space, [](T a, T b, T) { return a > b ? a : b; });
  if (name == "exch") return atomic<T>(space, [](T, T b, T) { return b; });
  if constexpr (std::is_unsigned_v<T>) {
    if (name == "inc") return atomic<T>(space, [](T a, T b, T) { return a >= b ? T{0} : static_cast<T>(a + 1); });
    if (name == "dec") return atomic<T>(space, [](T a, T b, T) { return a == 0 || a > b ? b : static_cast<T>(a - 1); });
    if (name == "cas") return atomic<T>(space, [](T a, T b, T c) { return a == b ? c : a; });
    if (name == "and") return atomic<T>(space, [](T a, T b, T) { return static_cast<T>(a & b); });
    if (name == "or") return atomic<T>(space, [](T a, T b, T) { return static_cast<T>(a | b); });
    if (name == "xor") return atomic<T>(space, [](T a, T b, T) { return static_cast<T>(a ^ b); });
  }
  return nullptr;
}

void select_atomic(Decoder& d) {
  const bool returns = d.opcode().starts_with("atom");
  const std::size_t address_at = returns ? 1 : 0;
  // Modifiers come in any order, the type last.
  std::string_view operation;
  Space space = Space::generic;
  Type type = Type::none;
  while (type == Type::none) {
    skip_order_and_caches(d);
    if (d.take("global")) {
      space = Space::global;
    } else if (d.take("shared") || d.take("shared::cta")) {
      space = Space::shared;
    } else if (const auto named = d.take_any({"add", "min", "max", "exch", "inc", "dec", "cas", "and", "or", "xor"});
               !named.empty()) {
      operation = named;
    } else {
      type = d.type();
    }
  }
  Handler handler = nullptr;
  switch (type) {
    case Type::u32:
    case Type::b32: handler = atomic_named<u32>(operation, space); break;
    case Type::u64:
    case Type::b64: handler = atomic_named<u64>(operation, space); break;
    case Type::s32:
      handler = operation == "add" ? atomic_named<u32>(operation, space) : atomic_named<std::int32_t>(operation, space);
      break;
    case Type::s64:
      handler = operation == "add" ? atomic_named<u64>(operation, space) : atomic_named<std::int64_t>(operation, space);
      break;
    case Type::f32: handler = atomic_named<float>(operation, space); break;
    case Type::f64: handler = atomic_named<double>(operation, space); break;
    default: break;
  }
  if (handler == nullptr) d.unknown();
  std::int64_t offset = 0;
  std::vector<Operand> sources = {d.address(address_at, offset)};
  for (std::size_t i = address_at + 1; i < d.arguments(); ++i) sources.push_back(d.source(i, type));
  const Operand result = returns ? d.destination(0, type) : d.temporary(type);
  d.emit(handler, {result}, sources).in.immediate[0] = offset;
}

void select_map(Decoder& d) {  // mapa
  if (!d.take("shared::cluster")) d.unknown();
  const Type type = d.type();
  if (type != Type::u32) d.unknown();
  const Handler handler = [](Warp& w, const Instruction& in) {
    const u32 *address = w.at<u32>(in, 1), *rank = w.at<u32>(in, 2);
    u32 values[kLanes];
    for (int lane = 0; lane < kLanes; ++lane)
      values[lane] = (address[lane] & ((1u << kRankShift) - 1)) | (rank[lane] + 1) << kRankShift;
    w.set(in, 0, values);
  };
  d.emit(handler, {d.destination(0, type)}, {d.source(1, type), d.source(2, type)});
}

void run_nothing(Warp&, const Instruction&) {}

/// What only moves data between caches.
void select_prefetch(Decoder& d) {
  while (!d.take_any({"global", "L1", "L2", "L2::evict_last", "L2::evict_normal", "tensormap", "param"}).empty())
    continue;
  d.emit(run_nothing, {}, {});
}
void select_policy(Decoder& d) {
  while (!d.take_any({"fractional", "L2::evict_first", "L2::evict_last", "L2::evict_unchanged", "b64"}).empty())
    continue;
  d.emit([](Warp&, const Instruction&) {}, {d.destination(0, Type::b64)}, {});
}

}  // namespace

void add_memory(Selects& selects) {
  selects["ld"] = select_load;
  selects["ldu"] = select_load;
  selects["st"] = select_store;
  selects["atom"] = select_atomic;
  selects["red"] = select_atomic;
  selects["mapa"] = select_map;
  selects["prefetch"] = select_prefetch;
  selects["createpolicy"] = select_policy;
}

}  // namespace emulator
