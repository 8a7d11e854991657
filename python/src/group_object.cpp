// group_object.cpp -- leanattn.Group.
#include "group_object.hpp"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <cstring>
#include <vector>

#include "engine_object.hpp"
#include "errors.hpp"
#include "names.hpp"
#include "problem.hpp"
#include "runtime/cuda/beside_captures.hpp"
#include "streams.hpp"

namespace leanattn::python {
namespace nb = nanobind;
namespace {

/// Parts that nobody closed. They are never freed.
void keep_for_ever(std::shared_ptr<Group> group) {
  static auto& kept = *new std::vector<std::shared_ptr<Group>>;
  kept.push_back(std::move(group));
}

/// The part that needs torch.distributed is written in Python.
nb::object of_processes() { return nb::module_::import_("leanattn._groups"); }

std::vector<Group::Blob> read_blobs(nb::handle blobs) {
  if (!PySequence_Check(blobs.ptr()) || PyBytes_Check(blobs.ptr()) || PyUnicode_Check(blobs.ptr()))
    bad_type("blobs", "is not a sequence of bytes", "Give the export() of every rank, in the order of their ranks.");
  std::vector<Group::Blob> read;
  for (const nb::handle blob : nb::iter(blobs)) {
    if (!PyBytes_Check(blob.ptr()))
      bad_type("blobs", fmt::format("has an entry {} that is not bytes", read.size()), "Give what export() returned.");
    const auto bytes = nb::borrow<nb::bytes>(blob);
    if (bytes.size() != LEANATTN_GROUP_BLOB_BYTES)
      bad_value("blobs", fmt::format("has an entry {} of {} bytes", read.size(), bytes.size()),
                fmt::format("Give all {} bytes that export() returned.", LEANATTN_GROUP_BLOB_BYTES));
    std::memcpy(read.emplace_back().data(), bytes.data(), bytes.size());
  }
  return read;
}

std::vector<void*> read_addresses(nb::handle memory) {
  if (!PySequence_Check(memory.ptr()))
    bad_type("memory", "is not a sequence of addresses", "Give where this GPU reaches the memory of each peer.");
  std::vector<void*> read;
  for (const nb::handle address : nb::iter(memory))
    read.push_back(reinterpret_cast<void*>(address_of(address, "memory")));
  return read;
}

const char* transport_of(const GroupObject& self) {
  return self.peers() == self.size() ? "peers" : self.peers() == 1 ? "nccl" : "two_level";
}

std::string describe_group(const GroupObject& self) {
  return fmt::format("<leanattn.Group rank {} of {} on CUDA device {}{}, {}>", self.rank(), self.size(),
                     nb::cast<const EngineObject&>(self.engine()).device,
                     self.peers() == self.size() ? ""
                     : self.peers() == 1         ? " over NCCL"
                                                 : fmt::format(" with {} peers and over NCCL", self.peers()),
                     self.closed()      ? "closed"
                     : self.connected() ? "connected"
                                        : "not connected");
}

constexpr const char* kClassDocumentation =
    R"(One rank's membership of a group of GPUs that hold a part of every context each, for decode(..., group=).

Group.from_process_group makes one in each process of torch.distributed, and Group.of_engines all of one process. Without
torch.distributed, every rank makes a Group, sends its export() to all others by any means, and connects:

engine        the Engine of the rank's GPU, which the group keeps alive
rank, size    which of how many ranks this is; size is the context_parallel of the problems, 2 to 8
memory_bytes  of device memory for what the other ranks send: the largest Group.bytes_for() of the problems; the same on all
              ranks. Taken twice where there are peers and NCCL
peers         ranks that reach each other's memory and merge their results inside the kernel: 0 for all, 1 for none, or a
              divisor of size, such as the GPUs of a host. What peers do not, NCCL brings together: see connect_nccl()
memory        the address of memory_bytes of device memory of yours for what peers send, at a multiple of 256 bytes, which
              you keep until the group has ended; None: the group allocates it
Raises leanattn.Error: invalid_argument, unsupported, out_of_memory.

All ranks launch the same problems in the same order, with the same batch and scale, and a group serves one stream of each
rank at a time. Other ranks write into the group's memory, so a group ends by close(), or as the context manager that it
is. One that is merely forgotten keeps its memory until the process ends, with a ResourceWarning, and so does one that a
`with` block leaves by an exception. connect(), reset() and close() are called by one thread while no launch is made;
everything else may be called from any thread.)";

}  // namespace

