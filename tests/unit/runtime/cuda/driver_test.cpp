// driver_test.cpp -- opening libcuda at run time, and the meaning of CUresult. Runs with and without a GPU.
#include "runtime/cuda/driver.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <thread>
#include <vector>

#include "runtime/cuda/dynamic_library.hpp"
#include "runtime/cuda/gpu.hpp"
#include "runtime/cuda/nvml.hpp"

namespace leanattn {
namespace {

TEST(Driver, EitherFillsTheWholeTableOrSaysWhatIsMissingAndAWayOut) {
  const auto api = driver();
  if (api) {
    EXPECT_GE((*api)->version, 12000);
#define LEANATTN_EXPECT(name) EXPECT_NE((*api)->name, nullptr) << #name;
    LEANATTN_DRIVER_FUNCTIONS(LEANATTN_EXPECT)
#undef LEANATTN_EXPECT
  } else {
    const auto code = api.error().code;
    EXPECT_TRUE(code == ErrorCode::no_driver || code == ErrorCode::no_device || code == ErrorCode::driver_too_old)
        << error_code_name(code);
    EXPECT_FALSE(api.error().message.empty());
    EXPECT_FALSE(api.error().hint.empty());
  }
}

TEST(Driver, GivesEveryThreadTheSameAnswer) {
  const auto mine = driver();
  std::vector<Result<const DriverApi*>> answers(8, tl::unexpected(Error{}));
  {
    std::vector<std::jthread> threads;
    for (auto& answer : answers) threads.emplace_back([&answer] { answer = driver(); });
  }
  for (const auto& answer : answers) {
    ASSERT_EQ(answer.has_value(), mine.has_value());
    if (mine) {
      EXPECT_EQ(*answer, *mine);
    } else {
      EXPECT_EQ(answer.error().message, mine.error().message);
    }
  }
}

TEST(Driver, WithoutADriverEveryGpuObjectRefusesWithTheDriversError) {
  const auto api = driver();
  if (api) GTEST_SKIP() << "this machine has a driver";
  EXPECT_EQ(Context::retain(0).error().code, api.error().code);
  EXPECT_EQ(DeviceBuffer::allocate(16).error().code, api.error().code);
  EXPECT_EQ(PinnedBuffer::allocate(16).error().code, api.error().code);
  EXPECT_EQ(Stream::create().error().code, api.error().code);
  EXPECT_EQ(Event::create().error().code, api.error().code);
  EXPECT_EQ(synchronize_context().error().code, api.error().code);
  EXPECT_EQ(launch(nullptr, LaunchDims{}, nullptr, nullptr).error().code, api.error().code);
}

TEST(Driver, TheToolkitsStubHasEveryEntryPointAndIsToldFromADriver) {
  namespace fs = std::filesystem;
  const char* home = std::getenv("CUDA_HOME");
  const auto stub = fs::path(home != nullptr ? home : "/usr/local/cuda") / "lib64/stubs/libcuda.so";
  if (!fs::exists(stub)) GTEST_SKIP() << "no CUDA toolkit with a stub libcuda";
  const auto directory = fs::path(::testing::TempDir()) / "leanattn_stub_driver";
  fs::create_directories(directory);
  if (!fs::exists(directory / "libcuda.so.1")) fs::create_symlink(stub, directory / "libcuda.so.1");
  // The first library that driver() finds stays for the life of a process. So this test starts a process of its own,
  // with another search path.
  const char* before = std::getenv("LD_LIBRARY_PATH");
  const std::string search_path = before != nullptr ? before : "";
  setenv("LD_LIBRARY_PATH", directory.c_str(), 1);
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const auto api = driver();
        const bool started_it =
            !api && api.error().code == ErrorCode::no_driver && api.error().message.find("cuInit") != std::string::npos;
        std::exit(started_it && api.error().hint.find("stub") != std::string::npos ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
  search_path.empty() ? unsetenv("LD_LIBRARY_PATH") : setenv("LD_LIBRARY_PATH", search_path.c_str(), 1);
  fs::remove_all(directory);
}

TEST(DeviceBuffer, OfZeroBytesIsEmptyAndOfNegativeBytesIsRefused) {
  const auto empty = DeviceBuffer::allocate(0);
  ASSERT_TRUE(empty);
  EXPECT_EQ(empty->data(), nullptr);
  const auto negative = DeviceBuffer::allocate(-1);
  ASSERT_FALSE(negative);
  EXPECT_EQ(negative.error().code, ErrorCode::invalid_argument);
  EXPECT_NE(negative.error().message.find("-1"), std::string::npos);
}

TEST(Check, SuccessIsOkAndFailureNamesTheCallAndTheStatus) {
  EXPECT_TRUE(check(CUDA_SUCCESS, "cuAnything"));
  const auto failed = check(CUDA_ERROR_INVALID_VALUE, "cuAnything", ErrorCode::launch_failed);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, ErrorCode::launch_failed);
  EXPECT_NE(failed.error().message.find("cuAnything"), std::string::npos);
  EXPECT_NE(failed.error().message.find("(1)"), std::string::npos);
}

TEST(Check, StickyErrorsAreALostContextWhateverCodeTheCallerWouldGive) {
  for (const auto status :
       {CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_LAUNCH_TIMEOUT, CUDA_ERROR_LAUNCH_FAILED, CUDA_ERROR_ASSERT,
        CUDA_ERROR_MISALIGNED_ADDRESS, CUDA_ERROR_ILLEGAL_INSTRUCTION, CUDA_ERROR_CONTEXT_IS_DESTROYED}) {
    EXPECT_TRUE(is_sticky(status)) << status;
    EXPECT_EQ(check(status, "cuAnything", ErrorCode::load_failed).error().code, ErrorCode::context_lost) << status;
  }
}

TEST(Check, RecoverableErrorsDoNotCondemnTheContext) {
  for (const auto status :
       {CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
        CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CUDA_ERROR_NOT_READY}) {
    EXPECT_FALSE(is_sticky(status)) << status;
    EXPECT_EQ(check(status, "cuAnything", ErrorCode::launch_failed).error().code, ErrorCode::launch_failed) << status;
  }
}

TEST(Check, LackOfMemoryIsToldApart) {
  EXPECT_EQ(check(CUDA_ERROR_OUT_OF_MEMORY, "cuMemAlloc", ErrorCode::internal).error().code, ErrorCode::out_of_memory);
}

TEST(DynamicLibrary, OpensTheFirstCandidateThatLoadsAndReportsTheOthers) {
  const std::vector<std::string> candidates{"libleanattn-no-such-library.so", "libc.so.6"};
  std::string failures;
  const auto library = DynamicLibrary::open_first(candidates, &failures);
  ASSERT_TRUE(library);
  EXPECT_EQ(library.name(), "libc.so.6");
  EXPECT_NE(failures.find("libleanattn-no-such-library.so"), std::string::npos);
  EXPECT_NE(library.symbol("getenv"), nullptr);
  EXPECT_EQ(library.symbol("leanattn_no_such_symbol"), nullptr);
}

TEST(DynamicLibrary, WithoutAnyCandidateItIsFalseAndHasNoSymbols) {
  const std::vector<std::string> candidates{"/nonexistent/libnothing.so"};
  const auto library = DynamicLibrary::open_first(candidates, nullptr);
  EXPECT_FALSE(library);
  EXPECT_EQ(library.symbol("getenv"), nullptr);
}

TEST(DynamicLibrary, FindsTheFileAndTheBuildIdOfALoadedSymbol) {
  const std::vector<std::string> candidates{"libc.so.6"};
  const auto library = DynamicLibrary::open_first(candidates, nullptr);
  ASSERT_TRUE(library);
  const void* symbol = library.symbol("getenv");
  EXPECT_NE(DynamicLibrary::path_of(symbol).find("libc"), std::string::npos);
  const auto build_id = DynamicLibrary::build_id_of(symbol);
  EXPECT_EQ(build_id.find_first_not_of("0123456789abcdef"), std::string::npos) << build_id;
  EXPECT_EQ(build_id, DynamicLibrary::build_id_of(library.symbol("malloc")));
}

TEST(Nvml, WithoutItEveryAnswerIsEmptyAndNothingFails) {
  const auto state = gpu_state("GPU-00000000-0000-0000-0000-000000000000");
  EXPECT_FALSE(state.known);
  EXPECT_EQ(state.power_limit_mw, 0);
  EXPECT_EQ(state.throttle_reasons, 0u);
}

TEST(Nvml, CountsOnlyOtherProcesses) {
  const auto count = [](std::vector<unsigned> ids) { return count_others(ids, 100, 99); };
  EXPECT_EQ(count({}), 0);
  EXPECT_EQ(count({100}), 0);
  EXPECT_EQ(count({100, 99}), 0) << "the parent drives this process";
  EXPECT_EQ(count({100, 7, 8}), 2);
  EXPECT_EQ(count({41}), 0) << "one of them is this process, which NVML numbers in another way";
  EXPECT_EQ(count({41, 42, 43}), 2);
}

TEST(Nvml, SaysWhoElseIsThereOrNothing) {
  EXPECT_EQ(neighbours_text({}), "");
  EXPECT_EQ(neighbours_text({.processes = 1, .busy_percent = 0}), "shared with 1 other process");
  EXPECT_EQ(neighbours_text({.processes = 3, .busy_percent = 35}), "shared with 3 other processes, 35 % busy");
  EXPECT_EQ(neighbours_text({.processes = 0, .busy_percent = 35}), "") << "that was this process";
  EXPECT_EQ(gpu_neighbours("GPU-00000000-0000-0000-0000-000000000000").processes, 0) << "no such GPU";
}

TEST(Nvml, ThrottleTextNamesWhatSlowsAndIgnoresWhatDoesNot) {
  EXPECT_EQ(throttle_text(0), "");
  EXPECT_EQ(throttle_text(0x1 | 0x2 | 0x100), "") << "idle and clock settings are not throttling";
  EXPECT_EQ(throttle_text(0x4), "power cap");
  EXPECT_EQ(throttle_text(0x1 | 0x4 | 0x40), "power cap, hardware thermal");
}

}  // namespace
}  // namespace leanattn
