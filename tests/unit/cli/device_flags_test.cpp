// device_flags_test.cpp -- --arch and --sms describe a GPU that is not in the machine.
#include "cli/flags/device_flags.hpp"

#include <gtest/gtest.h>

namespace leanattn {
namespace {

TEST(DeviceFlags, AnArchWithoutSmsHasThoseOfItsMostCommonProduct) {
  DeviceFlags flags;
  flags.arch = "sm_90a";
  const auto facts = offline_facts(flags);
  ASSERT_TRUE(facts.has_value()) << facts.error().message;
  EXPECT_EQ(facts->sm_count, 132);
  flags.sms = "78";
  EXPECT_EQ(offline_facts(flags)->sm_count, 78);
  flags.sms = "0";
  EXPECT_FALSE(offline_facts(flags).has_value());
}

}  // namespace
}  // namespace leanattn
