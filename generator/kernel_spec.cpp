#include "generator/kernel_spec.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "generator/kv_encoding.hpp"
#include "generator/parse_enum.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr std::array kMatrixArches{Arch{8, 0, false}, Arch{8, 6, false}, Arch{8, 9, false},
                                   Arch{9, 0, true},  Arch{10, 0, true}, Arch{12, 0, true}};

}  // namespace

Result<Arch> parse_arch(std::string_view text) {
  const auto malformed = [&] {
    return fail(ErrorCode::invalid_argument, fmt::format("'{}' is not an architecture", text),
                "write it like sm_80 or sm_90a");
  };
  std::string_view digits = text;
  if (!digits.starts_with("sm_")) return malformed();
  digits.remove_prefix(3);
  Arch arch;
  if (digits.ends_with('a')) {
    arch.specific = true;
    digits.remove_suffix(1);
  }
  int number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (number < 0 || error != std::errc{} || end != digits.data() + digits.size() || digits.size() < 2 ||
      digits.size() > 3)
    return malformed();
  arch.major = number / 10;
  arch.minor = number % 10;
  if (arch.major < 8) {
    return fail(ErrorCode::unsupported, fmt::format("{} is older than sm_80", text),
                "Ampere (sm_80) is the oldest supported architecture");
  }
  return arch;
}

std::string to_string(Arch arch) { return fmt::format("sm_{}{}{}", arch.major, arch.minor, arch.specific ? "a" : ""); }

Arch arch_for_compute_capability(int major, int minor) { return {major, minor, major >= 9}; }

std::span<const Arch> matrix_arches() { return kMatrixArches; }

int max_shared_bytes_per_cta(Arch arch) { return shared_bytes_per_sm(arch) - 1024; }

int shared_bytes_per_sm(Arch arch) {
  if (arch.major == 8) return (arch.minor == 0 || arch.minor == 7) ? 164 * 1024 : 100 * 1024;
  if (arch.major == 9 || arch.major == 10) return 228 * 1024;
  if (arch.major == 11) return 228 * 1024;
  return 100 * 1024;
}

std::string_view to_string(DType v) { return v == DType::bf16 ? "bf16" : "fp16"; }
std::string_view to_string(LoadPath v) {
  switch (v) {
    case LoadPath::ldg: return "ldg";
    case LoadPath::cp_async: return "cp_async";
    case LoadPath::bulk: return "bulk";
    case LoadPath::tensor: return "tensor";
    case LoadPath::vector: return "vector";
  }
  return "ldg";
}
std::string_view to_string(FixUp v) { return v == FixUp::ticket ? "ticket" : "wait"; }
std::string_view to_string(KvLayout v) { return v == KvLayout::contiguous ? "contiguous" : "strided"; }

Result<DType> parse_dtype(std::string_view text) {
  return parse_enum("dtype", text, std::array{DType::bf16, DType::fp16});
}
Result<LoadPath> parse_load_path(std::string_view text) { return parse_enum("load path", text, kLoadPaths); }
Result<FixUp> parse_fix_up(std::string_view text) {
  return parse_enum("fix-up", text, std::array{FixUp::ticket, FixUp::wait});
}
Result<KvLayout> parse_kv_layout(std::string_view text) {
  return parse_enum("KV layout", text, std::array{KvLayout::contiguous, KvLayout::strided});
}

int value_dim(const KernelSpec& spec) {
  return spec.features.v_head_dim > 0 ? spec.features.v_head_dim : spec.head_dim;
}

int largest_head_dim(const Features& features) { return features.latent ? 640 : 512; }

int cache_columns(const KernelSpec& spec) {
  return spec.features.latent ? spec.head_dim : spec.head_dim + value_dim(spec);
}

int cache_token_bytes(const KernelSpec& spec) { return kv_encoding(spec.features).row_bytes(cache_columns(spec)); }

std::string kernel_name(const KernelSpec& spec) {
  return fmt::format("lean_{}{}{}_{}_d{}_g{}_{}{}{}_{}_{}{}_t{}_w{}x{}_s{}_o{}", "sm",
                     spec.arch.major * 10 + spec.arch.minor, spec.arch.specific ? "a" : "", to_string(spec.dtype),
                     spec.head_dim, spec.group, spec.layout == KvLayout::contiguous ? "contig" : "strided",
                     spec.lse ? "_lse" : "", features_name(spec.features), to_string(spec.load), to_string(spec.fixup),
                     spec.pdl ? "_pdl" : "", spec.tile, spec.warps, spec.warp_tokens, spec.stages, spec.ctas_per_sm);
}

}  // namespace v1
}  // namespace leanattn
