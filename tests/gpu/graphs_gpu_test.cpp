// graphs_gpu_test.cpp -- several layers are captured into a CUDA graph once, and replays stay right while lengths and
// page tables change. docs/graphs.md promises this.
#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "leanattn/leanattn.hpp"
#include "tests/gpu/gpu_fixture.hpp"
#include "tuner/oracle/random_data.hpp"

namespace leanattn {
namespace {

using Bits = std::vector<std::uint16_t>;

std::uint16_t to_bf16(float x) { return bits_of(DType::bf16, x); }
float to_float(std::uint16_t x) { return static_cast<float>(value_of(DType::bf16, x)); }

constexpr int kLayers = 4, kBatch = 3, kQHeads = 8, kKvHeads = 2, kHeadDim = 64, kPageSize = 16, kMaxPages = 40;
constexpr int kPoolPages = kBatch * kMaxPages + 5;
constexpr int kNobodysPage = 1 << 30;  // the entry of a page that no kernel may read
constexpr std::size_t kQuery = std::size_t{kBatch} * kQHeads * kHeadDim;
constexpr std::size_t kPool = std::size_t{kPoolPages} * kKvHeads * kPageSize * kHeadDim;

/// What changes between two replays.
struct Requests {
  std::vector<int> lengths, page_table;  // [kBatch], [kBatch, kMaxPages]
};

/// These lengths, with pages that are drawn anew from the whole pool.
Requests draw(const std::vector<int>& lengths, std::mt19937& random) {
  std::vector<int> pages(kPoolPages);
  std::iota(pages.begin(), pages.end(), 0);
  std::shuffle(pages.begin(), pages.end(), random);
  Requests requests{lengths, std::vector<int>(std::size_t{kBatch} * kMaxPages, kNobodysPage)};
  std::size_t next = 0;
  for (int request = 0; request < kBatch; ++request) {
    const int used = (lengths[static_cast<std::size_t>(request)] + kPageSize - 1) / kPageSize;
    for (int page = 0; page < used; ++page)
      requests.page_table[static_cast<std::size_t>(request * kMaxPages + page)] = pages[next++];
  }
  return requests;
}

/// One layer's O in double, from the bits of its q.
std::vector<double> oracle(const Bits& q, const Bits& k, const Bits& v, const Requests& requests) {
  std::vector<double> o(kQuery, 0.0);
  for (int request = 0; request < kBatch; ++request) {
    const int length = requests.lengths[static_cast<std::size_t>(request)];
    for (int head = 0; head < kQHeads; ++head) {
      const std::size_t row = (static_cast<std::size_t>(request) * kQHeads + static_cast<std::size_t>(head)) * kHeadDim;
      const auto at = [&](int token) {
        const int page = requests.page_table[static_cast<std::size_t>(request * kMaxPages + token / kPageSize)];
        const int kv_head = head / (kQHeads / kKvHeads);
        return static_cast<std::size_t>((page * kKvHeads + kv_head) * kPageSize + token % kPageSize) * kHeadDim;
      };
      std::vector<double> scores(static_cast<std::size_t>(length));
      for (int token = 0; token < length; ++token) {
        double dot = 0;
        for (std::size_t d = 0; d < kHeadDim; ++d) dot += double{to_float(q[row + d])} * to_float(k[at(token) + d]);
        scores[static_cast<std::size_t>(token)] = dot / std::sqrt(double{kHeadDim});
      }
      if (length == 0) continue;
      const double most = *std::max_element(scores.begin(), scores.end());
      double sum = 0;
      for (int token = 0; token < length; ++token) {
        const double weight = std::exp(scores[static_cast<std::size_t>(token)] - most);
        sum += weight;
        for (std::size_t d = 0; d < kHeadDim; ++d) o[row + d] += weight * to_float(v[at(token) + d]);
      }
      for (std::size_t d = 0; d < kHeadDim; ++d) o[row + d] /= sum;
    }
  }
  return o;
}

/// A model of kLayers layers with caches of their own. Each layer's query is the O of the layer before it.
struct Model {
  std::vector<Bits> k, v;  // [layer][pool]
  std::vector<DeviceBuffer> k_on_device, v_on_device;
  std::vector<DeviceBuffer> activations;  // [kLayers + 1]: the first q, then every layer's O
  DeviceBuffer lengths, page_table, workspace;
};

class GraphsOnGpu : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    auto made = Engine::create({.device = 0, .cache_dir = {}, .disk_cache = false});
    ASSERT_TRUE(made) << made.error().message;
    engine = std::make_unique<Engine>(std::move(*made));
    problem.q_heads = kQHeads, problem.kv_heads = kKvHeads, problem.head_dim = kHeadDim;
    problem.page_size = kPageSize;
  }

