// line.cuh -- the prelude and the modules of the line, for a kernel whose constants stand in front. With
// LEAN_POSITIONS a rank has a part of each context.
#include "tests/device/prelude.cuh"

#include "templates/line/rows.cuh"

#if defined(LEAN_POSITIONS)
#include "templates/line/part_of_context.cuh"
#endif

#include "templates/line/work.cuh"

#if defined(LEAN_SPANS)
#include "templates/line/spans.cuh"
#endif

#include "templates/line/find_start.cuh"

#include "templates/line/walk.cuh"

#include "templates/line/steps.cuh"