GroupObject::GroupObject(nb::object engine, int rank, int size, std::int64_t bytes, int peers, void* memory)
    : process_group(nb::none()),
      engine_(std::move(engine)),
      rank_(rank),
      size_(size),
      peers_(peers != 0 ? peers : size),
      bytes_(bytes) {
  const auto& object = nb::cast<const EngineObject&>(engine_);
  auto made = [&]() -> Result<Group> {
    const nb::gil_scoped_release without_gil;
    return Group::create(object.engine, rank, size, bytes, peers, memory);
  }();
  group_ = std::make_shared<Group>(unwrap(std::move(made)));
}

GroupObject::~GroupObject() {
  if (closed()) return;
  abandon();
  if (!nb::is_alive()) return;
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  if (PyErr_ResourceWarning(nullptr, 1, "a leanattn.Group was not closed: its memory stays until the process ends") < 0)
    PyErr_WriteUnraisable(nullptr);
  PyErr_Restore(type, value, trace);
}

void GroupObject::abandon() {
  if (!closed()) keep_for_ever(std::move(group_));
  group_ = nullptr;
}

std::shared_ptr<Group> GroupObject::get() const {
  if (closed()) bad_value("group", "is closed", "Make a new one on all ranks.");
  return group_;
}

nb::bytes GroupObject::export_blob() const {
  const auto group = get();
  const auto blob = unwrap(group->export_blob());
  return nb::bytes(blob.data(), blob.size());
}

void GroupObject::connect(nb::handle blobs, nb::handle memory) {
  const auto group = get();
  const std::vector<Group::Blob> read = read_blobs(blobs);
  const std::vector<void*> addresses = given(memory) ? read_addresses(memory) : std::vector<void*>();
  unwrap([&] {
    const nb::gil_scoped_release without_gil;
    return given(memory) ? group->connect(read, addresses) : group->connect(read);
  }());
  connected_ = true;
}

void GroupObject::connect_nccl(nb::handle unique_id, nb::handle comm) {
  const auto group = get();
  if (given(unique_id) == given(comm))
    bad_value("unique_id", given(comm) ? "is given, and so is comm" : "is missing, and so is comm",
              "Give one of the two.");
  Group::NcclId id{};
  if (given(unique_id)) {
    if (!PyBytes_Check(unique_id.ptr())) bad_type("unique_id", "is not bytes", "Give what Group.nccl_id() returned.");
    const auto bytes = nb::borrow<nb::bytes>(unique_id);
    if (bytes.size() != id.size())
      bad_value("unique_id", fmt::format("has {} bytes", bytes.size()),
                fmt::format("Give all {} bytes that Group.nccl_id() returned.", id.size()));
    std::memcpy(id.data(), bytes.data(), id.size());
  }
  const std::uintptr_t handle = given(comm) ? address_of(comm, "comm") : 0;
  if (given(comm) && handle == 0) bad_value("comm", "is 0", "Give the address of an ncclComm_t.");
  unwrap([&] {
    const nb::gil_scoped_release without_gil;
    return handle != 0 ? group->connect_nccl(reinterpret_cast<leanattn_nccl_comm>(handle)) : group->connect_nccl(id);
  }());
  connected_nccl_ = true;
}

void GroupObject::reset(nb::handle stream) {
  const auto group = get();
  CUstream_st* const handle = stream.is_none() ? nullptr : find_stream(stream, stream).handle;
  unwrap([&] {
    const nb::gil_scoped_release without_gil;
    return group->reset(handle);
  }());
}