  DeviceBuffer upload(const void* data, std::size_t bytes) {
    auto buffer = DeviceBuffer::allocate(static_cast<std::int64_t>(bytes));
    EXPECT_TRUE(buffer) << buffer.error().message;
    EXPECT_TRUE(copy_to_device(buffer->data(), data, static_cast<std::int64_t>(bytes), runner->stream_object()));
    return std::move(*buffer);
  }
  Bits random_bits(std::size_t count) {
    std::normal_distribution<float> normal;
    Bits bits(count);
    for (auto& x : bits) x = to_bf16(normal(random));
    return bits;
  }
  Plan plan() {
    const auto made = engine->plan(problem, {kBatch, 0, kMaxPages * kPageSize}, stream);
    EXPECT_TRUE(made) << made.error().message;
    return *made;
  }
  Model make_model(const Plan& the_plan) {
    Model model;
    const Bits q = random_bits(kQuery);
    for (int layer = 0; layer < kLayers; ++layer) {
      model.k.push_back(random_bits(kPool));
      model.v.push_back(random_bits(kPool));
      model.k_on_device.push_back(upload(model.k.back().data(), kPool * 2));
      model.v_on_device.push_back(upload(model.v.back().data(), kPool * 2));
    }
    for (int i = 0; i <= kLayers; ++i) model.activations.push_back(upload(q.data(), kQuery * 2));
    const Requests nobody = draw(std::vector<int>(kBatch, 0), random);
    model.lengths = upload(nobody.lengths.data(), nobody.lengths.size() * 4);
    model.page_table = upload(nobody.page_table.data(), nobody.page_table.size() * 4);
    auto workspace = DeviceBuffer::allocate(the_plan.workspace_bytes());
    EXPECT_TRUE(workspace);
    EXPECT_TRUE(the_plan.init_workspace(workspace->data(), workspace->bytes(), stream));
    model.workspace = std::move(*workspace);
    return model;
  }
  /// All layers, in order, with the one workspace.
  Result<void> enqueue(const Plan& the_plan, const Model& model, CUstream_st* on) {
    for (std::size_t layer = 0; layer < kLayers; ++layer) {
      DecodeArgs args;
      args.q = model.activations[layer].data();
      args.o = model.activations[layer + 1].data();
      args.k = model.k_on_device[layer].data();
      args.v = model.v_on_device[layer].data();
      args.context_lengths = model.lengths.as<std::int32_t>();
      args.page_table = model.page_table.as<std::int32_t>();
      args.max_pages = kMaxPages;
      args.pool_pages = kPoolPages;
      args.batch = kBatch;
      if (auto launched = the_plan.launch(args, model.workspace.data(), on); !launched) return launched;
    }
    return {};
  }
  void set(const Model& model, const Requests& requests) {
    ASSERT_TRUE(copy_to_device(model.lengths.data(), requests.lengths.data(), kBatch * 4, runner->stream_object()));
    ASSERT_TRUE(copy_to_device(model.page_table.data(), requests.page_table.data(),
                               static_cast<std::int64_t>(requests.page_table.size() * 4), runner->stream_object()));
    const std::vector<std::uint16_t> poison(kQuery,
                                            0x7fff);  // This is NaN, so that an O that is not written is found out.
    for (std::size_t layer = 1; layer <= kLayers; ++layer) {
      ASSERT_TRUE(copy_to_device(model.activations[layer].data(), poison.data(), kQuery * 2, runner->stream_object()));
    }
  }
  void expect_right(const Model& model, const Requests& requests, const char* what) {
    for (std::size_t layer = 0; layer < kLayers; ++layer) {
      Bits q(kQuery), o(kQuery);
      ASSERT_TRUE(copy_to_host(q.data(), model.activations[layer].data(), kQuery * 2, runner->stream_object()));
      ASSERT_TRUE(copy_to_host(o.data(), model.activations[layer + 1].data(), kQuery * 2, runner->stream_object()));
      const std::vector<double> expected = oracle(q, model.k[layer], model.v[layer], requests);
      for (std::size_t i = 0; i < kQuery; ++i) {
        // Weights and O are rounded to 8 bits, and values are about 1.
        ASSERT_NEAR(to_float(o[i]), expected[i], 0.01 + 0.01 * std::abs(expected[i]))
            << what << ", layer " << layer << ", element " << i;
      }
    }
  }

  static std::vector<std::vector<int>> lengths_of_replays() {
    return {{1, 17, 640}, {0, 0, 0}, {640, 640, 640}, {16, 0, 33}, {639, 1, 0}};
  }

  Problem problem;
  std::unique_ptr<Engine> engine;
  std::mt19937 random{20261122};
};

TEST_F(GraphsOnGpu, AStepOfSeveralLayersStaysRightWhileLengthsAndPageTablesChange) {
  const Plan the_plan = plan();
  const Model model = make_model(the_plan);
  const auto graph = Graph::capture(runner->stream_object(),
                                    [&](CUstream_st* capturing) { return enqueue(the_plan, model, capturing); });
  ASSERT_TRUE(graph) << graph.error().message;
  for (const auto& lengths : lengths_of_replays()) {
    const Requests requests = draw(lengths, random);
    set(model, requests);
    ASSERT_TRUE(graph->launch(stream));
    expect_right(model, requests, "replay");
    set(model, requests);
    ASSERT_TRUE(enqueue(the_plan, model, stream)) << "an ordinary step in between, with the graph's workspace";
    expect_right(model, requests, "eager");
  }
}

TEST_F(GraphsOnGpu, GraphsWithWorkspacesOfTheirOwnRunBesideEachOther) {
  const Plan the_plan = plan();
  const Model first = make_model(the_plan), second = make_model(the_plan);
  const auto other_stream = Stream::create();
  ASSERT_TRUE(other_stream);
  const auto capture = [&](const Model& model) {
    return Graph::capture(runner->stream_object(),
                          [&](CUstream_st* capturing) { return enqueue(the_plan, model, capturing); });
  };
  const auto first_graph = capture(first), second_graph = capture(second);
  ASSERT_TRUE(first_graph && second_graph);
  for (const auto& lengths : lengths_of_replays()) {
    const Requests requests = draw(lengths, random), others = draw({lengths[2], lengths[0], lengths[1]}, random);
    set(first, requests);
    set(second, others);
    for (int i = 0; i < 20; ++i) {
      ASSERT_TRUE(first_graph->launch(stream));
      ASSERT_TRUE(second_graph->launch(other_stream->get()));
    }
    ASSERT_TRUE(other_stream->synchronize());
    expect_right(first, requests, "first");
    expect_right(second, others, "second");
  }
}

}  // namespace
}  // namespace leanattn
