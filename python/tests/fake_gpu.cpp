// fake_gpu.cpp -- the module _fake_gpu of the tests: a libcuda.so.1 without a GPU (fake_cuda.hpp) and a libnccl.so.2
// (fake_nccl.hpp), which the package finds because this module has loaded them, and what arrived there.
#include "tests/unit/runtime/fake_cuda.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <stdexcept>

#include "templates/kernel_args.cuh"
#include "templates/recurrent/arguments.cuh"
#include "templates/standalone/page_rows.cuh"
#include "tests/unit/runtime/fake_nccl.hpp"

namespace {

namespace nb = nanobind;
using Handle = std::uintptr_t;

void must(CUresult status) {
  if (status != CUDA_SUCCESS) throw std::runtime_error("the fake driver refuses: " + std::to_string(status));
}
CUstream stream_of(Handle handle) { return reinterpret_cast<CUstream>(handle); }
template <class T>
Handle handle_of(T* pointer) {
  return reinterpret_cast<Handle>(pointer);
}

/// Streams and graphs are made where a context is current; it is not, before and after.
class WithContext {
 public:
  WithContext() {
    must(cuDevicePrimaryCtxRetain(&context_, 0));
    must(cuCtxSetCurrent(context_));
  }
  ~WithContext() {
    cuCtxSetCurrent(nullptr);
    cuDevicePrimaryCtxRelease(0);
  }

 private:
  CUcontext context_ = nullptr;
};

void reset() {
  reset_fake_nccl();
  fake_gpu() = FakeGpu{};
  fake_gpu().argument_bytes = sizeof(LeanDecodeArgs);
  fake_gpu().knows_pointers = true;  // tensors of tests are memory of the host
  fake_gpu().attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR] = 9;
  fake_gpu().attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR] = 0;
}

/// The kernel page_rows by its own definition of a row, on memory of the host.
void run_page_rows(const std::string& kernel, void** params) {
  if (kernel != "page_rows") return;
  const auto& rows = *static_cast<const LeanPageRows*>(params[0]);
  for (int request = 0; request < rows.batch; ++request) {
    const LeanPageRow row = lean_page_row(rows, request);
    std::copy_n(rows.indices + row.begin, row.pages, rows.page_table + request * rows.page_table_stride);
    rows.context_lengths[request] = row.context_length;
  }
}

nb::dict arguments_of(const FakeLaunch& launch) {
  LeanDecodeArgs args{};
  std::memcpy(&args, launch.arguments.data(), std::min(sizeof args, launch.arguments.size()));
  nb::dict result;
#define POINTER(name) result[#name] = reinterpret_cast<Handle>(args.name)
#define NUMBER(name) result[#name] = args.name
  POINTER(q);
  POINTER(k);
  POINTER(v);
  POINTER(o);
  POINTER(lse);
  POINTER(context_lengths);
  POINTER(partials);
  NUMBER(q_stride_batch);
  NUMBER(q_stride_head);
  NUMBER(k_stride_batch);
  NUMBER(k_stride_head);
  NUMBER(k_stride_token);
  NUMBER(v_stride_batch);
  NUMBER(v_stride_head);
  NUMBER(v_stride_token);
  NUMBER(o_stride_batch);
  NUMBER(o_stride_head);
  NUMBER(batch);
  NUMBER(kv_heads);
  NUMBER(context_capacity);
  NUMBER(scale_log2);
  POINTER(page_table);
  POINTER(q_offsets);
  NUMBER(query_tokens);
  POINTER(tree_mask);
  POINTER(spans);
  POINTER(alibi_slopes);
  POINTER(sink_logits);
  POINTER(k_scale);
  POINTER(v_scale);
  POINTER(k_block_scales);
  POINTER(v_block_scales);
  POINTER(k_new);
  POINTER(v_new);
  POINTER(rope_table);
  NUMBER(k_new_stride_batch);
  NUMBER(k_new_stride_token);
  NUMBER(k_new_stride_head);
  NUMBER(v_new_stride_batch);
  NUMBER(v_new_stride_token);
  NUMBER(v_new_stride_head);
  NUMBER(q_stride_token);
  NUMBER(o_stride_token);
  NUMBER(page_table_stride);
  NUMBER(kv_scale_stride_batch);
  NUMBER(kv_scale_stride_head);
  NUMBER(kv_scale_stride_token);
  NUMBER(pool_pages);
  POINTER(selection);
  POINTER(request_lengths);
  NUMBER(request_capacity);
  NUMBER(selection_stride_batch);
  NUMBER(selection_stride_token);
  NUMBER(selection_stride_head);
  NUMBER(score_scale);
  POINTER(group);
  NUMBER(group_rank);
  POINTER(full_lengths);
  POINTER(context_starts);
  POINTER(second_k);
  POINTER(second_v);
  POINTER(second_page_table);
  POINTER(second_lengths);
  NUMBER(second_page_table_stride);
  NUMBER(second_pool_pages);
  NUMBER(second_capacity);
#undef POINTER
#undef NUMBER
  return result;
}