void GroupObject::close(bool barrier) {
  if (closed()) return;
  auto& object = nb::cast<EngineObject&>(engine_);
  unwrap([&] {
    const nb::gil_scoped_release without_gil;  // because other threads may have to launch what this one waits for
    return object.workspaces.wait();
  }());
  if (barrier && given(process_group)) of_processes().attr("barrier")(process_group);
  std::shared_ptr<Group> ended = std::move(group_);
  group_ = nullptr;
  process_group = nb::none();
  const nb::gil_scoped_release without_gil;
  const BesideCaptures relaxed;
  ended.reset();
}

const GroupObject* find_group(nb::handle given) {
  if (given.is_none()) [[likely]]
    return nullptr;
  GroupObject* object = nullptr;
  if (!nb::try_cast(given, object) || object == nullptr) bad_type("group", "is not a leanattn.Group");
  return object;
}

EngineObject& find_engine(const GroupObject* group, nb::handle given, int device) {
  if (group == nullptr) [[likely]]
    return find_engine(given, device);
  if (!given.is_none() && !given.is(group->engine()))
    bad_value("engine", "is not that of the group", "Leave it out, or give Group.engine.");
  auto& object = nb::cast<EngineObject&>(group->engine());
  if (object.device != device)
    bad_value("group", fmt::format("is of CUDA device {}, but q is on device {}", object.device, device),
              "Every rank decodes with tensors on its own GPU.");
  return object;
}

