// fake_nccl.hpp -- a libnccl.so.2 for tests, between ranks of one process on fictional GPUs (fake_cuda.hpp). It moves
// bytes between the ranks, each in its order, and fails on request. The rules that matter are those of NCCL: a
// communicator is there once all ranks have joined it, work is asked for in groups, an aborted communicator is gone,
// and what is asked for during a capture happens at no time. Several threads may call it; fake_nccl() itself is for
// times without calls, but for what is atomic.
#pragma once

#include <atomic>
#include <map>
#include <string>
#include <vector>

struct ncclComm;

struct FakeNccl {
  // How it shall behave.
  int version = 22809;
  std::map<std::string, int> fail_once;  ///< the named entry point fails once with this status
  std::atomic<int> async_error{0};       ///< what every communicator finds
  /// Whether an exchange outside captures waits until all that it receives is there, as a stream that is waited for
  /// does. Otherwise it returns at once, and bytes arrive when they are sent.
  std::atomic<bool> waits{true};
  std::atomic<bool> holds_aborts{false};  ///< ncclCommAbort() waits as long as this is so, as for graphs that are left
  std::atomic<int> late_groups{0};  ///< so many next ncclGroupEnd() end in progress, and are done at the second look

  // What has happened to it.
  std::map<std::string, int> calls;  ///< by entry point
  std::atomic<int> live_comms{0};
  std::atomic<int> aborted{0};
  std::atomic<long long> bytes_moved{0};

  FakeNccl() = default;
};

FakeNccl& fake_nccl();
/// Forgets everything. No communicator may be left.
void reset_fake_nccl();
/// Communicators of `ranks` ranks that somebody else has made, each on the GPU of its rank.
std::vector<ncclComm*> make_fake_comms(int ranks);
void destroy_fake_comm(ncclComm* comm);
