// shared_layout.hpp -- the sizes of templates/shared_layout.cuh on the host. Pure functions; any thread. Internal to
// generator/.
#pragma once

namespace leanattn {
inline namespace v1 {

#include "templates/shared_layout.cuh"

}  // namespace v1
}  // namespace leanattn
