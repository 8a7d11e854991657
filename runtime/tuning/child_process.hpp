// child_process.hpp -- child processes without fork(): they are started, watched and reaped by these functions alone.
// Any thread; one thread at a time for each process. No signal handler is installed, and no signal of the caller
// changes.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <span>
#include <string>
#include <vector>

#include "cache/file_descriptor.hpp"
#include "leanattn/error.hpp"

namespace leanattn {
inline namespace v1 {

/// Moves a descriptor to a number that is closed on exec and is none of those that children are given
/// (ChildDescriptor::theirs). False when no descriptor is left.
bool move_up(FileDescriptor& descriptor);

/// The two ends of a pipe. Reading does not block.
struct Pipe {
  FileDescriptor read, write;
};
/// Both ends are moved up. Errors: internal (no descriptors left).
Result<Pipe> open_pipe();

/// A descriptor of the caller's that the child finds under another number, below 10.
struct ChildDescriptor {
  int ours = -1;
  int theirs = -1;
};

/// Starts command[0], a path, with these arguments, and returns its process id. Its standard input is /dev/null unless
/// `descriptors` says otherwise. It has a process group of its own, so that Ctrl-C at a terminal does not reach it; no
/// signal is blocked in it, and those that end a program do so. Other descriptors are closed, where glibc can do that
/// (2.34). `environment` has texts NAME=VALUE; empty: that of the caller. posix_spawn is used instead of fork, because
/// neither threads nor a CUDA context survive a fork. Errors: internal (no such program),
/// out_of_memory (no processes left).
Result<pid_t> spawn_child(std::span<const std::string> command, std::span<const ChildDescriptor> descriptors,
                          std::span<const std::string> environment = {});

/// Waits for the end of a child and reaps it. Returns how it ended: "exited with code 3", "killed by signal 11
/// (Segmentation fault)". What it has started in its process group is killed with it. It is killed when `patience` is
/// over. Where the driver does not let a killed process go, the wait ends after a minute.
std::string reap_child(pid_t pid, std::chrono::milliseconds patience);

/// Appends what can be read from a non-blocking descriptor now, up to 256 KiB. False at its end, or when it cannot be
/// read any more.
bool read_available(int descriptor, std::string& text);

}  // namespace v1
}  // namespace leanattn
