// paper_gpu_test.cpp -- in the paper's sweeps every mode keeps to its grids, and a budget or an interrupt ends them.
#include "tuner/evaluate/paper_run.hpp"

#include "runtime/lookup/grids.hpp"
#include "tests/gpu/gpu_fixture.hpp"

namespace leanattn {
namespace {

using PaperGpu = GpuTest;

TEST_F(PaperGpu, EveryModeKeepsToItsGridAndABudgetLeavesTheRestListed) {
  const PaperOptions options{.device = 0, .budget = std::chrono::milliseconds(500), .rounds = 5};
  const auto run = run_paper(options, std::nullopt, nullptr, {}, nullptr);
  ASSERT_TRUE(run) << run.error().message;
  ASSERT_FALSE(run->error) << run->error->message;
  const PaperReport* const report = &run->report;
  const std::size_t all = paper_points(paper_lines(), device_facts(0)->memory_bytes).size();
  EXPECT_EQ(report->measurements.size() + report->missing.size(), all);
  ASSERT_FALSE(report->measurements.empty());
  EXPECT_FALSE(report->missing.empty());
  for (const PaperMeasurement& measured : report->measurements) {
    const auto outputs = [&](const BenchLine& line) {
      return output_tiles(problem_of(measured.point), shape_of(measured.point).batch, line.config.spec);
    };
    EXPECT_EQ(measured.flash_attention2.config.grid, outputs(measured.flash_attention2));
    EXPECT_EQ(measured.flash_decoding.config.grid % outputs(measured.flash_decoding), 0);
    for (const BenchLine* line : {&measured.lean, &measured.flash_attention2, &measured.flash_decoding, &measured.read})
      EXPECT_EQ(line->samples_us.size(), 5u) << line->mode;
  }
  const auto read = paper_from_json(to_json(*report));
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->device, device_facts(0)->name);
}

TEST_F(PaperGpu, AnInterruptBeforeTheFirstPointMeasuresNothing) {
  const std::atomic<bool> cancel = true;
  const auto run = run_paper({}, std::nullopt, nullptr, {}, &cancel);
  ASSERT_TRUE(run) << run.error().message;
  EXPECT_TRUE(run->report.measurements.empty());
  EXPECT_FALSE(run->report.missing.empty());
}

}  // namespace
}  // namespace leanattn
