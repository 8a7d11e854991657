// stream_capture.cpp -- driver functions about captures and the user objects of their graphs.
#include "stream_capture.hpp"

#include <cuda.h>

#include <string>
#include <vector>

#include "runtime/cuda/driver.hpp"
#include "runtime/cuda/dynamic_library.hpp"

namespace leanattn::python {
namespace {

/// The functions of libcuda that captures need beyond the library's own table. Drivers have them since CUDA 11.3.
/// cuStreamGetCaptureInfo has several versions, and _v2 is the one with this signature.
struct CaptureApi {
  CUresult (*cuStreamGetCaptureInfo_v2)(CUstream, CUstreamCaptureStatus*, cuuint64_t*, CUgraph*, const CUgraphNode**,
                                        std::size_t*) = nullptr;
  CUresult (*cuUserObjectCreate)(CUuserObject*, void*, CUhostFn, unsigned, unsigned) = nullptr;
  CUresult (*cuUserObjectRelease)(CUuserObject, unsigned) = nullptr;
  CUresult (*cuGraphRetainUserObject)(CUgraph, CUuserObject, unsigned, unsigned) = nullptr;
};

Result<CaptureApi> open_api() {
  if (const auto started = driver(); !started) return tl::unexpected(started.error());
  const std::vector<std::string> candidates{"libcuda.so.1", "libcuda.so", "/usr/lib/wsl/lib/libcuda.so.1"};
  std::string failures;
  const auto library = DynamicLibrary::open_first(candidates, &failures);
  if (!library)
    return fail(ErrorCode::no_driver, "the NVIDIA driver library libcuda.so.1 cannot be loaded", {}, failures);
  CaptureApi api;
  std::string missing;
#define LEANATTN_RESOLVE(name)                                            \
  api.name = reinterpret_cast<decltype(api.name)>(library.symbol(#name)); \
  if (api.name == nullptr) missing += " " #name;
  LEANATTN_RESOLVE(cuStreamGetCaptureInfo_v2)
  LEANATTN_RESOLVE(cuUserObjectCreate)
  LEANATTN_RESOLVE(cuUserObjectRelease)
  LEANATTN_RESOLVE(cuGraphRetainUserObject)
#undef LEANATTN_RESOLVE
  if (missing.empty()) return api;
  return fail(ErrorCode::driver_too_old, "the NVIDIA driver lacks entry points:" + missing,
              "Install a driver for CUDA 12.0 or newer (525.60 or later).");
}

const Result<CaptureApi>& capture_api() {
  static const Result<CaptureApi> api = open_api();
  return api;
}

/// The driver calls this on a thread of its own, where no CUDA function may be called.
void set_ended(void* ended) {
  const std::unique_ptr<std::shared_ptr<std::atomic<bool>>> owned(
      static_cast<std::shared_ptr<std::atomic<bool>>*>(ended));
  (*owned)->store(true, std::memory_order_release);
}

}  // namespace

Result<StreamCapture> stream_capture_of(CUstream_st* stream) {
  if (stream == nullptr) return StreamCapture{};  // the legacy default stream cannot be captured
  const auto& api = capture_api();
  if (!api) return tl::unexpected(api.error());
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t id = 0;
  CUgraph graph = nullptr;
  if (auto ok = check(api->cuStreamGetCaptureInfo_v2(stream, &status, &id, &graph, nullptr, nullptr),
                      "cuStreamGetCaptureInfo", ErrorCode::launch_failed);
      !ok) {
    return tl::unexpected(ok.error());
  }
  if (status == CU_STREAM_CAPTURE_STATUS_ACTIVE) return StreamCapture{id, graph};
  if (status == CU_STREAM_CAPTURE_STATUS_NONE) return StreamCapture{};
  return fail(ErrorCode::launch_failed, "an earlier error has ended the capture of this stream",
              "Look for the first error inside the capture.");
}

Result<void> tell_end(const StreamCapture& capture, std::shared_ptr<std::atomic<bool>> ended) {
  const auto& api = capture_api();
  if (!api) return tl::unexpected(api.error());
  auto owned = std::make_unique<std::shared_ptr<std::atomic<bool>>>(std::move(ended));
  CUuserObject object = nullptr;
  if (auto ok = check(api->cuUserObjectCreate(&object, owned.get(), &set_ended, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC),
                      "cuUserObjectCreate");
      !ok) {
    return ok;
  }
  owned.release();  // set_ended() frees it
  if (auto ok = check(api->cuGraphRetainUserObject(capture.graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE),
                      "cuGraphRetainUserObject");
      !ok) {
    api->cuUserObjectRelease(object, 1);
    return ok;
  }
  return {};
}

}  // namespace leanattn::python
