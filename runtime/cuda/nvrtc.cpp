// nvrtc.cpp -- finds and opens libnvrtc.
#include "runtime/cuda/nvrtc.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

#include "cache/environment_variable.hpp"
#include "cache/files.hpp"
#include "runtime/cuda/dynamic_library.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

// The newest comes first. The name without a version exists only with the development files of a toolkit.
constexpr const char* kSonames[] = {"libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12"};

/// The 128-bit loads and stores of partial results came with PTX ISA 8.3 (PTX ISA, "ld" and "st", .b128).
constexpr std::pair kOldestNvrtc{12, 3};

/// Adds those sonames that are files in `directory`. Others would only make the error message longer.
void add_directory(std::vector<std::string>& candidates, const std::filesystem::path& directory) {
  for (const char* soname : kSonames) {
    std::error_code error;
    const auto path = directory / soname;
    if (std::filesystem::exists(path, error)) candidates.push_back(path.string());
  }
}

std::string failure_hint() {
  return fmt::format(
      "Install a CUDA toolkit's NVRTC ({}.{} or newer), or NVIDIA's nvidia-cuda-nvrtc wheel (pip install "
      "\"leanattn[nvrtc]\") and point LEANATTN_NVRTC_DIR at its lib directory where that is not beside leanattn, or "
      "name "
      "the file in LEANATTN_NVRTC_LIB.",
      kOldestNvrtc.first, kOldestNvrtc.second);
}

/// The same for NVIDIA's wheels, whose libraries are in nvidia/cu13/lib (CUDA 13) or nvidia/cuda_nvrtc/lib (CUDA 12).
void add_wheels(std::vector<std::string>& candidates, const std::filesystem::path& site_packages) {
  for (const char* sub : {"nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib"}) add_directory(candidates, site_packages / sub);
}

/// What look_for_nvrtc_in() named.
struct FurtherDirectories {
  std::mutex mutex;
  std::vector<std::filesystem::path> directories;  ///< guarded by mutex
};
FurtherDirectories& further_directories() {
  static FurtherDirectories further;
  return further;
}

