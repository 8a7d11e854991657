// nccl.cpp -- finds and opens libnccl.
#include "runtime/cuda/nccl.hpp"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "cache/environment_variable.hpp"
#include "cache/files.hpp"
#include "runtime/cuda/dynamic_library.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr const char* kNcclSoname = "libnccl.so.2";
constexpr int kOldestNccl = 21400;  // from which on communicators need not wait for other ranks
constexpr const char* kNcclCure =
    "Install NCCL 2.14 or newer (NVIDIA's wheel nvidia-nccl-cu13 or nvidia-nccl-cu12, which PyTorch brings along, or "
    "the package libnccl2), or name its file in LEANATTN_NCCL_LIB.";

/// The table of an opened library. Errors: unsupported, when it is no NCCL that groups can use.
Result<NcclApi> describe_nccl(const DynamicLibrary& library) {
  NcclApi api;
  std::string missing;
  const auto resolve = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(library.symbol(name));
    if (function == nullptr) missing += std::string(" ") + name;
  };
  resolve(api.ncclGetVersion, "ncclGetVersion");
  resolve(api.ncclGetErrorString, "ncclGetErrorString");
  resolve(api.ncclGetLastError, "ncclGetLastError");
  resolve(api.ncclGetUniqueId, "ncclGetUniqueId");
  resolve(api.ncclCommInitRankConfig, "ncclCommInitRankConfig");
  resolve(api.ncclCommAbort, "ncclCommAbort");
  resolve(api.ncclCommGetAsyncError, "ncclCommGetAsyncError");
  resolve(api.ncclCommCount, "ncclCommCount");
  resolve(api.ncclCommUserRank, "ncclCommUserRank");
  resolve(api.ncclCommCuDevice, "ncclCommCuDevice");
  resolve(api.ncclSend, "ncclSend");
  resolve(api.ncclRecv, "ncclRecv");
  resolve(api.ncclGroupStart, "ncclGroupStart");
  resolve(api.ncclGroupEnd, "ncclGroupEnd");
  if (!missing.empty())
    return fail(ErrorCode::unsupported, fmt::format("{} lacks entry points:{}", library.name(), missing), kNcclCure);
  api.path = DynamicLibrary::path_of(reinterpret_cast<const void*>(api.ncclGetVersion));
  if (auto ok = check_nccl(api, api.ncclGetVersion(&api.version), "ncclGetVersion"); !ok)
    return tl::unexpected(std::move(ok.error()));
  if (api.version < kOldestNccl)
    return fail(ErrorCode::unsupported,
                fmt::format("{} is NCCL {}, and groups need {} or newer", api.path, nccl_version_text(api.version),
                            nccl_version_text(kOldestNccl)),
                kNcclCure);
  return api;
}

}  // namespace

std::string nccl_version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

std::vector<std::string> nccl_candidates(const std::filesystem::path& site_packages) {
  if (const auto file = environment_variable("LEANATTN_NCCL_LIB"); !file.empty()) return {file};
  std::vector<std::string> candidates{kNcclSoname};
  const auto add = [&](const std::filesystem::path& path) {
    std::error_code error;
    if (std::filesystem::exists(path, error)) candidates.push_back(path.string());
  };
  if (!site_packages.empty()) add(site_packages / "nvidia/nccl/lib" / kNcclSoname);
  for (const char* folder : {"lib64", "lib"}) add(std::filesystem::path("/usr/local/cuda") / folder / kNcclSoname);
  return candidates;
}

Result<NcclApi> open_nccl(std::span<const std::string> candidates) {
  std::string failures;
  std::optional<Error> refused;
  for (const std::string& candidate : candidates) {
    const auto library = DynamicLibrary::open_first({&candidate, 1}, &failures);
    if (!library) continue;
    Result<NcclApi> api = describe_nccl(library);
    if (api) return api;
    failures += api.error().message + '\n';
    if (!refused) refused = std::move(api.error());
  }
  if (refused) {
    refused->log = failures;
    return tl::unexpected(*std::move(refused));
  }
  const std::string named = environment_variable("LEANATTN_NCCL_LIB");
  return tl::unexpected(
      detail::cannot_open({ErrorCode::unsupported,
                           named.empty() ? "NCCL's library libnccl.so.2 cannot be loaded"
                                         : fmt::format("LEANATTN_NCCL_LIB names {}, which cannot be loaded", named),
                           kNcclCure, failures}));
}

Result<const NcclApi*> nccl() {
  static const Result<NcclApi> opened = open_nccl(nccl_candidates());
  if (!opened) return tl::unexpected(opened.error());
  return &*opened;
}

Result<void> check_nccl(const NcclApi& api, int status, const char* call) {
  if (status == kNcclSuccess || status == kNcclInProgress) [[likely]]
    return {};
  const char* const words = api.ncclGetErrorString(status);
  const char* const more = api.ncclGetLastError(nullptr);
  std::string message = fmt::format("{}: {} ({})", call, words != nullptr ? words : "NCCL error", status);
  if (more != nullptr && *more != '\0') message += fmt::format(": {}", more);
  return fail(ErrorCode::launch_failed, std::move(message),
              "NCCL_DEBUG=WARN prints NCCL's own account. Each rank needs a GPU of its own, and all ranks the same "
              "version of NCCL and a network between them (NCCL_SOCKET_IFNAME).");
}

}  // namespace v1
}  // namespace leanattn
