// families.cpp -- `leanattn families`: which kernel families there are, and which features each has. docs/kernel.md has
// what it prints.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "cli/commands/commands.hpp"
#include "cli/help/command_page.hpp"
#include "generator/families/family.hpp"
#include "runtime/lookup/specs.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr Arch kHopper{9, 0, true};

/// Heads on which each family is asked: few and many query rows of plain heads, and of a latent cache.
DecodeProblem heads_of(int group, bool latent, Features features) {
  if (latent) features.latent = true, features.v_head_dim = 512;
  const int kv_heads = latent ? 1 : 8;
  return {.q_heads = kv_heads * group,
          .kv_heads = kv_heads,
          .head_dim = latent ? 576 : 128,
          .features = std::move(features)};
}
constexpr int kGroups[] = {1, 4, 16, 64};

struct Feature {
  std::string_view name;
  Features features;
};

std::vector<Feature> features_to_ask() {
  return {
      {"paged cache", {.page_size = 16}},
      {"several query tokens", {.q_len = 2}},
      {"ragged query tokens", {.q_len = 2, .ragged_q = true}},
      {"packed K and V", {.packed_kv = true, .q_len = 2, .ragged_q = true}},
      {"spans of prompts", {.q_len = 2, .ragged_q = true, .spans = true}},
      {"tree mask", {.q_len = 2, .mask = QueryMask::tree}},
      {"full mask", {.q_len = 2, .mask = QueryMask::full}},
      {"window", {.window = 1024, .sink_tokens = 4}},
      {"sink logits", {.sink_logits = true}},
      {"soft cap, ALiBi, score expression", {.soft_cap = 30, .alibi = true, .score = "score * 0.5f"}},
      {"one-byte cache, a scale per tensor or head", {.kv_format = KvFormat::fp8_e4m3}},
      {"one-byte cache, a scale per token", {.kv_format = KvFormat::fp8_e4m3, .kv_scale = KvScale::token}},
      {"one-byte cache, scales among the rows", {.kv_format = KvFormat::fp8_e4m3, .kv_scale = KvScale::in_row}},
      {"four-bit cache, a scale and a zero point per token",
       {.kv_format = KvFormat::int4, .kv_scale = KvScale::in_row}},
      {"four-bit floats, a scale for 16 columns", {.page_size = 16, .kv_format = KvFormat::nvfp4}},
      {"latent rows of 656 bytes", {.kv_format = KvFormat::fp8_ds_mla}},
      {"new tokens, rotary embedding", {.append = true, .rope = Rope::interleaved, .rope_dim = 64}},
      {"batch invariance", {.batch_invariant = true}},
      {"selected KV", {.page_size = 64, .selection_block = 64}},
      {"a second cache beside it", {.page_size = 64, .selection_block = 64, .second_cache = true}},
      {"contexts shared by GPUs", {.context_parallel = 2}},
  };
}

/// What a family has of a feature over one kind of cache.
struct Support {
  std::vector<LoadPath> loads;  ///< load paths with kernels
  std::string reason = {};      ///< of a refusal, of heads that it has without the feature if there are any
};

/// Each once.
std::vector<LoadPath> loads_of(const KernelFamily& family) {
  std::vector<LoadPath> loads;
  for (const SearchedLoad& searched : family.loads) {
    if (std::ranges::find(loads, searched.load) == loads.end()) loads.push_back(searched.load);
  }
  return loads;
}

/// Calls visit(spec) with each spec that has these features, on the family's load paths.
template <class Visit>
void for_each_spec_of_loads(const KernelFamily& family, Arch arch, const Features& features, bool latent, Visit visit) {
  for (const SearchedLoad& searched : family.loads) {
    for (const int group : kGroups) {
      const DecodeProblem problem = heads_of(group, latent, features);
      if (!validate(problem)) continue;
      KernelSpec spec = base_spec(arch, problem);
      spec.load = searched.load;
      for (const int warps : searched.warps) {
        spec.warps = warps;
        visit(spec);
      }
    }
  }
}

/// The same of those that are the family's.
template <class Visit>
void for_each_spec(const KernelFamily& family, Arch arch, const Features& features, bool latent, Visit visit) {
  for_each_spec_of_loads(family, arch, features, latent, [&](const KernelSpec& spec) {
    if (&family_of(spec) == &family) visit(spec);
  });
}

/// What a family is asked for. One that has no heads with one query token a request is asked for steps with prefill.
Features asked_of(const KernelFamily& family, Features features) {
  bool decodes = false;
  for (const bool latent : {false, true})
    for_each_spec(family, kHopper, {}, latent, [&](const KernelSpec&) { decodes = true; });
  if (!decodes && features.mask != QueryMask::tree) features.q_len = kMostPrefillTokens, features.ragged_q = true;
  return features;
}

Support support_of(const KernelFamily& family, Arch arch, const Features& wanted, bool latent) {
  const Features features = asked_of(family, wanted);
  Support support;
  bool for_the_feature = false;
  for_each_spec(family, arch, features, latent, [&](const KernelSpec& spec) {
    if (const auto has = family.supports(spec); has) {
      if (std::find(support.loads.begin(), support.loads.end(), spec.load) == support.loads.end())
        support.loads.push_back(spec.load);
    } else {
      KernelSpec without = spec;
      without.features = heads_of(1, latent, asked_of(family, {})).features;
      const bool better = !for_the_feature && family.supports(without);
      if (support.reason.empty() || better)
        support.reason = fmt::format("{}: {}", has.error().message, has.error().hint);
      for_the_feature = for_the_feature || better;
    }
  });
  return support;
}

