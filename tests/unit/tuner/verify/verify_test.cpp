// verify_test.cpp -- the report of a verify run, its parts, and what it says without a GPU.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tuner/verify/runner.hpp"
#include "tuner/verify/verify.hpp"

namespace leanattn {
namespace {

TEST(VerifyReport, JsonCarriesProvenanceAndFailures) {
  VerifyReport report;
  report.device.name = "NVIDIA Test";
  report.device.arch = {9, 0, true};
  report.seed = 42;
  VerifyGroup group;
  group.name = "ragged";
  group.cases = 3;
  group.failed = 1;
  group.failures = {"lean_x grid 7: \"quoted\""};
  report.groups.push_back(group);
  const auto json = nlohmann::json::parse(to_json(report));
  EXPECT_EQ(json["device"]["name"], "NVIDIA Test");
  EXPECT_EQ(json["device"]["arch"], "sm_90a");
  EXPECT_EQ(json["seed"], 42);
  EXPECT_EQ(json["passed"], false);
  EXPECT_FALSE(json["generator_revision"].get<std::string>().empty());
  EXPECT_EQ(json["groups"][0]["failed"], 1);
  EXPECT_EQ(json["groups"][0]["failures"][0], "lean_x grid 7: \"quoted\"");
}

TEST(Verify, SaysWhatIsMissingWithoutADevice) {
  const auto devices = list_devices();
  if (devices.has_value()) GTEST_SKIP() << "this machine has a GPU";
  const auto report = verify({}, nullptr, {}, nullptr);
  ASSERT_FALSE(report.has_value());
  EXPECT_EQ(report.error().code, devices.error().code);
  EXPECT_FALSE(report.error().message.empty());
}

TEST(VerifyRunner, LongListsOfLengthsAreAbbreviated) {
  EXPECT_EQ(describe_lengths({3, 0, 17}), "{3, 0, 17}");
  const std::string text = describe_lengths(std::vector<int>(1000, 7));
  EXPECT_NE(text.find("1000 in all"), std::string::npos);
  EXPECT_LT(text.size(), 100u);
}

TEST(VerifyParts, AreReadByTheirNames) {
  for (const VerifyPart part :
       {VerifyPart::themes, VerifyPart::features, VerifyPart::random, VerifyPart::combinations, VerifyPart::groups}) {
    const auto parsed = parse_verify_part(to_string(part));
    ASSERT_TRUE(parsed.has_value());
    EXPECT_EQ(*parsed, part);
  }
  EXPECT_FALSE(parse_verify_part("everything").has_value());
}

}  // namespace
}  // namespace leanattn
