// current_context.hpp -- CurrentContext: a CUDA context made current for a scope. Used by one thread.
#pragma once

#include "leanattn/error.hpp"

struct CUctx_st;

namespace leanattn {
inline namespace v1 {

/// Makes `context` current on this thread for its lifetime, and then restores the one before. Where `context` is null
/// or current already, it does nothing.
class CurrentContext {
 public:
  explicit CurrentContext(CUctx_st* context);
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;
  ~CurrentContext();
  /// Whether the context is current now. Errors: no_driver, context_lost.
  const Result<void>& entered() const { return entered_; }

 private:
  bool pushed_ = false;
  Result<void> entered_;
};

}  // namespace v1
}  // namespace leanattn