/// The arguments of the last launch of a layer with a recurrent state.
std::optional<LeanRecurrentArgs> last_recurrent;

nb::object recurrent_arguments() {
  if (!last_recurrent) return nb::none();
  const LeanRecurrentArgs& args = *last_recurrent;
  nb::dict result;
#define POINTER(name) result[#name] = reinterpret_cast<Handle>(args.name)
#define NUMBER(name) result[#name] = args.name
  POINTER(slots);
  POINTER(accepted);
  POINTER(token_offsets);
  POINTER(q);
  POINTER(k);
  POINTER(v);
  POINTER(a);
  POINTER(b);
  POINTER(a_log);
  POINTER(dt_bias);
  POINTER(skip);
  POINTER(z);
  POINTER(norm_weight);
  POINTER(state);
  POINTER(o);
  POINTER(out_slots);
  POINTER(readers);
  POINTER(erase);
  POINTER(write);
  POINTER(ring_spans);
  POINTER(ring_u);
  POINTER(ring_k);
  POINTER(ring_w);
  NUMBER(ring_u_stride);
  NUMBER(ring_k_stride);
  NUMBER(ring_w_stride);
  NUMBER(erase_stride);
  NUMBER(write_stride);
  nb::list convolution;
  for (const LeanShortConv& part : args.conv)
    convolution.append(nb::make_tuple(reinterpret_cast<Handle>(part.weight), reinterpret_cast<Handle>(part.bias),
                                      reinterpret_cast<Handle>(part.state), part.slot_stride, part.channel_stride,
                                      part.token_stride));
  result["conv"] = convolution;
  NUMBER(q_stride);
  NUMBER(k_stride);
  NUMBER(v_stride);
  NUMBER(a_stride);
  NUMBER(b_stride);
  NUMBER(o_stride);
  NUMBER(z_stride);
  NUMBER(state_stride);
  NUMBER(slots_stride);
  NUMBER(out_slots_stride);
  NUMBER(slot_count);
  NUMBER(first_slot);
  NUMBER(scale);
  NUMBER(norm_eps);
  NUMBER(lower_bound);
  NUMBER(output_eps);
#undef POINTER
#undef NUMBER
  return result;
}

nb::list launches() {
  nb::list result;
  for (const FakeLaunch& launch : fake_gpu().launches) {
    nb::dict one;
    one["kernel"] = launch.kernel;
    one["grid"] = launch.grid;
    one["stream"] = handle_of(launch.stream);
    one["programmatic"] = launch.programmatic;
    one["cooperative"] = launch.cooperative;
    one["device"] = launch.device;
    one["arguments"] = arguments_of(launch);
    result.append(one);
  }
  return result;
}

}  // namespace

