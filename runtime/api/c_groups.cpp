// c_groups.cpp -- the C ABI's groups.
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "leanattn/leanattn.h"
#include "runtime/api/c_structs.hpp"
#include "runtime/api/last_error.hpp"
#include "runtime/cuda/nccl.hpp"
#include "runtime/engine/engine.hpp"
#include "runtime/engine/group.hpp"

namespace {

using namespace leanattn;
using leanattn::detail::guarded;
using leanattn::detail::null_argument;

EngineCore& engine_of(leanattn_engine* engine) { return *static_cast<EngineCore*>(engine); }
GroupMember& member_of(leanattn_group* group) { return *static_cast<GroupMember*>(group); }
const GroupMember& member_of(const leanattn_group* group) { return *static_cast<const GroupMember*>(group); }

/// Blobs, which the caller may have at any address.
std::vector<GroupMember::Blob> copies_of(const void* blobs, int count) {
  std::vector<GroupMember::Blob> copies(static_cast<std::size_t>(count));
  std::memcpy(copies.data(), blobs, copies.size() * sizeof(GroupMember::Blob));
  return copies;
}

static_assert(sizeof(GroupMember::Blob) == LEANATTN_GROUP_BLOB_BYTES);
static_assert(sizeof(NcclUniqueId) == LEANATTN_NCCL_ID_BYTES);

}  // namespace

