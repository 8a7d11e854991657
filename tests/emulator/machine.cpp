// machine.cpp -- which warp runs next, and when CTAs start and end.
#include "tests/emulator/machine.hpp"

#include <algorithm>
#include <sstream>

namespace emulator {
namespace {

// Warps that execute so many instructions without any that others could wait for wait in vain.
constexpr std::uint64_t kInVain = 50'000'000;

}  // namespace

std::uint64_t Machine::draw(std::uint64_t below) {
  const std::uint64_t bits = random() % 64;
  return random() %
         std::max<std::uint64_t>(1, below >> bits % (64 - static_cast<unsigned>(__builtin_clzll(below | 1))));
}

Range Machine::range_near(std::uint64_t address) const {
  const auto behind = std::upper_bound(memory.begin(), memory.end(), address,
                                       [](std::uint64_t a, const Range& range) { return a < range.begin; });
  return behind == memory.begin() ? Range{} : *std::prev(behind);
}

void Cta::complete_barriers() {
  for (NamedBarrier& barrier : barriers) {
    const std::uint32_t expected = barrier.expected != 0 ? barrier.expected : live_warps * kLanes;
    if (barrier.arrived == 0 || barrier.arrived < expected) continue;
    barrier.arrived = barrier.expected = 0;
    ++barrier.generation;
    machine->progress();
  }
}

void Machine::start_ctas(Launch& launch) {
  const LaunchConfig& config = launch.config;
  const Kernel& kernel = *config.kernel;
  const std::uint32_t threads = config.block.x * config.block.y * config.block.z;
  while (launch.next_cta < launch.ctas && (launch.live == 0 || launch.live + kernel.cluster <= config.most_ctas)) {
    Cluster& cluster = *clusters_.emplace_back(std::make_unique<Cluster>());
    cluster.launch = &launch;
    for (int rank = 0; rank < kernel.cluster; ++rank) {
      Cta& cta = *cluster.ctas.emplace_back(std::make_unique<Cta>());
      const auto number = static_cast<std::uint32_t>(launch.next_cta++);
      cta.launch = &launch;
      cta.machine = this;
      cta.cluster = &cluster;
      cta.number = number;
      cta.rank = static_cast<std::uint32_t>(rank);
      cta.position = {number % config.grid.x, number / config.grid.x % config.grid.y,
                      number / config.grid.x / config.grid.y};
      // What nobody has written is NaN, in all formats.
      cta.shared.assign(static_cast<std::size_t>(config.program->shared_bytes + config.dynamic_shared_bytes), 0xff);
      cta.warps = std::vector<Warp>((threads + kLanes - 1) / kLanes);
      cta.live_warps = static_cast<std::uint32_t>(cta.warps.size());
      for (std::size_t i = 0; i < cta.warps.size(); ++i) {
        Warp& warp = cta.warps[i];
        warp.cta = &cta;
        warp.launch = &launch;
        warp.machine = this;
        warp.index = static_cast<int>(i);
        warp.register_file.assign(kernel.register_bytes, 0xff);
        warp.local.assign(config.program->local_bytes * kLanes, 0xff);
        warp.registers = warp.register_file.data();
        warp.constants = config.program->constants.data();
        const std::uint32_t lanes = std::min<std::uint32_t>(kLanes, threads - static_cast<std::uint32_t>(i) * kLanes);
        warp.live = lanes == kLanes ? kAllLanes : (1u << lanes) - 1;
        warp.fragments = {{.pc = kernel.first, .lanes = warp.live}};
        warps_.push_back(&warp);
      }
      ++launch.live;
    }
  }
}

void Machine::retire(Cluster& cluster) {
  for (const auto& cta : cluster.ctas)
    if (cta->live_warps > 0) return;
  for (const auto& cta : cluster.ctas) {
    if (cta->copies_on_their_way == 0) continue;
    throw Fault(cluster.launch->config.kernel->name + ", CTA " + std::to_string(cta->number) + " ended while " +
                std::to_string(cta->copies_on_their_way) + " copies to its shared memory were on their way");
  }
  Launch& launch = *cluster.launch;
  launch.live -= static_cast<std::int64_t>(cluster.ctas.size());
  std::erase_if(clusters_, [&](const auto& other) { return other.get() == &cluster; });
  start_ctas(launch);
}

std::string Machine::where_all_wait() const {
  std::ostringstream text;
  int told = 0;
  for (const Warp* warp : warps_) {
    for (const Fragment& f : warp->fragments) {
      const Program& program = *warp->launch->config.program;
      const Instruction& in =
          program.code[f.wait == Wait::for_barrier || f.wait == Wait::for_cluster ? f.pc - 1 : f.pc];
      if (++told > 24) return text.str() + "\n  ...";
      text << "\n  " << warp->launch->config.kernel->name << ", CTA " << warp->cta->number << ", warp " << warp->index
           << ", lanes 0x" << std::hex << f.lanes << std::dec << ", PTX line " << in.line << " " << program.text_of(in);
    }
  }
  return text.str();
}

bool Machine::step() {
  if (warps_.empty()) return false;
  const std::size_t first = random() % warps_.size();
  for (std::size_t i = 0; i < warps_.size(); ++i) {
    const std::size_t at = (first + i) % warps_.size();
    Warp& warp = *warps_[at];
    if (!warp.can_run()) continue;
    warp.run(1 + draw(2000));
    if (warp.live == 0) {
      warps_[at] = warps_.back();
      warps_.pop_back();
      progress();
      --warp.cta->live_warps;
      warp.cta->complete_barriers();
      if (warp.cta->live_warps == 0) retire(*warp.cta->cluster);
    }
    if (executed - progress_at > kInVain) throw Fault("all warps wait in vain:" + where_all_wait());
    return true;
  }
  std::uint64_t next = events_.empty() ? UINT64_MAX : events_.top().time;
  for (const Warp* warp : warps_) next = std::min(next, warp->wakes_at());
  if (next == UINT64_MAX) throw Fault("deadlock, all warps wait:" + where_all_wait());
  clock = std::max(clock + 1, next);
  return true;
}

void Machine::run(std::vector<LaunchConfig> configs) {
  launches_.clear();
  clusters_.clear();
  warps_.clear();
  events_ = {};
  progress_at = executed;
  for (LaunchConfig& config : configs) {
    Launch& launch = *launches_.emplace_back(std::make_unique<Launch>());
    launch.config = std::move(config);
    launch.ctas = std::int64_t{launch.config.grid.x} * launch.config.grid.y * launch.config.grid.z;
    launch.recent.resize(launch.config.program->code.size());
    const auto allow = [&](const unsigned char* data, std::size_t bytes, bool writable) {
      if (bytes > 0) memory.push_back({reinterpret_cast<std::uint64_t>(data), bytes, writable});
    };
    allow(launch.config.parameters.data(), launch.config.parameters.size(), false);
    allow(launch.config.program->globals.data(), launch.config.program->globals.size(), true);
  }
  std::sort(memory.begin(), memory.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  for (const auto& launch : launches_) start_ctas(*launch);
  while (true) {
    while (!events_.empty() && events_.top().time <= clock) {
      const auto happen = events_.top().happen;
      events_.pop();
      happen();
      progress();
    }
    if (!step()) break;
  }
}

}  // namespace emulator