NB_MODULE(_fake_gpu, module) {
  reset();
  module.def("reset", &reset);
  module.def("run_page_rows", [] { fake_gpu().run = run_page_rows; });
  module.def("launches", &launches);
  module.def("keep_recurrent", [] {
    last_recurrent.reset();
    fake_gpu().run = [](const std::string& kernel, void** params) {
      if (kernel.starts_with("recurrent_")) last_recurrent = *static_cast<const LeanRecurrentArgs*>(params[0]);
    };
  });
  module.def("recurrent_arguments", &recurrent_arguments);
  module.def("calls", [](const std::string& name) { return fake_gpu().calls[name]; });
  module.def("fail_once",
             [](const std::string& name, int status) { fake_gpu().fail_once[name] = static_cast<CUresult>(status); });
  // What a kernel of the last launch does that waits in vain.
  module.def("report_fault", [] {
    LeanDecodeArgs args{};
    const auto& bytes = fake_gpu().launches.back().arguments;
    std::memcpy(&args, bytes.data(), std::min(sizeof args, bytes.size()));
    args.status->workspace = handle_of(args.tickets);
    args.status->fault = kLeanWaitedInVain;
  });
  // What the kernel of the last launch says of another rank of its group.
  module.def("report_rank", [](int rank, bool differs) {
    LeanDecodeArgs args{};
    const auto& bytes = fake_gpu().launches.back().arguments;
    std::memcpy(&args, bytes.data(), std::min(sizeof args, bytes.size()));
    args.status->workspace = handle_of(args.group);
    args.status->fault = (differs ? kLeanRankDiffers : kLeanRankMissing) | static_cast<unsigned>(rank)
                                                                               << kLeanRankShift;
  });
  module.def("set_devices", [](int count, bool peers_reach) {
    fake_gpu().devices = count;
    fake_gpu().peers_reach = peers_reach;
  });
  // Makes a stream one of a green context with so many SMs.
  module.def("set_stream_sms", [](Handle stream, int sms) { fake_gpu().green_streams[stream_of(stream)] = sms; });
  // What a launch sees of its group: for each rank, where the memory is into which it sends.
  module.def("exchanges", [](Handle group, int ranks) {
    nb::list result;
    for (int rank = 0; rank < ranks; ++rank)
      result.append(handle_of(static_cast<const LeanGroup*>(reinterpret_cast<void*>(group))->exchange[rank]));
    return result;
  });
  module.def("nccl_finds", [](int status) { fake_nccl().async_error = status; });
  module.def("nccl_moved", [] { return fake_nccl().bytes_moved.load(); });
  module.def("live_nccl_comms", [] { return fake_nccl().live_comms.load(); });
  module.def("make_nccl_comms", [](int ranks) {
    nb::list comms;
    for (ncclComm* const comm : make_fake_comms(ranks)) comms.append(handle_of(comm));
    return comms;
  });
  module.def("live_buffers", [] { return fake_gpu().live_buffers; });
  module.def("make_stream", [] {
    const WithContext scope;
    CUstream stream = nullptr;
    must(cuStreamCreate(&stream, 0));
    return handle_of(stream);
  });
  module.def("begin_capture",
             [](Handle stream) { must(cuStreamBeginCapture(stream_of(stream), CU_STREAM_CAPTURE_MODE_GLOBAL)); });
  module.def("end_capture", [](Handle stream) {
    CUgraph graph = nullptr;
    must(cuStreamEndCapture(stream_of(stream), &graph));
    return handle_of(graph);
  });
  module.def("destroy_graph", [](Handle graph) { must(cuGraphDestroy(reinterpret_cast<CUgraph>(graph))); });
  module.def("replay", [](Handle graph, Handle stream) {
    CUgraphExec exec = nullptr;
    must(cuGraphInstantiate(&exec, reinterpret_cast<CUgraph>(graph), 0));
    must(cuGraphLaunch(exec, stream_of(stream)));
    must(cuGraphExecDestroy(exec));
  });
}
