// ring.cuh -- the ring of load path "tensor", for a kernel whose constants, line and holes stand in front.

// Where rows are gathered, no module has the holes of a step, and none asks for them.
template <class Args>
Holes holes_of(const Args&, const Segment&, const Step&) {
  return {};
}

// Each CTA has its own. What copies or asks for KV is a test's.
#define selected_holes static_selected_holes
#define prefetch_row ptx_prefetch_row
#define copy_box ptx_copy_box
#define note_hole ptx_note_hole
#include "templates/kv/tensor.cuh"
#undef note_hole
#undef copy_box
#undef prefetch_row
#undef selected_holes
inline SelectedHoles& selected_holes() { return shared_object<SelectedHoles>(); }
