// device_flags_test.cpp -- --arch and --sms describe a GPU that is not in the machine.
#include "cli/flags/device_flags.hpp"

#include <gtest/gtest.h>

#include <tuple>

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

TEST(DeviceFlags, AGpuIsKnownByItsName) {
  for (const auto& [text, arch, sms] :
       {std::tuple("h100", "sm_90a", 132), std::tuple("H20", "sm_90a", 78), std::tuple("RTX 4090", "sm_89", 128),
        std::tuple("rtx-5090", "sm_120a", 170), std::tuple("b200", "sm_100a", 148)}) {
    DeviceFlags flags;
    flags.arch = text;
    const auto facts = offline_facts(flags);
    ASSERT_TRUE(facts.has_value()) << text;
    EXPECT_EQ(to_string(facts->arch), arch);
    EXPECT_EQ(facts->sm_count, sms);
    flags.sms = "66";
    EXPECT_EQ(offline_facts(flags)->sm_count, 66);
  }
}

TEST(DeviceFlags, EveryNameThatIsOfferedIsKnown) {
  for (const std::string& name : gpu_names()) {
    DeviceFlags flags;
    flags.arch = name;
    EXPECT_TRUE(offline_facts(flags).has_value()) << name;
  }
  DeviceFlags flags;
  flags.arch = "h1000";
  EXPECT_NE(offline_facts(flags).error().hint.find("Did you mean h100?"), std::string::npos);
}

}  // namespace
}  // namespace leanattn
