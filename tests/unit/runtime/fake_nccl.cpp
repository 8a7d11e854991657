// fake_nccl.cpp -- the functions of NcclApi on a FakeNccl.
#include "tests/unit/runtime/fake_nccl.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "tests/unit/runtime/fake_cuda.hpp"

namespace {

constexpr int kSuccess = 0, kInternal = 3, kInvalidArgument = 4, kInvalidUsage = 5, kInProgress = 7;

struct Pending {
  void* to = nullptr;
  std::size_t bytes = 0;
  bool* done = nullptr;
};
/// What is on its way from one rank to another.
struct Wire {
  std::deque<std::vector<char>> sent;
  std::deque<Pending> wanted;
};
struct Room {
  int ranks = 0, joined = 0;
  std::map<std::pair<int, int>, Wire> wires;  // by sender and receiver
};

FakeNccl nccl;
std::mutex mutex;
std::condition_variable changed;
std::map<std::string, std::shared_ptr<Room>> rooms;  // by id
int ids = 0;

}  // namespace

struct ncclComm {
  std::shared_ptr<Room> room;
  int rank = 0, device = 0;
  bool aborted = false;
  int late = 0;  // looks until it is done
};

namespace {

struct Work {
  ncclComm* comm;
  bool send;
  void* memory;
  std::size_t bytes;
  int peer;
  CUstream stream;
};
thread_local int depth = 0;
thread_local std::vector<Work> asked;

int enter(const char* name) {
  ++nccl.calls[name];
  const auto it = nccl.fail_once.find(name);
  if (it == nccl.fail_once.end()) return kSuccess;
  const int status = it->second;
  nccl.fail_once.erase(it);
  return status;
}

/// Brings what was sent to where it is wanted.
void deliver(Wire& wire) {
  while (!wire.sent.empty() && !wire.wanted.empty()) {
    const auto& from = wire.sent.front();
    const Pending& to = wire.wanted.front();
    std::memcpy(to.to, from.data(), std::min(from.size(), to.bytes));
    nccl.bytes_moved += static_cast<long long>(from.size());
    *to.done = from.size() == to.bytes;
    wire.sent.pop_front();
    wire.wanted.pop_front();
  }
}

int run(std::vector<Work> work) {
  std::unique_lock lock(mutex);
  if (const int told = enter("ncclGroupEnd")) return told;
  if (work.empty()) return kSuccess;
  ncclComm* const comm = work.front().comm;
  if (comm->room->joined < comm->room->ranks || comm->aborted) return kInvalidUsage;
  lock.unlock();
  // A kernel of its own, which a capture takes down in its place.
  CUlaunchConfig config{};
  config.gridDimX = config.gridDimY = config.gridDimZ = config.blockDimX = config.blockDimY = config.blockDimZ = 1;
  config.hStream = work.front().stream;
  if (cuLaunchKernelEx(&config, fake_kernel("nccl"), nullptr, nullptr) != CUDA_SUCCESS) return 1;
  CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
  cuStreamIsCapturing(work.front().stream, &capturing);
  lock.lock();
  const bool late = nccl.late_groups > 0;
  if (late) --nccl.late_groups, comm->late = 2;
  if (capturing != CU_STREAM_CAPTURE_STATUS_NONE) return late ? kInProgress : kSuccess;
  const bool waits = nccl.waits;
  static auto& kept = *new std::deque<bool>;  // for receivers that nobody waits for
  std::deque<bool> mine;
  for (const Work& item : work) {
    Room& room = *item.comm->room;
    if (item.send) {
      Wire& wire = room.wires[{item.comm->rank, item.peer}];
      const char* const bytes = static_cast<const char*>(item.memory);
      wire.sent.emplace_back(bytes, bytes + item.bytes);
      deliver(wire);
    } else {
      Wire& wire = room.wires[{item.peer, item.comm->rank}];
      bool* const done = waits ? &mine.emplace_back(false) : &kept.emplace_back(false);
      wire.wanted.push_back({item.memory, item.bytes, done});
      deliver(wire);
    }
  }
  changed.notify_all();
  if (!waits) return late ? kInProgress : kSuccess;
  const bool there = changed.wait_for(lock, std::chrono::seconds(60), [&] {
    return comm->aborted || std::all_of(mine.begin(), mine.end(), [](bool done) { return done; });
  });
  if (!there) return kInternal;
  // Nothing may be written to what is left behind.
  for (auto& [ends, wire] : comm->room->wires) {
    if (comm->aborted && ends.second == comm->rank) wire.wanted.clear();
  }
  return late ? kInProgress : kSuccess;
}

}  // namespace

FakeNccl& fake_nccl() { return nccl; }

void reset_fake_nccl() {
  const std::lock_guard lock(mutex);
  nccl.version = 22809;
  nccl.fail_once.clear();
  nccl.calls.clear();
  nccl.async_error = 0, nccl.waits = true, nccl.late_groups = 0, nccl.holds_aborts = false;
  nccl.live_comms = 0, nccl.aborted = 0, nccl.bytes_moved = 0;
  rooms.clear();
}

