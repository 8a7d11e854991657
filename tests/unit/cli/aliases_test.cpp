// aliases_test.cpp -- every alias is a name that the parsers of flags read.
#include "cli/flags/aliases.hpp"

#include <gtest/gtest.h>

#include "generator/feature_table.hpp"
#include "generator/kernel_spec.hpp"

namespace leanattn {
namespace {

TEST(Aliases, LeadToNamesThatAreRead) {
  for (const char* name : {"float16", "half", "f16", "BFLOAT16"}) EXPECT_TRUE(parse_dtype(without_alias(name))) << name;
  for (const char* name : {"fp8", "e4m3", "float8_e4m3fn"})
    EXPECT_EQ(parse_enumerator<KvFormat>(without_alias(name)), KvFormat::fp8_e4m3) << name;
  for (const char* name : {"e5m2", "float8_e5m2"})
    EXPECT_EQ(parse_enumerator<KvFormat>(without_alias(name)), KvFormat::fp8_e5m2) << name;
  EXPECT_EQ(parse_enumerator<KvFormat>(without_alias("i8")), KvFormat::int8);
  EXPECT_EQ(parse_kv_layout(without_alias("HND")), KvLayout::contiguous);
  EXPECT_EQ(parse_kv_layout(without_alias("NHD")), KvLayout::strided);
  EXPECT_EQ(parse_enumerator<Rope>(without_alias("neox")), Rope::half_split);
  for (const char* name : {"gptj", "gpt-j"})
    EXPECT_EQ(parse_enumerator<Rope>(without_alias(name)), Rope::interleaved) << name;
}

TEST(Aliases, LeaveEveryOtherNameAlone) {
  for (const char* name : {"", "fp16", "FP16", "float", "neoxx"}) EXPECT_EQ(without_alias(name), name);
}

}  // namespace
}  // namespace leanattn
