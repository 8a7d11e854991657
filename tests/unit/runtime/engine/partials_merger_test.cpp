#include "runtime/engine/partials_merger.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/cuda/compiler.hpp"
#include "runtime/cuda/nvrtc.hpp"

namespace leanattn {
namespace {

/// Two parts, whose addresses are never read.
leanattn_merge_args two_parts() {
  leanattn_merge_args args;
  leanattn_merge_args_init(&args);
  for (int part = 0; part < 2; ++part) {
    args.o[part] = reinterpret_cast<const void*>(std::uintptr_t{0x1000});
    args.lse[part] = reinterpret_cast<const float*>(std::uintptr_t{0x2000});
  }
  args.out_o = reinterpret_cast<void*>(std::uintptr_t{0x1000});
  args.rows = 32, args.parts = 2, args.dim = 128;
  return args;
}

TEST(MergePartials, TakesPartsInPlaceAndWithoutAnLseOfTheirOwn) {
  EXPECT_TRUE(check_merge(two_parts()).has_value());
  leanattn_merge_args strided = two_parts();
  strided.o_stride_row = 256, strided.out_stride_row = 130;
  EXPECT_TRUE(check_merge(strided).has_value());
}

TEST(MergePartials, NoRowsNeedNoMemory) {
  leanattn_merge_args none = two_parts();
  none.rows = 0, none.out_o = nullptr;
  for (int part = 0; part < 2; ++part) none.o[part] = nullptr, none.lse[part] = nullptr;
  EXPECT_TRUE(check_merge(none).has_value());
  none.dim = 127;
  EXPECT_EQ(check_merge(none).error().message, "dim is 127");
}

TEST(MergePartials, EveryBadArgumentIsNamed) {
  const auto message_of = [](auto change) {
    leanattn_merge_args args = two_parts();
    change(args);
    const auto checked = check_merge(args);
    if (checked) return std::string("ok");
    EXPECT_EQ(checked.error().code, ErrorCode::invalid_argument);
    return checked.error().message;
  };
  using Args = leanattn_merge_args;
  EXPECT_EQ(message_of([](Args& a) { a.parts = 0; }), "parts is 0");
  EXPECT_EQ(message_of([](Args& a) { a.parts = 9; }), "parts is 9");
  EXPECT_EQ(message_of([](Args& a) { a.rows = -1; }), "rows is -1");
  EXPECT_EQ(message_of([](Args& a) { a.dim = 127; }), "dim is 127");
  EXPECT_EQ(message_of([](Args& a) { a.dtype = 7; }), "dtype is 7");
  EXPECT_EQ(message_of([](Args& a) { a.reserved = 1; }), "merge_args.reserved is 1");
  EXPECT_EQ(message_of([](Args& a) { a.parts = 3; }), "o[2] is null");
  EXPECT_EQ(message_of([](Args& a) { a.lse[1] = nullptr; }), "lse[1] is null");
  EXPECT_EQ(message_of([](Args& a) { a.out_o = nullptr; }), "out_o is null");
  EXPECT_NE(message_of([](Args& a) { a.o[0] = reinterpret_cast<const void*>(std::uintptr_t{0x1002}); }).find("o[0]"),
            std::string::npos);
  EXPECT_NE(message_of([](Args& a) { a.out_lse = reinterpret_cast<float*>(std::uintptr_t{0x2001}); }).find("out_lse"),
            std::string::npos);
  EXPECT_NE(message_of([](Args& a) { a.o_stride_row = 64; }).find("o_stride_row is 64"), std::string::npos);
  EXPECT_NE(message_of([](Args& a) { a.out_stride_row = 129; }).find("out_stride_row is 129"), std::string::npos);
}

TEST(MergePartials, ItsKernelsCompileForEveryGeneration) {
  if (const auto api = nvrtc(); !api) GTEST_SKIP() << api.error().message;
  for (const char* name : {"sm_80", "sm_89", "sm_90a", "sm_100a"}) {
    const Arch arch = parse_arch(name).value();
    if (!check_arch(**nvrtc(), arch)) continue;
    const auto compiled = compile_source(merge_source(), arch, nullptr);
    EXPECT_TRUE(compiled) << name << ": " << compiled.error().message << compiled.error().log;
  }
}

}  // namespace
}  // namespace leanattn
