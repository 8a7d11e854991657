#include "generator/parse_json.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace leanattn {
namespace {

using nlohmann::json;

TEST(IntegerOf, TakesTheWholeNumbersOfTheTypeAndNothingElse) {
  EXPECT_EQ(integer_of<int>(json(0)), 0);
  EXPECT_EQ(integer_of<int>(json(2147483647)), 2147483647);
  EXPECT_EQ(integer_of<int>(json(-2147483648ll)), -2147483647 - 1);
  EXPECT_EQ(integer_of<std::int64_t>(json(INT64_MIN)), INT64_MIN);
  EXPECT_EQ(integer_of<std::uint64_t>(json(UINT64_MAX)), UINT64_MAX);
  EXPECT_EQ(integer_of<std::size_t>(json(7)), 7u);

  EXPECT_FALSE(integer_of<int>(json(2147483648ll)));
  EXPECT_FALSE(integer_of<int>(json(-2147483649ll)));
  EXPECT_FALSE(integer_of<int>(json(UINT64_MAX)));
  EXPECT_FALSE(integer_of<std::int64_t>(json(UINT64_MAX)));
  EXPECT_FALSE(integer_of<std::size_t>(json(-1)));
  for (const json& other :
       {json(1.0), json(-1e300), json(1e300), json("1"), json(true), json(nullptr), json::array({1})})
    EXPECT_FALSE(integer_of<std::int64_t>(other)) << other;
}

TEST(JsonFault, SaysWhereANumberStandsThatNoDoubleHolds) {
  EXPECT_TRUE(parse_json("{\"a\": 1e999}").is_discarded());
  EXPECT_EQ(json_fault("{\"a\": 1e999}"), "line 1, column 7: number overflow parsing '1e999'");
  EXPECT_EQ(json_fault("[1,\n -2e400]"), "line 2, column 2: number overflow parsing '-2e400'");
}

TEST(IntegerOf, RequiringOneSaysWhatStoodThere) {
  EXPECT_EQ(require_integer<int>(json(12)), 12);
  try {
    require_integer<int>(json(-1e300));
    FAIL() << "a fraction beyond every integer was taken";
  } catch (const std::out_of_range& error) {
    EXPECT_STREQ(error.what(), "-1e+300 is not a whole number of the expected range");
  }
}

/// What reading throws, as people read it.
template <class Read>
std::string reason_of(Read read) {
  try {
    read();
  } catch (const std::exception& error) {
    return json_reason(error);
  }
  return "nothing was thrown";
}

TEST(JsonReason, SaysInOurWordsWhatTheLibraryThrows) {
  const json object = json::parse(R"({"name": 3, "list": [1, 2]})");
  EXPECT_EQ(reason_of([&] { object.at("calls").get<int>(); }), "'calls' is missing");
  EXPECT_EQ(reason_of([&] { object.at("name").get<std::string>(); }), "a string is expected, and not a number");
  EXPECT_EQ(reason_of([&] { json().get<std::vector<int>>(); }), "an array is expected, and not null");
  EXPECT_EQ(reason_of([&] { object.at("name").at("x").get<int>(); }),
            "an object or an array is expected, and not a number");
  EXPECT_EQ(reason_of([&] { json::parse("{").get<int>(); }).find("json.exception"), std::string::npos);
  EXPECT_EQ(reason_of([&] { object.at("list").at(7).get<int>(); }), "array index 7 is out of range");
  EXPECT_EQ(reason_of([] { throw std::out_of_range("[1] is ours"); }), "[1] is ours");
}

TEST(JsonReason, NamesTheWayToTheValue) {
  const json document = json::parse(R"({"devices": [{"sms": 132}, {"sms": "many"}, {}], "none": 7})");
  const auto read = [&](const char* list, std::size_t from) {
    return reason_of([&] {
      std::size_t number = 0;
      read_elements(document, list, [&](const json& device) {
        if (number++ >= from) require<int>(device, "sms");
      });
    });
  };
  EXPECT_EQ(read("devices", 0), "'devices': element 1: 'sms': a number is expected, and not a string");
  EXPECT_EQ(read("devices", 2), "'devices': element 2: 'sms' is missing");
  EXPECT_EQ(read("none", 0), "'none': an array is expected");
  EXPECT_EQ(reason_of([] { require<int>(json(7), "sms"); }), "an object with 'sms' is expected");
}

}  // namespace
}  // namespace leanattn
