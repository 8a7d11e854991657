// protocol_test.cpp -- frames and messages between a session and its workers are read as they were written, and no
// bytes do harm.
#include "tuner/worker/protocol.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <random>

#include "tests/unit/tuner/simulated_gpu.hpp"
#include "tuner/model/search_space.hpp"

namespace leanattn {
namespace {

std::vector<Config> some_configs() {
  std::vector<Config> configs;
  int grid = 1;
  for (const KernelSpec& spec : all_specs(simulated_device(), {})) configs.push_back({.spec = spec, .grid = ++grid});
  return configs;
}

std::vector<WorkerRequest> some_requests() {
  DecodeProblem problem;
  problem.features.page_size = 16;
  DecodeProblem group;
  group.features.context_parallel = 2, group.group_link = GroupLink::pcie;
  const std::vector<Config> configs = some_configs();
  CompiledKernel kernel;
  kernel.cubin = {0, 1, 2, 255, 'L', 'A', 'W', '1'};
  kernel.resources = {.registers = 128, .static_shared_bytes = 48, .wgmma_serialized = true};
  kernel.compile_ms = 123.25, kernel.from_cache = true;
  return {
      Hello{.cache_directory = "/a b/\xC3\xA4"},
      CompileKernel{configs[3].spec},
      OpenDevice{.ordinal = 7, .uuid = "GPU-1", .problem = problem, .policy = L2Policy::warm},
      OpenDevice{.ordinal = 1, .uuid = "GPU-1", .problem = group, .rank_devices = {1, 0}},
      OpenDevice{.uuid = "GPU-1", .problem = problem, .requests = {.context_lengths = {9, 0}, .query_tokens = {9, 1}}},
      AdoptKernel{configs[5].spec, kernel},
      BeginShape{{.batch = 3, .longest_context = 65536, .total_context = 70000}},
      CheckConfig{configs[1]},
      TimeConfigs{configs}};
}

std::vector<WorkerReply> some_replies() {
  CompiledKernel kernel;
  kernel.cubin = std::vector<std::uint8_t>(100'000, 7);
  kernel.resources.registers = 96;
  return {Error{ErrorCode::context_lost, "gone \"\n\x01", "look", "log"},
          Done{},
          kernel,
          ReadTime{12.345678901234567},
          CheckOutcome{Verdict::incorrect, "O[3] is NaN"},
          RoundTimes{.us = {1.5, 2.25, 1e-3},
                     .sentinel_us = 3,
                     .sentinel_drift = 0.01,
                     .throttle = "thermal",
                     .stays_in_l2 = true}};
}

TEST(WorkerProtocol, FramesSurviveAnyPortionsOfTheStream) {
  rc::check("frames", [](const std::vector<std::string>& texts, const std::vector<std::uint8_t>& blob) {
    std::string stream;
    for (const std::string& text : texts) stream += encode({text, blob});
    FrameReader reader;
    std::vector<Frame> read;
    while (!stream.empty()) {
      const std::size_t portion = *rc::gen::inRange<std::size_t>(1, stream.size() + 1);
      reader.append({stream.data(), portion});
      stream.erase(0, portion);
      for (;;) {
        const auto next = reader.next();
        RC_ASSERT(next.has_value());
        if (!*next) break;
        read.push_back(**next);
      }
    }
    RC_ASSERT(!reader.torn());
    RC_ASSERT(read.size() == texts.size());
    for (std::size_t i = 0; i < read.size(); ++i) RC_ASSERT((read[i] == Frame{texts[i], blob}));
  });
}

TEST(WorkerProtocol, GarbageIsRefusedAtItsFirstByteAndOversizedFramesAtTheirHeader) {
  FrameReader reader;
  reader.append({"L", 1});
  EXPECT_TRUE(reader.next());
  reader.append({"O", 1});
  EXPECT_FALSE(reader.next());
  std::string header = encode({"{}"}).substr(0, 12);
  for (const std::size_t at : {7u, 11u}) {  // the highest bytes of the two lengths
    std::string bad = header;
    bad[at] = '\x7f';
    FrameReader other;
    other.append(bad);
    EXPECT_FALSE(other.next()) << at;
  }
}

TEST(WorkerProtocol, ATornFrameIsWaitedForAndKnownAsTorn) {
  const std::string bytes = encode(to_frame(some_replies()[2]));
  for (std::size_t length : {std::size_t{1}, std::size_t{11}, std::size_t{12}, bytes.size() - 1}) {
    FrameReader reader;
    reader.append({bytes.data(), length});
    const auto next = reader.next();
    ASSERT_TRUE(next);
    EXPECT_FALSE(next->has_value());
    EXPECT_TRUE(reader.torn());
  }
}

TEST(WorkerProtocol, RequestsAreReadAsTheyWereWritten) {
  for (const WorkerRequest& request : some_requests()) {
    const Frame frame = to_frame(request);
    const auto read = request_from(frame);
    ASSERT_TRUE(read) << read.error().message;
    ASSERT_EQ(read->index(), request.index());
    EXPECT_EQ(to_frame(*read), frame) << frame.text;
    if (const auto* time = std::get_if<TimeConfigs>(&request)) {
      EXPECT_EQ(std::get<TimeConfigs>(*read), *time);
    }
    if (const auto* open = std::get_if<OpenDevice>(&request)) {
      EXPECT_EQ(std::get<OpenDevice>(*read), *open);
    }
    if (const auto* begin = std::get_if<BeginShape>(&request)) {
      EXPECT_EQ(std::get<BeginShape>(*read), *begin);
    }
    if (const auto* adopt = std::get_if<AdoptKernel>(&request)) {
      const auto& again = std::get<AdoptKernel>(*read);
      EXPECT_EQ(again.spec, adopt->spec);
      EXPECT_EQ(again.kernel.cubin, adopt->kernel.cubin);
      EXPECT_EQ(again.kernel.resources, adopt->kernel.resources);
    }
    EXPECT_FALSE(describe(request).empty());
  }
}

TEST(WorkerProtocol, RepliesAreReadAsTheyWereWritten) {
  for (const WorkerReply& reply : some_replies()) {
    const Frame frame = to_frame(reply);
    const auto read = reply_from(frame);
    ASSERT_TRUE(read) << read.error().message;
    ASSERT_EQ(read->index(), reply.index());
    EXPECT_EQ(to_frame(*read), frame) << frame.text;
    if (const auto* time = std::get_if<ReadTime>(&reply)) {
      EXPECT_EQ(std::get<ReadTime>(*read).us, time->us);
    }
    if (const auto* times = std::get_if<RoundTimes>(&reply)) {
      EXPECT_EQ(std::get<RoundTimes>(*read).us, times->us);
      EXPECT_EQ(std::get<RoundTimes>(*read).stays_in_l2, times->stays_in_l2);
    }
  }
}

TEST(WorkerProtocol, ImpossibleValuesAreRefused) {
  for (const char* text : {
           "",
           "{",
           "[]",
           "null",
           "7",
           R"({"is": 3})",
           R"({"is": "done "})",
           R"({"is": "read_time", "us": -1})",
           R"({"is": "read_time", "us": 1e999})",
           R"({"is": "read_time", "us": null})",
           R"({"is": "read_time"})",
           R"({"is": "checked", "verdict": "fine", "reason": ""})",
           R"({"is": "error", "code": 0, "message": "", "hint": "", "log": ""})",
           R"({"is": "error", "code": 4000000000, "message": "", "hint": "", "log": ""})",
           R"({"is": "timed", "us": [1, "2"], "sentinel_us": 1, "sentinel_drift": 0, "throttle": ""})",
           R"({"is": "timed", "us": 1, "sentinel_us": 1, "sentinel_drift": 0, "throttle": ""})",
       }) {
    EXPECT_FALSE(reply_from({text})) << text;
  }
  for (const char* text :
       {R"({"ask": "check", "config": "{}"})", R"({"ask": "check", "config": 1})", R"({"ask": "time"})",
        R"({"ask": "begin", "shape": "{\"batch\": -1}"})", R"({"ask": "hello", "version": 1e300})",
        R"({"ask": "open", "ordinal": 0, "uuid": "", "problem": "{}", "policy": "cold"})"}) {
    EXPECT_FALSE(request_from({text})) << text;
  }
}

TEST(WorkerProtocol, NoDamagedMessageDoesHarm) {
  const std::uint64_t seed = std::random_device{}();
  RecordProperty("seed", std::to_string(seed));
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  std::vector<std::string> streams;
  for (const WorkerRequest& request : some_requests()) streams.push_back(encode(to_frame(request)));
  for (const WorkerReply& reply : some_replies()) streams.push_back(encode(to_frame(reply)));
  int refused = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string bytes = streams[random() % streams.size()];
    if (bytes.size() > 4096 && i % 20 != 0) continue;  // the long ones are tried now and then
    for (std::uint64_t flips = 1 + random() % 4; flips > 0; --flips) {
      const std::size_t at = random() % std::min<std::size_t>(bytes.size(), 600);
      if (random() % 4 == 0) {
        bytes.erase(at, random() % 9);
      } else {
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8));
      }
    }
    FrameReader reader;
    reader.append(bytes);
    const auto frame = reader.next();
    if (!frame || !*frame) {
      ++refused;
      continue;
    }
    // Whatever can be read is valid: it can be written again and means the same.
    if (const auto request = request_from(**frame)) {
      const auto again = request_from(to_frame(*request));
      ASSERT_TRUE(again) << again.error().message;
      EXPECT_EQ(to_frame(*again), to_frame(*request));
    } else if (const auto reply = reply_from(**frame)) {
      ASSERT_TRUE(reply_from(to_frame(*reply)));
    } else {
      ++refused;
    }
  }
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace leanattn