/// The table of an opened library. Errors: nvrtc_missing, when it is no NVRTC that kernels can be compiled with.
Result<NvrtcApi> describe(const DynamicLibrary& library) {
  NvrtcApi api;
  std::string missing;
#define LEANATTN_RESOLVE(name)                                            \
  api.name = reinterpret_cast<decltype(api.name)>(library.symbol(#name)); \
  if (api.name == nullptr) missing += " " #name;
  LEANATTN_NVRTC_FUNCTIONS(LEANATTN_RESOLVE)
#undef LEANATTN_RESOLVE
  if (!missing.empty())
    return fail(ErrorCode::nvrtc_missing, fmt::format("{} lacks entry points:{}", library.name(), missing),
                failure_hint());
  const auto* any_symbol = reinterpret_cast<const void*>(api.nvrtcVersion);
  api.path = DynamicLibrary::path_of(any_symbol);
  api.build = DynamicLibrary::build_id_of(any_symbol);
  int arch_count = 0;
  auto status = api.nvrtcVersion(&api.major, &api.minor);
  if (status == NVRTC_SUCCESS && std::pair(api.major, api.minor) < kOldestNvrtc)
    return fail(ErrorCode::nvrtc_missing,
                fmt::format("{} is NVRTC {}.{}, and kernels need {}.{} or newer", api.path, api.major, api.minor,
                            kOldestNvrtc.first, kOldestNvrtc.second),
                failure_hint());
  if (status == NVRTC_SUCCESS) status = api.nvrtcGetNumSupportedArchs(&arch_count);
  if (status == NVRTC_SUCCESS) {
    api.compute_capabilities.resize(static_cast<std::size_t>(arch_count));
    status = api.nvrtcGetSupportedArchs(api.compute_capabilities.data());
  }
  if (status != NVRTC_SUCCESS)
    return fail(ErrorCode::nvrtc_missing,
                fmt::format("{} does not answer: {}", library.name(), api.nvrtcGetErrorString(status)), failure_hint());
  std::sort(api.compute_capabilities.begin(), api.compute_capabilities.end());
  load_nvrtc_builtins(api.path, api.major, api.minor);
  return api;
}

/// The search, as far as it has come. Libraries stay where they are, because callers keep pointers to them.
class Search {
 public:
  Result<const NvrtcApi*> find(std::optional<Arch> arch) {
    const std::lock_guard lock(mutex_);
    if (!arch && last_ != nullptr) return last_;
    for (std::size_t i = 0; i < opened_.size() || open_next(); ++i) {
      if (opened_[i].broken || (arch && !check_arch(opened_[i].api, *arch))) continue;
      if (arch) last_ = &opened_[i].api;
      return &opened_[i].api;
    }
    return tl::unexpected(nothing_for(arch));
  }

  const NvrtcApi* find_instead(const NvrtcApi& broken, Arch arch) {
    const auto self = [&](const Opened& library) { return &library.api == &broken; };
    {
      const std::lock_guard lock(mutex_);
      const auto at = std::find_if(opened_.begin(), opened_.end(), self);
      if (at == opened_.end()) return nullptr;
      at->broken = true;
    }
    const auto other = find(arch);
    const std::lock_guard lock(mutex_);
    // What is missing may come back, such as descriptors, so without another library this one is tried again.
    if (!other) std::find_if(opened_.begin(), opened_.end(), self)->broken = false;
    return other ? *other : nullptr;
  }

 private:
  struct Opened {
    NvrtcApi api;
    bool broken = false;
  };

  /// Opens candidates until one is an NVRTC of a version that is used, and not open already. False: none is left.
  bool open_next() {
    while (next_ < candidates_.size()) {
      const std::string& candidate = candidates_[next_++];
      const auto library = DynamicLibrary::open_first({&candidate, 1}, &failures_);
      if (!library) continue;
      Result<NvrtcApi> api = describe(library);
      if (!api) {
        failures_ += api.error().message + '\n';
        if (!refused_) refused_ = std::move(api.error());
        continue;
      }
      const bool known = std::any_of(opened_.begin(), opened_.end(),
                                     [&](const Opened& library) { return library.api.path == api->path; });
      if (known) continue;
      opened_.push_back({*std::move(api)});
      return true;
    }
    return false;
  }

  /// Why there is no library, or none for `arch`: what the first one that was found is, with all that was tried.
  Error nothing_for(std::optional<Arch> arch) const {
    std::string log = failures_;
    std::optional<Error> unable;
    for (const Opened& library : opened_) {
      const auto known = arch ? check_arch(library.api, *arch) : Result<void>{};
      if (known) continue;  // broken, as its caller says
      log += known.error().message + '\n';
      if (!unable) unable = known.error();
    }
    if (!unable) unable = refused_;
    if (unable) {
      unable->log = std::move(log);
      return *std::move(unable);
    }
    const std::string named = environment_variable("LEANATTN_NVRTC_LIB");
    return detail::cannot_open({ErrorCode::nvrtc_missing,
                                named.empty()
                                    ? "the CUDA run-time compiler libnvrtc cannot be loaded"
                                    : fmt::format("LEANATTN_NVRTC_LIB names {}, which cannot be loaded", named),
                                failure_hint(), std::move(log)});
  }

  std::mutex mutex_;  // of all below
  const std::vector<std::string> candidates_ = nvrtc_candidates();
  std::size_t next_ = 0;
  std::deque<Opened> opened_;
  const NvrtcApi* last_ = nullptr;
  std::string failures_;          // a line for each candidate that is no use
  std::optional<Error> refused_;  // of the first one that loads and is no NVRTC that kernels can be compiled with
};

Search& search() {
  static Search only;
  return only;
}

}  // namespace

void look_for_nvrtc_in(std::vector<std::filesystem::path> directories) {
  FurtherDirectories& further = further_directories();
  const std::lock_guard lock(further.mutex);
  further.directories = std::move(directories);
}

std::filesystem::path site_packages_of(const std::filesystem::path& own_directory) {
  const auto parent = own_directory.parent_path();
  return own_directory.filename() == "bin" && parent.filename() == "leanattn" ? parent.parent_path() : parent;
}

void load_nvrtc_builtins(const std::filesystem::path& library, int major, int minor) {
  const auto name = fmt::format("libnvrtc-builtins.so.{}.{}", major, minor);
  const std::string file = std::filesystem::path(library).replace_filename(name).string();
  DynamicLibrary::open_first({&file, 1}, nullptr);
}

std::vector<std::string> nvrtc_candidates(const std::filesystem::path& site_packages) {
  if (const auto file = environment_variable("LEANATTN_NVRTC_LIB"); !file.empty()) return {file};
  std::vector<std::string> candidates;
  if (const auto root = environment_variable("LEANATTN_NVRTC_DIR"); !root.empty()) {
    const std::filesystem::path directory(root);
    for (const char* sub : {"", "lib", "lib64"}) add_directory(candidates, directory / sub);
    add_wheels(candidates, directory);
    for (const char* sub : {"cu13/lib", "cuda_nvrtc/lib"}) add_directory(candidates, directory / sub);
  }
  if (!site_packages.empty()) add_wheels(candidates, site_packages);
  {
    FurtherDirectories& further = further_directories();
    const std::lock_guard lock(further.mutex);
    for (const auto& directory : further.directories) add_directory(candidates, directory);
  }
  candidates.insert(candidates.end(), std::begin(kSonames), std::end(kSonames));
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const auto root = environment_variable(variable); !root.empty())
      add_directory(candidates, std::filesystem::path(root) / "lib64");
  }
  add_directory(candidates, "/usr/local/cuda/lib64");
#ifdef LEANATTN_NVRTC_HINT_DIR
  add_directory(candidates, LEANATTN_NVRTC_HINT_DIR);
#endif
  return candidates;
}

Result<const NvrtcApi*> nvrtc(std::optional<Arch> arch) { return search().find(arch); }

const NvrtcApi* nvrtc_instead_of(const NvrtcApi& broken, Arch arch) { return search().find_instead(broken, arch); }

Result<void> check_arch(const NvrtcApi& api, Arch arch) {
  const int capability = arch.major * 10 + arch.minor;
  const auto& known = api.compute_capabilities;
  if (std::binary_search(known.begin(), known.end(), capability)) return {};
  const bool newer = !known.empty() && capability > known.back();
  return fail(ErrorCode::unsupported,
              fmt::format("NVRTC {}.{} ({}) does not compile for {}", api.major, api.minor, api.path, to_string(arch)),
              newer ? fmt::format("Its newest compute capability is {}: install a newer NVRTC.", known.back())
                    : fmt::format("It compiles for compute capabilities {}.", fmt::join(known, ", ")));
}

std::string full_version(const NvrtcApi& api) { return fmt::format("{}.{}+{}", api.major, api.minor, api.build); }

}  // namespace v1
}  // namespace leanattn
