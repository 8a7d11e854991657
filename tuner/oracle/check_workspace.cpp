// check_workspace.cpp -- the memory grows when a launch needs more, and is zeroed then.
#include "tuner/oracle/check_workspace.hpp"

#include "tuner/oracle/compare.hpp"
#include "tuner/oracle/decode_case_detail.hpp"

namespace leanattn {
inline namespace v1 {

Result<void> CheckWorkspace::bind(LeanDecodeArgs& args, const WorkspaceLayout& layout, CUstream_st* stream) {
  bound_bytes_ = layout.total_bytes;
  if (buffer_.bytes() < bound_bytes_ + kGuardBytes) {
    buffer_ = DeviceBuffer();
    auto grown = DeviceBuffer::allocate(bound_bytes_ + kGuardBytes);
    if (!grown) return tl::unexpected(grown.error());
    buffer_ = std::move(*grown);
    LEANATTN_TRY(reset(stream));
  }
  bind_workspace(args, layout, buffer_.data());
  return {};
}

Result<void> CheckWorkspace::reset(CUstream_st* stream) {
  return fill_bytes_async(buffer_.data(), 0, buffer_.bytes(), stream);
}

Result<void> CheckWorkspace::arm_guard(CUstream_st* stream) {
  return fill_bytes_async(buffer_.at(bound_bytes_), kPoisonByte, kGuardBytes, stream);
}

Result<void> CheckWorkspace::disarm_guard(CUstream_st* stream) {
  return fill_bytes_async(buffer_.at(bound_bytes_), 0, kGuardBytes, stream);
}

}  // namespace v1
}  // namespace leanattn
