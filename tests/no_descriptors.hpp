// no_descriptors.hpp -- NoDescriptors: a process that can open no file. One thread.
#pragma once

#include <sys/resource.h>

#include <cerrno>
#include <stdexcept>
#include <system_error>

namespace leanattn {

/// While it lives, no file can be opened; what is open stays so.
class NoDescriptors {
 public:
  NoDescriptors() {
    if (::getrlimit(RLIMIT_NOFILE, &before_) != 0) throw std::runtime_error("no limit of open files");
    // The undefined-behaviour sanitizer opens a pipe to check an object of a type that it has not met.
    static_cast<void>(std::generic_category().message(EMFILE));
    set({0, before_.rlim_max});
  }
  ~NoDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;

 private:
  static void set(const rlimit& limit) {
    if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) throw std::runtime_error("the limit of open files stays");
  }
  rlimit before_{};
};

}  // namespace leanattn
