// current_context.cpp -- pushes a context only where it is not current already, because launches ask at every step.
#include "runtime/cuda/current_context.hpp"

#include "runtime/cuda/driver.hpp"

namespace leanattn {
inline namespace v1 {

CurrentContext::CurrentContext(CUctx_st* context) {
  if (context == nullptr) return;
  const auto api = driver();
  if (!api) [[unlikely]] {
    entered_ = tl::unexpected(api.error());
    return;
  }
  CUcontext current = nullptr;
  if ((*api)->cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == context) [[likely]]
    return;
  entered_ = check((*api)->cuCtxPushCurrent(context), "cuCtxPushCurrent", ErrorCode::context_lost);
  pushed_ = entered_.has_value();
}

CurrentContext::~CurrentContext() {
  if (!pushed_) return;
  CUcontext popped = nullptr;
  if (const auto api = driver()) (*api)->cuCtxPopCurrent(&popped);
}

}  // namespace v1
}  // namespace leanattn
