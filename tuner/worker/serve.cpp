#include "tuner/worker/serve.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <optional>

#include "cache/cubin/cubin_db.hpp"
#include "tuner/backend/gpu_backend.hpp"
#include "tuner/backend/group_backend.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

/// One connection's state, and the answer to each request.
class Server {
 public:
  explicit Server(const WorkerService& service) : service_(service) {}

  WorkerReply answer(const WorkerRequest& request) {
    return std::visit([this](const auto& asked) { return this->answer_to(asked); }, request);
  }

 private:
  template <class T>
  static WorkerReply reply(Result<T> result) {
    if (!result) return result.error();
    return std::move(*result);
  }
  static WorkerReply reply(const Result<void>& result) {
    if (!result) return result.error();
    return Done{};
  }
  static Error closed() { return {ErrorCode::internal, "no device is open in this worker", {}, {}}; }

  WorkerReply answer_to(const Hello& hello) {
    if (hello.version != kWorkerProtocolVersion)
      return Error{ErrorCode::internal,
                   fmt::format("a worker of protocol {} cannot serve a session of protocol {}", kWorkerProtocolVersion,
                               hello.version),
                   "Use one build for both.",
                   {}};
    service_.begin(hello.cache_directory);
    return Done{};
  }
  WorkerReply answer_to(const CompileKernel& asked) { return reply(service_.compile(asked.spec)); }
  WorkerReply answer_to(const OpenDevice& asked) {
    Result<std::unique_ptr<TuneBackend>> opened = service_.open(asked);
    if (!opened) return opened.error();
    backend_ = std::move(*opened);
    return Done{};
  }
  WorkerReply answer_to(const AdoptKernel& asked) {
    return backend_ ? reply(backend_->adopt(asked.spec, asked.kernel)) : closed();
  }
  WorkerReply answer_to(const BeginShape& asked) {
    if (!backend_) return closed();
    const Result<double> us = backend_->begin_shape(asked.shape);
    if (!us) return us.error();
    return ReadTime{*us};
  }
  WorkerReply answer_to(const CheckConfig& asked) { return backend_ ? reply(backend_->check(asked.config)) : closed(); }
  WorkerReply answer_to(const TimeConfigs& asked) { return backend_ ? reply(backend_->time(asked.configs)) : closed(); }

  const WorkerService& service_;
  std::unique_ptr<TuneBackend> backend_;
};

bool send_all(int descriptor, const std::string& bytes) {
  for (std::size_t sent = 0; sent < bytes.size();) {
    const ssize_t wrote = ::send(descriptor, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (wrote < 0 && errno != EINTR) return false;
    if (wrote > 0) sent += static_cast<std::size_t>(wrote);
  }
  return true;
}

}  // namespace

int serve_worker(int descriptor, const WorkerService& service) {
  // If the session is killed while a kernel hangs here, this thread does not get to see that the socket is closed.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  int type = 0;
  socklen_t size = sizeof(type);
  if (::getsockopt(descriptor, SOL_SOCKET, SO_TYPE, &type, &size) != 0) return 2;
  Server server(service);
  FrameReader reader;
  for (;;) {
    const Result<std::optional<Frame>> frame = reader.next();
    if (!frame) return 2;
    if (*frame) {
      const Result<WorkerRequest> request = request_from(**frame);
      if (!request) return 2;
      if (!send_all(descriptor, encode(to_frame(server.answer(*request))))) return 0;
      continue;
    }
    char buffer[65536];
    const ssize_t got = ::recv(descriptor, buffer, sizeof(buffer), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return 0;
    reader.append({buffer, static_cast<std::size_t>(got)});
  }
}

WorkerService gpu_worker_service() {
  const auto cubins = std::make_shared<std::unique_ptr<CubinCache>>();
  const auto begin = [cubins](const std::string& directory) {
    // The session has opened the same file, and has reported what is wrong with it.
    *cubins =
        open_cubin_db(directory.empty() ? std::nullopt : std::optional<std::filesystem::path>(directory), nullptr);
  };
  const auto compile_spec = [cubins](const KernelSpec& spec) -> Result<CompiledKernel> {
    const Result<EmittedKernel> emitted = emit(spec);
    if (!emitted) return tl::unexpected(emitted.error());
    return compile(*emitted, cubins->get());
  };
  const auto open = [cubins](const OpenDevice& wanted) -> Result<std::unique_ptr<TuneBackend>> {
    const Result<DeviceFacts> device = device_facts(wanted.ordinal);
    if (!device) return tl::unexpected(device.error());
    if (device->uuid != wanted.uuid)
      return fail(ErrorCode::no_device, fmt::format("device {} is {} in the worker and {} in the session",
                                                    wanted.ordinal, device->uuid, wanted.uuid));
    if (in_group(wanted.problem.features)) {
      auto group = GroupBackend::create(*device, wanted.problem, wanted.policy, cubins->get(), wanted.rank_devices);
      if (!group) return tl::unexpected(group.error());
      return std::move(*group);
    }
    auto backend = GpuBackend::create(*device, wanted.problem, wanted.policy, cubins->get(), wanted.memory_bytes);
    if (!backend) return tl::unexpected(backend.error());
    (*backend)->stand_for_shape(wanted.requests);
    return std::move(*backend);
  };
  return {.begin = begin, .compile = compile_spec, .open = open};
}

}  // namespace v1
}  // namespace leanattn
