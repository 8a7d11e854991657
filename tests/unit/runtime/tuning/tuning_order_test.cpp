// tuning_order_test.cpp -- orders and messages between an engine and the program: what is written is read back, and
// what another version or nobody wrote is refused.
#include "runtime/tuning/tuning_order.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

namespace leanattn {
namespace {

TuningOrder some_order() {
  TuningOrder order;
  order.problem.q_heads = 24, order.problem.kv_heads = 4;
  order.problem.features.page_size = 16;
  order.problem.features.score = "score * 2";
  order.shapes = {{.batch = 3, .longest_context = 1 << 20}, {.batch = 8, .longest_context = 512, .total_context = 700}};
  order.budget = std::chrono::milliseconds(12'345);
  order.memory_bytes = std::int64_t{1} << 40;
  order.uuid = "GPU-00112233";
  order.ordinal = 5;
  order.sm_count = 78;
  order.cache_directory = "/somewhere/with \"quotes\"\nand lines";
  order.parent = 4711;
  return order;
}

const std::vector<TuningMessage> kMessages = {
    TuningProgress{.shape = 2, .phase = "race", .done = 3, .total = 16, .best_us = 12.5, .elapsed_s = 1.25},
    TuningResult{.shape = 1,
                 .median_us = 11.5,
                 .read_limit_us = 9,
                 .default_us = 20,
                 .candidates = 40,
                 .rejected = 3,
                 .incorrect = 1,
                 .finished = true},
    TuningWarning{"a \"warning\"\nof two lines"}, TuningEnd{}};

TEST(TuningOrder, IsReadBackAsItWasWritten) {
  const auto read = tuning_order_from_json(to_json(some_order()));
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(*read, some_order());
}

TEST(TuningOrder, OfAnotherVersionIsRefusedBeforeAnythingElseIsRead) {
  auto json = nlohmann::json::parse(to_json(some_order()));
  json["library"] = "0.0.9 (abc)";
  json["shapes"] = "in another form";
  const auto read = tuning_order_from_json(json.dump());
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, ErrorCode::unsupported);
  EXPECT_NE(read.error().message.find("0.0.9 (abc)"), std::string::npos) << read.error().message;
  EXPECT_NE(read.error().hint.find("LEANATTN_PROGRAM"), std::string::npos);
}

TEST(TuningOrder, WithoutAKeyOrWithAWrongValueIsRefused) {
  const auto whole = nlohmann::json::parse(to_json(some_order()));
  for (const auto& [key, value] : whole.items()) {
    auto json = whole;
    json.erase(key);
    EXPECT_FALSE(tuning_order_from_json(json.dump())) << key << " is missing";
    for (const nlohmann::json& wrong : {nlohmann::json(-1), nlohmann::json(nullptr), nlohmann::json(1e300)}) {
      json[key] = wrong;
      EXPECT_FALSE(tuning_order_from_json(json.dump())) << key << " is " << wrong;
    }
  }
  for (const char* text : {"", "{}", "[]", "junk", "{\"library\":1}"}) EXPECT_FALSE(tuning_order_from_json(text));
}

TEST(TuningMessages, AreReadBackAsTheyWereWrittenAndTakeOneLine) {
  for (const TuningMessage& message : kMessages) {
    const std::string line = to_json(message);
    EXPECT_EQ(line.find('\n'), std::string::npos) << line;
    const auto read = tuning_message_from_json(line);
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(read->index(), message.index());
    EXPECT_EQ(to_json(*read), line);
  }
  const auto read = tuning_message_from_json(to_json(TuningMessage(Error{ErrorCode::no_device, "none", "buy", "log"})));
  ASSERT_TRUE(read);
  const Error error = std::get<Error>(*read);
  EXPECT_EQ(error.code, ErrorCode::no_device);
  EXPECT_EQ(error.message + error.hint + error.log, "nonebuylog");
}

TEST(TuningMessages, ThatAreDamagedAreRefusedOrMeanSomethingValid) {
  const std::uint64_t seed = std::random_device{}();
  RecordProperty("seed", std::to_string(seed));
  std::mt19937_64 random(seed);
  int refused = 0;
  for (int i = 0; i < 2000; ++i) {
    std::string line = to_json(kMessages[random() % kMessages.size()]);
    line[random() % line.size()] = static_cast<char>(random());
    const auto read = tuning_message_from_json(line);
    refused += !read;
    if (read) {
      EXPECT_TRUE(tuning_message_from_json(to_json(*read))) << "seed " << seed << ": " << line;
    }
  }
  EXPECT_GT(refused, 200) << "seed " << seed;
  for (const char* line : {R"({"is":"progress"})", R"({"is":"result","shape":-1})", R"({"is":"error","code":99})",
                           R"({"is":"dance"})", "3"})
    EXPECT_FALSE(tuning_message_from_json(line)) << line;
}

}  // namespace
}  // namespace leanattn
