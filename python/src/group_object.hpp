// group_object.hpp -- GroupObject: what leanattn.Group holds. Called with the GIL held.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "leanattn/leanattn.hpp"

namespace leanattn::python {

struct EngineObject;

/// One rank's part of a group, and the Python engine that keeps its context alive. A part that was never closed is left
/// to the end of the process when the object goes: other ranks may still write there.
class GroupObject {
 public:
  /// memory: of the caller's, `bytes` long; null for none. Raises leanattn.Error.
  GroupObject(nanobind::object engine, int rank, int size, std::int64_t bytes, int peers, void* memory);
  GroupObject(const GroupObject&) = delete;
  GroupObject& operator=(const GroupObject&) = delete;
  ~GroupObject();

  const nanobind::object& engine() const { return engine_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  int peers() const { return peers_; }  ///< ranks that merge inside the kernel, this one included
  std::int64_t bytes() const { return bytes_; }
  bool connected() const { return (peers_ == 1 || connected_) && (peers_ == size_ || connected_nccl_); }
  /// Which of the equal shares of the query heads the rank writes.
  int share() const { return rank_ % peers_ * (size_ / peers_) + rank_ / peers_; }
  bool closed() const { return group_ == nullptr; }
  /// For calls of the library, also without the GIL, while another thread may close the group. Raises leanattn.Error
  /// where it is closed.
  std::shared_ptr<Group> get() const;

  nanobind::bytes export_blob() const;
  void connect(nanobind::handle blobs, nanobind::handle memory);
  void connect_nccl(nanobind::handle unique_id, nanobind::handle comm);
  void reset(nanobind::handle stream);
  void close(bool barrier);
  /// Leaves the part to the end of the process.
  void abandon();

  /// The torch.distributed process group of the ranks, for the barrier of close(); none where there is none.
  nanobind::object process_group;

 private:
  nanobind::object engine_;
  std::shared_ptr<Group> group_;  ///< null once closed
  int rank_, size_, peers_;
  std::int64_t bytes_;
  bool connected_ = false, connected_nccl_ = false;
};

/// `given`, which must be a Group; null for None. Raises leanattn.Error.
const GroupObject* find_group(nanobind::handle given);

/// The engine of a launch with tensors on `device`: that of the group, and otherwise as find_engine() says. Raises
/// leanattn.Error.
EngineObject& find_engine(const GroupObject* group, nanobind::handle given, int device);

void bind_group(nanobind::module_& module);

}  // namespace leanattn::python
