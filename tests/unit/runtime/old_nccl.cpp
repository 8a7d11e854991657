// old_nccl.cpp -- a libnccl of a version that is too old, with all entry points that the library asks for.
extern "C" {

int ncclGetVersion(int* version) {
  *version = 21200;
  return 0;
}
#define LEANATTN_OLD(name) \
  int name() { return 3; }
LEANATTN_OLD(ncclGetErrorString)
LEANATTN_OLD(ncclGetLastError)
LEANATTN_OLD(ncclGetUniqueId)
LEANATTN_OLD(ncclCommInitRankConfig)
LEANATTN_OLD(ncclCommAbort)
LEANATTN_OLD(ncclCommGetAsyncError)
LEANATTN_OLD(ncclCommCount)
LEANATTN_OLD(ncclCommUserRank)
LEANATTN_OLD(ncclCommCuDevice)
LEANATTN_OLD(ncclSend)
LEANATTN_OLD(ncclRecv)
LEANATTN_OLD(ncclGroupStart)
LEANATTN_OLD(ncclGroupEnd)

}  // extern "C"