extern "C" {

leanattn_status leanattn_group_bytes(const leanattn_problem* problem, int32_t max_batch, int64_t* bytes) noexcept {
  return guarded([&]() -> Result<void> {
    if (bytes == nullptr) return tl::unexpected(null_argument("bytes"));
    DecodeProblem read;
    if (auto ok = detail::read_problem(problem, read); !ok) return ok;
    if (auto ok = validate(read, Shape{.batch = max_batch, .longest_context = 1}); !ok) return ok;
    if (!in_group(read.features))
      return fail(ErrorCode::invalid_argument, "context_parallel is 1, so there is no group",
                  "Set it to the number of ranks, 2 to 8.");
    const std::int64_t needed = group_bytes(read.features.context_parallel, group_columns(read, max_batch));
    if (needed == std::numeric_limits<std::int64_t>::max())
      return fail(ErrorCode::unsupported, "a group for launches of " + std::to_string(max_batch) + " requests",
                  "Results of more than 2^32 values a rank do not fit: give a smaller max_batch.");
    *bytes = needed;
    return {};
  });
}

leanattn_status leanattn_group_create(leanattn_engine* engine, const leanattn_group_options* options,
                                      leanattn_group** group) noexcept {
  return guarded([&]() -> Result<void> {
    if (group == nullptr) return tl::unexpected(null_argument("group"));
    *group = nullptr;
    if (engine == nullptr) return tl::unexpected(null_argument("engine"));
    leanattn_group_options storage;
    const auto read = detail::read_struct("group_options", options, storage);
    if (!read) return tl::unexpected(read.error());
    if ((*read)->reserved != 0)
      return fail(ErrorCode::invalid_argument, "group_options.reserved is " + std::to_string((*read)->reserved),
                  "Leave it 0; leanattn_group_options_init does.");
    auto made = engine_of(engine).create_group({.rank = (*read)->rank,
                                                .size = (*read)->size,
                                                .peers = (*read)->peers,
                                                .memory_bytes = (*read)->memory_bytes,
                                                .memory = (*read)->memory});
    if (!made) return tl::unexpected(std::move(made.error()));
    *group = made->release();
    return {};
  });
}

leanattn_status leanattn_group_export(const leanattn_group* group, void* blob) noexcept {
  return guarded([&]() -> Result<void> {
    if (group == nullptr) return tl::unexpected(null_argument("group"));
    if (blob == nullptr) return tl::unexpected(null_argument("blob"));
    const auto made = member_of(group).export_blob();
    if (!made) return tl::unexpected(made.error());
    std::memcpy(blob, made->data(), made->size());
    return {};
  });
}

leanattn_status leanattn_group_connect(leanattn_group* group, const void* blobs) noexcept {
  return guarded([&]() -> Result<void> {
    if (group == nullptr) return tl::unexpected(null_argument("group"));
    if (blobs == nullptr) return tl::unexpected(null_argument("blobs"));
    return member_of(group).connect(copies_of(blobs, member_of(group).peers()));
  });
}

leanattn_status leanattn_group_connect_mapped(leanattn_group* group, const void* blobs, void* const* memory) noexcept {
  return guarded([&]() -> Result<void> {
    if (group == nullptr) return tl::unexpected(null_argument("group"));
    if (blobs == nullptr) return tl::unexpected(null_argument("blobs"));
    if (memory == nullptr) return tl::unexpected(null_argument("memory"));
    return member_of(group).connect(copies_of(blobs, member_of(group).peers()), memory);
  });
}

leanattn_status leanattn_nccl_unique_id(void* id) noexcept {
  return guarded([&]() -> Result<void> {
    if (id == nullptr) return tl::unexpected(null_argument("id"));
    const auto api = nccl();
    if (!api) return tl::unexpected(api.error());
    NcclUniqueId made{};
    if (auto ok = check_nccl(**api, (*api)->ncclGetUniqueId(&made), "ncclGetUniqueId"); !ok) return ok;
    std::memcpy(id, &made, sizeof made);
    return {};
  });
}

leanattn_status leanattn_group_connect_nccl(leanattn_group* group, const leanattn_nccl_options* options) noexcept {
  return guarded([&]() -> Result<void> {
    if (group == nullptr) return tl::unexpected(null_argument("group"));
    leanattn_nccl_options storage;
    const auto read = detail::read_struct("nccl_options", options, storage);
    if (!read) return tl::unexpected(read.error());
    const leanattn_nccl_options& given = **read;
    if ((given.unique_id == nullptr) == (given.comm == nullptr))
      return fail(ErrorCode::invalid_argument,
                  given.comm == nullptr ? "neither unique_id nor comm is given" : "both unique_id and comm are given",
                  "Give one of the two.");
    if (given.comm != nullptr) return member_of(group).connect_nccl(given.comm);
    NcclUniqueId id;
    std::memcpy(&id, given.unique_id, sizeof id);
    return member_of(group).connect_nccl(id);
  });
}

leanattn_status leanattn_group_reset(leanattn_group* group, leanattn_stream stream) noexcept {
  return guarded([&]() -> Result<void> {
    if (group == nullptr) return tl::unexpected(null_argument("group"));
    return member_of(group).reset(stream);
  });
}

void leanattn_group_destroy(leanattn_group* group) noexcept {
  if (group == nullptr || !member_of(group).in_its_process()) return;
  delete &member_of(group);
}

leanattn_status leanattn_engine_plan_group(leanattn_engine* engine, const leanattn_problem* problem,
                                           const leanattn_shape* shape, leanattn_group* group, leanattn_stream stream,
                                           const leanattn_plan** plan) noexcept {
  return guarded([&]() -> Result<void> {
    if (plan == nullptr) return tl::unexpected(null_argument("plan"));
    *plan = nullptr;
    if (engine == nullptr) return tl::unexpected(null_argument("engine"));
    if (group == nullptr) return tl::unexpected(null_argument("group"));
    DecodeProblem the_problem;
    if (auto ok = detail::read_problem(problem, the_problem); !ok) return ok;
    Shape the_shape;
    if (auto ok = detail::read_shape(shape, the_problem, the_shape); !ok) return ok;
    const auto made = engine_of(engine).plan_group(the_problem, the_shape, member_of(group), stream);
    if (!made) return tl::unexpected(made.error());
    *plan = *made;
    return {};
  });
}

}  // extern "C"