void bind_group(nb::module_& module) {
  nb::class_<GroupObject>(module, "Group", kClassDocumentation)
      .def(
          "__init__",
          [](GroupObject* self, nb::object engine, nb::handle rank, nb::handle size, nb::handle memory_bytes,
             nb::handle peers, nb::handle memory) {
            EngineObject* object = nullptr;
            if (!nb::try_cast(engine, object) || object == nullptr) bad_type("engine", "is not a leanattn.Engine");
            const std::uintptr_t address = given(memory) ? address_of(memory, "memory") : 0;
            if (given(memory) && address == 0) bad_value("memory", "is 0", "Give the address of device memory.");
            new (self) GroupObject(std::move(engine), int_of(rank, "rank"), int_of(size, "size"),
                                   int64_of(memory_bytes, "memory_bytes"), int_of(peers, "peers"),
                                   reinterpret_cast<void*>(address));
          },
          nb::arg("engine").none(), nb::arg("rank").none(), nb::arg("size").none(), nb::arg("memory_bytes").none(),
          nb::arg("peers").none() = 0, nb::arg("memory") = nb::none(),
          nb::sig("def __init__(self, engine: Engine, rank: int, size: int, memory_bytes: int, peers: int = 0, memory: "
                  "int | None = None) -> None"))
      .def_static(
          "from_process_group",
          [](nb::handle process_group, nb::handle problem, nb::handle max_batch, nb::handle engine,
             nb::handle transport) {
            return of_processes().attr("from_process_group")(process_group, problem, max_batch, engine, transport);
          },
          nb::arg("process_group") = nb::none(), nb::kw_only(), nb::arg("problem").none(), nb::arg("max_batch").none(),
          nb::arg("engine") = nb::none(), nb::arg("transport").none() = "auto",
          nb::sig("def from_process_group(process_group: typing.Any = None, *, problem: leanattn.Problem, max_batch: "
                  "int, engine: Engine | None = None, transport: str = 'auto') -> Group"),
          R"(This process's rank of a group of all processes of a torch.distributed process group, connected.

Every process of the process group makes this call, and each has a GPU of its own. What they tell each other meanwhile goes
through the process group, which may have any backend (NCCL, Gloo). Where one of them fails, all of them raise, and name
it. close() then has a barrier of the process group.

process_group  None: the default one
problem        a Problem whose context_parallel is the size of the process group; the largest, if there are several
max_batch      the most requests of a launch
engine         the Engine of this rank; None: that of decode() for torch's current CUDA device
transport      how results are brought together in a step: "peers", inside the kernel, by the memory of GPUs of one machine
               that reach each other; "nccl", by a communicator that the group makes; "two_level", by peers within each
               machine, whose ranks follow each other, and by NCCL between them; "auto": the first of peers (all ranks
               are on one machine), two_level and nccl that there can be
Raises leanattn.Error.)")
      .def_static(
          "of_engines",
          [](nb::handle engines, nb::handle problem, nb::handle max_batch, nb::handle transport) {
            return of_processes().attr("of_engines")(engines, problem, max_batch, transport);
          },
          nb::arg("engines").none(), nb::kw_only(), nb::arg("problem").none(), nb::arg("max_batch").none(),
          nb::arg("transport").none() = "auto",
          nb::sig("def of_engines(engines: typing.Sequence[Engine], *, problem: leanattn.Problem, max_batch: int, "
                  "transport: str = 'auto') -> list[Group]"),
          R"(One group of several engines of this process, connected, in the order of their ranks.

engines    of different GPUs; or, for tests and not over NCCL, several of one
problem    a Problem whose context_parallel is the number of engines; the largest, if there are several
max_batch  the most requests of a launch
transport  "peers", "nccl", or "auto": peers where all GPUs reach each other's memory, else NCCL
Raises leanattn.Error. Make the plans of all ranks before the first launch: loading a kernel may wait for a GPU on which
another rank's kernel waits already.)")
      .def_static(
          "bytes_for",
          [](nb::handle problem, nb::handle max_batch) {
            const DecodeProblem read = read_problem(problem);
            const leanattn_problem c_problem = to_c(read);
            std::int64_t bytes = 0;
            unwrap(detail::to_result(leanattn_group_bytes(&c_problem, int_of(max_batch, "max_batch"), &bytes)));
            return bytes;
          },
          nb::arg("problem").none(), nb::arg("max_batch").none(),
          nb::sig("def bytes_for(problem: leanattn.Problem, max_batch: int) -> int"),
          "The memory_bytes that launches of a problem with up to max_batch requests need. Raises leanattn.Error.")
      .def_static(
          "nccl_id",
          [] {
            const auto id = unwrap(Group::nccl_id());
            return nb::bytes(id.data(), id.size());
          },
          nb::sig("def nccl_id() -> bytes"),
          R"(A new unique id of NCCL, for connect_nccl(): made by one rank, and sent to all ranks of a communicator by any means.

Raises leanattn.Error: unsupported where there is no NCCL 2.14 or newer.)")
      .def("__repr__", &describe_group)
      .def(
          "export", &GroupObject::export_blob, nb::sig("def export(self) -> bytes"),
          R"(What the other ranks need to know of this one: bytes, to be sent by any means. They hold no secret but a CUDA IPC
handle, which processes of the same user may open. Raises leanattn.Error.)")
      .def("connect", &GroupObject::connect, nb::arg("blobs").none(), nb::arg("memory") = nb::none(),
           nb::sig("def connect(self, blobs: typing.Sequence[bytes], memory: typing.Sequence[int] | None = None) -> "
                   "None"),
           R"(Maps the memory of the peers, given the export() of each in the order of their ranks, its own included.

memory  where this GPU reaches the memory that each peer was given when it was made, such as the buffer_ptrs of PyTorch's
        symmetric memory; None: the group maps it by CUDA IPC
Called once, before the first launch; no rank waits for another. Raises leanattn.Error: invalid_argument (a blob is
damaged, in the wrong place, or of another group or version), unsupported (a GPU cannot reach another one's memory).)")
      .def("connect_nccl", &GroupObject::connect_nccl, nb::arg("unique_id") = nb::none(), nb::kw_only(),
           nb::arg("comm") = nb::none(),
           nb::sig("def connect_nccl(self, unique_id: bytes | None = None, *, comm: int | None = None) -> None"),
           R"(Connects a group whose ranks are not all peers over NCCL.

unique_id  what Group.nccl_id() returned on one rank: the group makes a communicator of its own, and aborts it when it breaks
           or ends. The call returns at once, and the first plan waits for the other ranks, at most LEANATTN_JOIN_BOUND_MS a step
comm       the address of an ncclComm_t of the caller's, in which rank r of the group is rank r // peers of size // peers. It
           stays the caller's and outlives the group; after leanattn.GroupBroken the caller aborts it before the next
           connect_nccl() or close(). All ranks wait for each other in this call
After leanattn.GroupBroken on any rank, all ranks call it again, with another id or communicator, which replaces the first.
Where there are peers, reset() follows. Raises leanattn.Error: invalid_argument, unsupported (there is no NCCL),
launch_failed, group_broken.)")
      .def("reset", &GroupObject::reset, nb::arg("stream") = nb::none(),
           nb::sig("def reset(self, stream: typing.Any = None) -> None"),
           R"(Makes the group usable again after leanattn.GroupBroken: zeroes this rank's part and waits for the stream.

All ranks do so, between two barriers: none while a launch of any rank runs, and none launches before all have.

stream  a CUDA stream or its handle, on which the part is zeroed; None: the legacy default stream
Raises leanattn.Error, also where NCCL is broken: then connect_nccl() comes first, and where no ranks are peers it is
enough.)")
      .def(
          "close", [](GroupObject& self, nb::handle barrier) { self.close(bool_of(barrier, "barrier")); },
          nb::kw_only(), nb::arg("barrier").none() = true, nb::sig("def close(self, *, barrier: bool = True) -> None"),
          R"(Waits for this rank's GPU, then for all ranks of the process group, and frees this rank's part.

No launch and no replay of a graph with the group may follow, on any rank. A group that was not made from a process group
has no barrier in here: put one of your own before it. A second call does nothing.

barrier  False: does not wait for the other ranks, such as where one of them has died
Raises leanattn.Error.)")
      .def(
          "__enter__", [](nb::object self) { return self; }, nb::sig("def __enter__(self) -> Group"))
      .def(
          "__exit__",
          [](GroupObject& self, nb::handle type, nb::handle, nb::handle) {
            if (type.is_none()) return self.close(true);
            self.abandon();
          },
          nb::arg("type").none(), nb::arg("value").none(), nb::arg("traceback").none(),
          nb::sig("def __exit__(self, type: typing.Any, value: typing.Any, traceback: typing.Any) -> None"))
      .def(
          "heads",
          [](const GroupObject& self, nb::handle q_heads) {
            const int heads = int_of(q_heads, "q_heads");
            if (heads < 1 || heads % self.size() != 0)
              bad_value("q_heads", fmt::format("is {}, which {} ranks do not divide", heads, self.size()));
            const int share = heads / self.size();
            return nb::slice(self.share() * share, (self.share() + 1) * share, 1);
          },
          nb::arg("q_heads").none(), nb::sig("def heads(self, q_heads: int) -> slice"),
          "The query heads of which this rank writes the result, unless every rank writes all: a slice.")
      .def_prop_ro("rank", &GroupObject::rank, "Which of the ranks this is.")
      .def_prop_ro("size", &GroupObject::size, "The number of ranks.")
      .def_prop_ro("memory_bytes", &GroupObject::bytes, "Bytes of device memory for what the other ranks send.")
      .def_prop_ro("peers", &GroupObject::peers, "The ranks that merge inside the kernel, this one included.")
      .def_prop_ro("transport", &transport_of,
                   "How results are brought together: \"peers\", \"nccl\" or \"two_level\".")
      .def_prop_ro("connected", &GroupObject::connected,
                   "Whether connect() and connect_nccl() have been called, as far as the group needs them.")
      .def_prop_ro("closed", &GroupObject::closed, "Whether the group has ended.")
      .def_prop_ro(
          "engine", [](const GroupObject& self) { return self.engine(); }, "The engine of the rank's GPU.",
          nb::sig("def engine(self) -> Engine"))
      // For leanattn._groups.
      .def_prop_rw(
          "_process_group", [](const GroupObject& self) { return self.process_group; },
          [](GroupObject& self, nb::object process_group) { self.process_group = std::move(process_group); },
          nb::for_setter(nb::arg("process_group").none()));
}

}  // namespace leanattn::python