std::vector<ncclComm*> make_fake_comms(int ranks) {
  const std::lock_guard lock(mutex);
  const auto room = std::make_shared<Room>();
  room->ranks = room->joined = ranks;
  std::vector<ncclComm*> comms;
  for (int rank = 0; rank < ranks; ++rank) comms.push_back(new ncclComm{room, rank, rank});
  nccl.live_comms += ranks;
  return comms;
}

void destroy_fake_comm(ncclComm* comm) {
  const std::lock_guard lock(mutex);
  delete comm;
  --nccl.live_comms;
}

extern "C" {

struct FakeUniqueId {
  char internal[128];
};
struct FakeConfig {
  std::size_t size;
  unsigned magic, version;
  int blocking;
};

int ncclGetVersion(int* version) {
  *version = nccl.version;
  return kSuccess;
}
const char* ncclGetErrorString(int status) { return status == 6 ? "remote process exited" : "told to fail"; }
const char* ncclGetLastError(ncclComm*) { return ""; }
int ncclGetUniqueId(FakeUniqueId* id) {
  const std::lock_guard lock(mutex);
  if (const int told = enter("ncclGetUniqueId")) return told;
  *id = {};
  const std::string text = "fake " + std::to_string(++ids);
  std::memcpy(id->internal, text.data(), text.size());
  return kSuccess;
}
int ncclCommInitRankConfig(ncclComm** comm, int ranks, FakeUniqueId id, int rank, FakeConfig* config) {
  const std::lock_guard lock(mutex);
  if (const int told = enter("ncclCommInitRankConfig")) return told;
  if (config->magic != 0xcafebeef || config->size != sizeof(FakeConfig) || config->blocking != 0)
    return kInvalidArgument;
  if (rank < 0 || rank >= ranks) return kInvalidArgument;
  CUdevice device = -1;
  if (cuCtxGetDevice(&device) != CUDA_SUCCESS) return kInvalidUsage;  // a context must be current
  auto& room = rooms[id.internal];
  if (!room) room = std::make_shared<Room>();
  room->ranks = ranks;
  ++room->joined;
  *comm = new ncclComm{room, rank, device};
  ++nccl.live_comms;
  return kInProgress;
}
int ncclCommAbort(ncclComm* comm) {
  nccl.holds_aborts.wait(true);
  {
    const std::lock_guard lock(mutex);
    ++nccl.calls["ncclCommAbort"];
    comm->aborted = true;
    --nccl.live_comms;
    ++nccl.aborted;
    static auto& ended = *new std::vector<ncclComm*>;  // whose memory stays, for those who still wait in it
    ended.push_back(comm);
  }
  changed.notify_all();
  return kSuccess;
}
int ncclCommGetAsyncError(ncclComm* comm, int* status) {
  const std::lock_guard lock(mutex);
  if (const int told = enter("ncclCommGetAsyncError")) return told;
  *status = nccl.async_error;
  if (*status != kSuccess) return kSuccess;
  if (comm->room->joined < comm->room->ranks) *status = kInProgress;
  if (comm->late > 0 && --comm->late > 0) *status = kInProgress;
  return kSuccess;
}
int ncclCommCount(const ncclComm* comm, int* ranks) {
  *ranks = comm->room->ranks;
  return kSuccess;
}
int ncclCommUserRank(const ncclComm* comm, int* rank) {
  *rank = comm->rank;
  return kSuccess;
}
int ncclCommCuDevice(const ncclComm* comm, int* ordinal) {
  *ordinal = comm->device;
  return kSuccess;
}
int ncclGroupStart() {
  const std::lock_guard lock(mutex);
  if (const int told = enter("ncclGroupStart")) return told;
  ++depth;
  return kSuccess;
}
int ncclSend(const void* from, std::size_t count, int type, int peer, ncclComm* comm, CUstream stream) {
  const std::lock_guard lock(mutex);
  if (const int told = enter("ncclSend")) return told;
  if (type != 1 || depth == 0 || peer == comm->rank || peer < 0 || peer >= comm->room->ranks) return kInvalidArgument;
  asked.push_back({comm, true, const_cast<void*>(from), count, peer, stream});
  return kSuccess;
}
int ncclRecv(void* to, std::size_t count, int type, int peer, ncclComm* comm, CUstream stream) {
  const std::lock_guard lock(mutex);
  if (const int told = enter("ncclRecv")) return told;
  if (type != 1 || depth == 0 || peer == comm->rank || peer < 0 || peer >= comm->room->ranks) return kInvalidArgument;
  asked.push_back({comm, false, to, count, peer, stream});
  return kSuccess;
}
int ncclGroupEnd() {
  {
    const std::lock_guard lock(mutex);
    if (depth == 0) return kInvalidUsage;
    if (--depth > 0) return kSuccess;
  }
  return run(std::exchange(asked, {}));
}

}  // extern "C"
