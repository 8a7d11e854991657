// arguments_fixture.hpp -- ArgumentsTest: arguments that bind_arguments() accepts. Their addresses are never read.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>

#include "runtime/engine/plan.hpp"

namespace leanattn {

template <class T = void>
T* at(std::uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

class ArgumentsTest : public ::testing::Test {
 protected:
  ArgumentsTest() {
    limits.problem = {.q_heads = 32, .kv_heads = 8, .head_dim = 128};
    limits.size.batch = 4;
    limits.workspace = {.partials_offset = 1024, .tickets_offset = 0, .total_bytes = 100000};
    leanattn_decode_args_init(&args);
    args.q = at(0x1000);
    args.k = at(0x2000);
    args.v = at(0x3000);
    args.o = at(0x4000);
    args.context_lengths = at<std::int32_t>(0x5004);
    args.batch = 2;
    args.context_capacity = 8192;
  }

  LaunchLimits limits;
  leanattn_decode_args args;
};

}  // namespace leanattn