/// Why a family has no specs of a feature whose refusal gives no reason: another one takes them. Empty: none does.
std::string taken_by(const KernelFamily& family, const Features& wanted) {
  std::string_view other;
  for (const bool latent : {false, true})
    for_each_spec_of_loads(family, kHopper, asked_of(family, wanted), latent, [&](const KernelSpec& spec) {
      if (other.empty() && family_of(spec).supports(spec)) other = family_of(spec).name;
    });
  return other.empty() ? std::string() : fmt::format("kernels of {} have it", other);
}

std::string names_of(const std::vector<LoadPath>& loads) {
  std::vector<std::string_view> names(loads.size());
  std::ranges::transform(loads, names.begin(), [](LoadPath load) { return to_string(load); });
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string arches_of(const KernelFamily& family) {
  std::vector<std::string> names;
  for (const Arch arch : matrix_arches()) {
    if (!support_of(family, arch, {}, false).loads.empty() || !support_of(family, arch, {}, true).loads.empty())
      names.push_back(to_string(arch));
  }
  return names.size() == matrix_arches().size() ? "all" : fmt::format("{}", fmt::join(names, ", "));
}

struct Cell {
  std::string text, reason;  ///< the reason where the text is not "yes"
};

/// Whether a family has a kind of cache.
Cell cell_of(const KernelFamily& family, bool latent) {
  Support support = support_of(family, kHopper, {}, latent);
  if (support.loads.size() == loads_of(family).size()) return {"yes", ""};
  if (support.reason.empty()) support.reason = "no such heads are its own";
  return {support.loads.empty() ? "no" : names_of(support.loads), std::move(support.reason)};
}

/// Whether it has a feature, compared with what it has without.
Cell cell_of(const KernelFamily& family, const Features& features) {
  Support plain = support_of(family, kHopper, features, false), latent = support_of(family, kHopper, features, true);
  const bool all_plain = plain.loads == support_of(family, kHopper, {}, false).loads,
             all_latent = latent.loads == support_of(family, kHopper, {}, true).loads;
  if (all_plain && all_latent) return {"yes", ""};
  std::string reason = all_plain || plain.reason.empty() ? latent.reason : plain.reason;
  if (plain.loads.empty() && latent.loads.empty())
    return {"no", reason.empty() ? taken_by(family, features) : std::move(reason)};
  if (plain.loads.empty()) return {"latent caches", std::move(reason)};
  return {latent.loads.empty() ? "K and V apart" : names_of(plain.loads), std::move(reason)};
}

std::string row_of(const std::vector<std::string>& cells) { return fmt::format("| {} |\n", fmt::join(cells, " | ")); }

/// The tables as people read them, and as JSON.
class FamilyTables {
 public:
  FamilyTables() {
    std::vector<std::string> heading{"feature, on sm_90a"};
    for (const KernelFamily* const family : families()) {
      const std::string name = fmt::format("`{}`", family->name), arches = arches_of(*family);
      const std::vector<LoadPath> loads = loads_of(*family);
      families_ += row_of({name, names_of(loads), arches, std::string(family->description)});
      heading.push_back(name);
      json_.push_back({{"name", family->name},
                       {"description", family->description},
                       {"load_paths", names_of(loads)},
                       {"architectures", arches},
                       {"features", nlohmann::ordered_json::array()}});
    }
    features_ = row_of(heading) + row_of(std::vector<std::string>(heading.size(), "---"));
  }

  /// A row of the features' table.
  template <class CellOf>
  void add(std::string_view feature, CellOf cell_of_family) {
    std::vector<std::string> row{std::string(feature)};
    for (std::size_t i = 0; i < families().size(); ++i) {
      const Cell cell = cell_of_family(*families()[i]);
      row.push_back(cell.text);
      json_[i]["features"].push_back({{"name", feature}, {"support", cell.text}, {"reason", cell.reason}});
      if (!cell.reason.empty())
        reasons_ += row_of({std::string(feature), fmt::format("`{}`", families()[i]->name), cell.reason});
    }
    features_ += row_of(row);
  }

  std::string text() const {
    return row_of({"family", "load paths", "architectures", "what it is"}) + row_of({"---", "---", "---", "---"}) +
           families_ + "\n" + features_ + "\n" + row_of({"what is missing", "family", "why"}) +
           row_of({"---", "---", "---"}) + reasons_;
  }
  const nlohmann::ordered_json& json() const { return json_; }

 private:
  std::string families_, features_, reasons_;
  nlohmann::ordered_json json_ = nlohmann::ordered_json::array();
};

int run_families(const Console& console) {
  FamilyTables tables;
  for (const bool latent : {false, true})
    tables.add(latent ? "latent cache of 576 columns" : "K and V apart",
               [&](const KernelFamily& family) { return cell_of(family, latent); });
  for (const Feature& feature : features_to_ask())
    tables.add(feature.name, [&](const KernelFamily& family) { return cell_of(family, feature.features); });
  if (console.json) {
    print_json({{"schema_version", 1}, {"families", tables.json()}});
  } else {
    print(tables.text());
  }
  return kExitOk;
}

}  // namespace

Command add_families(CLI::App& program) {
  CLI::App* app = program.add_subcommand("families", "List the kernel families and the features that each has");
  set_examples(*app, {{"List them as JSON", "leanattn families --json"}});
  return {app, run_families};
}

}  // namespace v1
}  // namespace leanattn
