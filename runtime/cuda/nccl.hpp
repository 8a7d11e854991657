// nccl.hpp -- NcclApi: libnccl, opened at run time, as one table of the functions that we use. Thread-safe. It is
// opened once and never closed. The build does not need NCCL's header, so that the few types are declared here, after
// the NCCL API reference.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "cache/paths.hpp"
#include "leanattn/error.hpp"
#include "runtime/cuda/nvrtc.hpp"

struct CUstream_st;
struct ncclComm;  // as nccl.h calls it

namespace leanattn {
inline namespace v1 {

/// Two of NCCL's statuses (ncclResult_t).
inline constexpr int kNcclSuccess = 0, kNcclInProgress = 7;
/// ncclUint8 of ncclDataType_t.
inline constexpr int kNcclUint8 = 1;

/// ncclUniqueId.
struct NcclUniqueId {
  char internal[128];
};

/// ncclConfig_t as it was in NCCL 2.14. Later versions know its size and fill in the rest.
struct NcclConfig {
  std::size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  int blocking = 0;  ///< 0: calls return kNcclInProgress instead of waiting for other ranks
};
static_assert(sizeof(NcclConfig) == 24);

/// The table, and which NCCL it is of.
struct NcclApi {
  int (*ncclGetVersion)(int* version) = nullptr;
  const char* (*ncclGetErrorString)(int status) = nullptr;
  const char* (*ncclGetLastError)(ncclComm* comm) = nullptr;
  int (*ncclGetUniqueId)(NcclUniqueId* id) = nullptr;
  int (*ncclCommInitRankConfig)(ncclComm** comm, int ranks, NcclUniqueId id, int rank, NcclConfig* config) = nullptr;
  int (*ncclCommAbort)(ncclComm* comm) = nullptr;
  int (*ncclCommGetAsyncError)(ncclComm* comm, int* status) = nullptr;
  int (*ncclCommCount)(const ncclComm* comm, int* ranks) = nullptr;
  int (*ncclCommUserRank)(const ncclComm* comm, int* rank) = nullptr;
  int (*ncclCommCuDevice)(const ncclComm* comm, int* ordinal) = nullptr;
  int (*ncclSend)(const void* from, std::size_t count, int type, int rank, ncclComm* comm,
                  CUstream_st* stream) = nullptr;
  int (*ncclRecv)(void* to, std::size_t count, int type, int rank, ncclComm* comm, CUstream_st* stream) = nullptr;
  int (*ncclGroupStart)() = nullptr;
  int (*ncclGroupEnd)() = nullptr;
  int version = 0;   ///< such as 22809
  std::string path;  ///< of the library file
};

/// The table. The first call opens the library and decides for the life of the process. It looks for LEANATTN_NCCL_LIB
/// (a file, after which nothing else is tried), for libnccl.so.2 as the loader finds it, which is the one that PyTorch
/// has loaded where it has, in the site-packages in which the library itself lies as part of a wheel, and in
/// /usr/local/cuda. A library older than NCCL 2.14 is passed over. A set-user-id program ignores the environment.
/// Errors: unsupported, which names what was tried.
Result<const NcclApi*> nccl();

/// A version as NCCL writes it: 2.28.9 for 22809.
std::string nccl_version_text(int version);

/// The candidates of that search, in order, with the environment as it is now. `site_packages` as for NVRTC.
std::vector<std::string> nccl_candidates(
    const std::filesystem::path& site_packages = site_packages_of(own_directory()));

/// The first candidate that is a usable NCCL. Errors: as for nccl().
Result<NcclApi> open_nccl(std::span<const std::string> candidates);

/// Turns the status of a call into a result; kNcclInProgress is no error. Errors: launch_failed, with the name of the
/// call and the words of NCCL.
Result<void> check_nccl(const NcclApi& api, int status, const char* call);

}  // namespace v1
}  // namespace leanattn
