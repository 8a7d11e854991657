// nvrtc_test.cpp -- where NVRTC is searched, and its version and build.
#include "runtime/cuda/nvrtc.hpp"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "runtime/cuda/compiler.hpp"

namespace leanattn {
namespace {

namespace fs = std::filesystem;

/// Sets environment variables, and restores their values at its end.
class ScopedEnvironment {
 public:
  ScopedEnvironment(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) {
      before_ = before;
      had_ = true;
    }
    value != nullptr ? setenv(name, value, 1) : unsetenv(name);
  }
  ~ScopedEnvironment() { had_ ? setenv(name_, before_.c_str(), 1) : unsetenv(name_); }
  ScopedEnvironment(const ScopedEnvironment&) = delete;
  ScopedEnvironment& operator=(const ScopedEnvironment&) = delete;

 private:
  const char* name_;
  std::string before_;
  bool had_ = false;
};

class NvrtcSearch : public ::testing::Test {
 protected:
  NvrtcSearch() { fs::create_directories(root_); }
  ~NvrtcSearch() override { fs::remove_all(root_); }

  fs::path add_file(const fs::path& relative) const {
    const auto path = root_ / relative;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << "not a library";
    return path;
  }

  const fs::path root_ =
      fs::path(::testing::TempDir()) /
      (std::string("leanattn_nvrtc_") + ::testing::UnitTest::GetInstance()->current_test_info()->name());
  ScopedEnvironment no_file_{"LEANATTN_NVRTC_LIB", nullptr};
  ScopedEnvironment no_directory_{"LEANATTN_NVRTC_DIR", nullptr};
  ScopedEnvironment no_home_{"CUDA_HOME", nullptr};
  ScopedEnvironment no_path_{"CUDA_PATH", nullptr};
};

TEST_F(NvrtcSearch, ANamedFileIsTheOnlyCandidate) {
  const ScopedEnvironment file("LEANATTN_NVRTC_LIB", "/somewhere/libnvrtc.so.12");
  EXPECT_EQ(nvrtc_candidates(), std::vector<std::string>{"/somewhere/libnvrtc.so.12"});
}

TEST_F(NvrtcSearch, PlainSonamesAreTriedNewestFirst) {
  const auto candidates = nvrtc_candidates();
  ASSERT_GE(candidates.size(), 3u);
  EXPECT_EQ(candidates[0], "libnvrtc.so");
  EXPECT_EQ(candidates[1], "libnvrtc.so.13");
  EXPECT_EQ(candidates[2], "libnvrtc.so.12");
}

TEST_F(NvrtcSearch, TheGivenDirectoryComesBeforeTheSystem) {
  const auto file = add_file("libnvrtc.so.13");
  const ScopedEnvironment directory("LEANATTN_NVRTC_DIR", root_.c_str());
  EXPECT_EQ(nvrtc_candidates().front(), (root_ / "" / "libnvrtc.so.13").string());
  EXPECT_TRUE(fs::equivalent(nvrtc_candidates().front(), file));
}

TEST_F(NvrtcSearch, WheelsAreFoundInASitePackagesDirectory) {
  const ScopedEnvironment directory("LEANATTN_NVRTC_DIR", root_.c_str());
  const auto cuda_12 = add_file("nvidia/cuda_nvrtc/lib/libnvrtc.so.12");
  EXPECT_EQ(nvrtc_candidates().front(), cuda_12.string());
  const auto cuda_13 = add_file("nvidia/cu13/lib/libnvrtc.so.13");
  EXPECT_EQ(nvrtc_candidates().front(), cuda_13.string());
}

TEST_F(NvrtcSearch, WheelsBesideOursAreFoundWithoutBeingNamed) {
  const auto file = add_file("nvidia/cu13/lib/libnvrtc.so.13");
  EXPECT_EQ(nvrtc_candidates(root_).front(), file.string());
  EXPECT_EQ(nvrtc_candidates().front(), "libnvrtc.so") << "this program is not part of a wheel";
}

TEST_F(NvrtcSearch, AWheelsModuleAndItsProgramAreInTheSameSitePackages) {
  EXPECT_EQ(site_packages_of("/env/site-packages/leanattn"), "/env/site-packages");
  EXPECT_EQ(site_packages_of("/env/site-packages/leanattn/bin"), "/env/site-packages");
  EXPECT_EQ(site_packages_of("/opt/bin"), "/opt");
}

TEST_F(NvrtcSearch, FurtherDirectoriesComeAfterTheWheelsBesideOursAndBeforeTheSystem) {
  const auto beside = add_file("nvidia/cu13/lib/libnvrtc.so.13");
  const auto second = add_file("second/libnvrtc.so.12"), third = add_file("third/libnvrtc.so.13");
  look_for_nvrtc_in({root_ / "empty", root_ / "second", root_ / "third"});
  const auto candidates = nvrtc_candidates(root_);
  look_for_nvrtc_in({});
  ASSERT_GE(candidates.size(), 4u);
  EXPECT_EQ(std::vector(candidates.begin(), candidates.begin() + 4),
            (std::vector<std::string>{beside.string(), second.string(), third.string(), "libnvrtc.so"}));
  EXPECT_EQ(nvrtc_candidates().front(), "libnvrtc.so") << "a later call replaces what an earlier one named";
}

TEST_F(NvrtcSearch, CudaHomeComesAfterTheLoadersOwnSearch) {
  const auto file = add_file("lib64/libnvrtc.so.12");
  const ScopedEnvironment home("CUDA_HOME", root_.c_str());
  const auto candidates = nvrtc_candidates();
  const auto at = std::find(candidates.begin(), candidates.end(), file.string());
  ASSERT_NE(at, candidates.end());
  EXPECT_EQ(at - candidates.begin(), 3);
}

// The first library that is opened stays for the life of a process, so each of these needs a process of its own.
class NvrtcInAProcessOfItsOwn : public NvrtcSearch {
 protected:
  NvrtcInAProcessOfItsOwn() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(NvrtcInAProcessOfItsOwn, AFileThatIsNoLibraryIsNvrtcMissingWithItsNameAndAHint) {
  const auto file = add_file("libnvrtc.so.13");
  const ScopedEnvironment variable("LEANATTN_NVRTC_LIB", file.c_str());
  EXPECT_EXIT(
      {
        const auto api = nvrtc();
        const bool told = !api && api.error().code == ErrorCode::nvrtc_missing &&
                          api.error().message.find(file.string()) != std::string::npos && !api.error().hint.empty() &&
                          !api.error().log.empty();
        const auto compiled = compile_source("", Arch{9, 0, true}, nullptr);
        std::exit(told && !compiled && compiled.error().code == ErrorCode::nvrtc_missing ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(NvrtcInAProcessOfItsOwn, ALibraryWithoutNvrtcsEntryPointsIsNvrtcMissingAndNamesThem) {
  const ScopedEnvironment variable("LEANATTN_NVRTC_LIB", "libc.so.6");
  EXPECT_EXIT(
      {
        const auto api = nvrtc();
        std::exit(!api && api.error().code == ErrorCode::nvrtc_missing &&
                          api.error().message.find("nvrtcCompileProgram") != std::string::npos
                      ? 0
                      : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(NvrtcInAProcessOfItsOwn, AVersionThatIsTooOldIsNamedWithTheOldestThatIsUsed) {
  const ScopedEnvironment variable("LEANATTN_NVRTC_LIB", OLD_NVRTC);
  EXPECT_EXIT(
      {
        const auto api = nvrtc();
        const bool told = !api && api.error().code == ErrorCode::nvrtc_missing &&
                          api.error().message.find("NVRTC 12.2, and kernels need 12.3") != std::string::npos &&
                          api.error().hint.find("12.3") != std::string::npos;
        std::exit(told ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(NvrtcInAProcessOfItsOwn, AVersionThatIsTooOldIsPassedOverWhereABetterOneIs) {
  fs::copy_file(OLD_NVRTC, root_ / "libnvrtc.so", fs::copy_options::overwrite_existing);  // also in the child
  const ScopedEnvironment directory("LEANATTN_NVRTC_DIR", root_.c_str());
  if (!fs::exists("/usr/local/cuda/lib64/libnvrtc.so")) GTEST_SKIP() << "no NVRTC in a known directory";
  EXPECT_EXIT(
      {
        const auto api = nvrtc();
        std::exit(api && (*api)->path != (root_ / "libnvrtc.so") ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(NvrtcInAProcessOfItsOwn, ALibraryThatCannotCompileIsPassedOverWhereABetterOneIs) {
  fs::copy_file(OLD_NVRTC, root_ / "libnvrtc.so", fs::copy_options::overwrite_existing);  // also in the child
  const ScopedEnvironment directory("LEANATTN_NVRTC_DIR", root_.c_str());
  if (!fs::exists("/usr/local/cuda/lib64/libnvrtc.so")) GTEST_SKIP() << "no NVRTC in a known directory";
  for (const char* fault : {"builtins", "archs"}) {
    const ScopedEnvironment told("NVRTC_STAND_IN", fault);
    EXPECT_EXIT(
        {
          const bool first = nvrtc() && (*nvrtc())->path == root_ / "libnvrtc.so";
          const auto compiled = compile_source("extern \"C\" __global__ void nothing() {}", Arch{9, 0, true}, nullptr);
          const bool other = nvrtc() && (*nvrtc())->path != root_ / "libnvrtc.so";
          std::exit(first && compiled && other ? 0 : 1);
        },
        ::testing::ExitedWithCode(0), "")
        << fault;
  }
}

TEST_F(NvrtcInAProcessOfItsOwn, ALibraryThatCannotCompileIsNamedWhereThereIsNoOther) {
  const ScopedEnvironment variable("LEANATTN_NVRTC_LIB", OLD_NVRTC);
  for (const auto& [fault, code] :
       {std::pair{"builtins", ErrorCode::nvrtc_missing}, {"archs", ErrorCode::unsupported}}) {
    const ScopedEnvironment told("NVRTC_STAND_IN", fault);
    EXPECT_EXIT(
        {
          const auto compiled = compile_source("extern \"C\" __global__ void nothing() {}", Arch{9, 0, true}, nullptr);
          const bool named = !compiled && compiled.error().message.find(OLD_NVRTC) != std::string::npos;
          std::exit(named && compiled.error().code == code ? 0 : 1);
        },
        ::testing::ExitedWithCode(0), "")
        << fault;
  }
}

TEST_F(NvrtcInAProcessOfItsOwn, WheelsInAPrivateDirectoryCompile) {
  const auto candidates = nvrtc_candidates();
  const auto installed =
      std::find_if(candidates.begin(), candidates.end(), [](const std::string& name) { return name.front() == '/'; });
  if (installed == candidates.end()) GTEST_SKIP() << "no NVRTC in a known directory";
  const auto lib = root_ / "nvidia/cu13/lib";
  fs::create_directories(lib);
  for (const auto& entry : fs::directory_iterator(fs::path(*installed).parent_path())) {
    const auto link = lib / entry.path().filename();
    if (link.filename().string().starts_with("libnvrtc") && !fs::exists(fs::symlink_status(link)))
      fs::create_symlink(entry.path(), link);
  }
  const ScopedEnvironment directory("LEANATTN_NVRTC_DIR", root_.c_str());
  ASSERT_TRUE(nvrtc_candidates().front().starts_with(lib.string())) << nvrtc_candidates().front();
  EXPECT_EXIT(
      {
        const auto compiled = compile_source("extern \"C\" __global__ void nothing() {}", Arch{8, 0, false}, nullptr);
        std::exit(compiled && !compiled->cubin.empty() ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(NvrtcInAProcessOfItsOwn, ItsBuiltInFunctionsComeFromBesideIt) {
  EXPECT_EXIT(
      {
        const auto api = nvrtc();
        if (!api) std::exit(0);  // NVRTC is not installed
        const auto name = "libnvrtc-builtins.so." + std::to_string((*api)->major) + "." + std::to_string((*api)->minor);
        const bool expected = fs::exists(fs::path((*api)->path).replace_filename(name));
        std::exit(!expected || dlopen(name.c_str(), RTLD_NOW | RTLD_NOLOAD) != nullptr ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

class Nvrtc : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto api = nvrtc();
    if (!api) GTEST_SKIP() << api.error().message;
    api_ = *api;
  }
  const NvrtcApi* api_ = nullptr;
};

TEST_F(Nvrtc, SaysItsVersionItsFileAndItsBuild) {
  EXPECT_GE(api_->major, 12);
  EXPECT_TRUE(fs::exists(api_->path)) << api_->path;
  EXPECT_FALSE(api_->build.empty()) << "cache keys tell patch releases apart by the build ID";
  EXPECT_TRUE(full_version(*api_).starts_with(*nvrtc_version() + "+"));
  EXPECT_TRUE(full_version(*api_).ends_with(api_->build));
}

TEST_F(Nvrtc, KnowsItsArchesAndRefusesOthersWithItsLimits) {
  ASSERT_FALSE(api_->compute_capabilities.empty());
  EXPECT_TRUE(std::is_sorted(api_->compute_capabilities.begin(), api_->compute_capabilities.end()));
  EXPECT_TRUE(check_arch(*api_, Arch{9, 0, true}));
  const auto newer = check_arch(*api_, Arch{99, 0, false});
  ASSERT_FALSE(newer);
  EXPECT_EQ(newer.error().code, ErrorCode::unsupported);
  EXPECT_NE(newer.error().message.find("sm_990"), std::string::npos) << newer.error().message;
  EXPECT_NE(newer.error().hint.find(std::to_string(api_->compute_capabilities.back())), std::string::npos)
      << newer.error().hint;
  const auto older = check_arch(*api_, Arch{3, 5, false});
  ASSERT_FALSE(older);
  EXPECT_EQ(older.error().code, ErrorCode::unsupported);
}

}  // namespace
}  // namespace leanattn
