// no_threads.hpp -- NoThreads: a process that gets no more threads, as under a limit of the user or container. One
// thread.
#pragma once

#include <pthread.h>

#include <cstddef>
#include <stdexcept>

namespace leanattn {

/// While it lives, the system has no thread to give, because nothing has room for the stack.
class NoThreads {
 public:
  NoThreads() {
    pthread_attr_t large;
    pthread_attr_init(&large);
    if (pthread_getattr_default_np(&before_) != 0 || pthread_attr_setstacksize(&large, std::size_t{1} << 46) != 0 ||
        pthread_setattr_default_np(&large) != 0)
      throw std::runtime_error("threads are still to be had");
  }
  ~NoThreads() { pthread_setattr_default_np(&before_); }
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;

 private:
  pthread_attr_t before_{};
};

}  // namespace leanattn
