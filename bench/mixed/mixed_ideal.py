"""mixed_ideal.py -- how fast N SMs read pieces of pages, and what time that leaves for a step that mixes decodes and prefill."""
import ctypes
import time

import torch

from peers import cuda_driver, measure, systems, timing
import mixed_data

PIECE_BYTES = 4096  # 16 tokens of one KV head of 128 bf16 columns
WARPS, STAGES = 8, 6  # WARPS * STAGES pieces are in flight on an SM: 192 KiB
READ_BYTES = 1 << 30
POOL_READS = 4  # launches in turn read different parts of a pool of this many times READ_BYTES
WATCH_SECONDS = 0.4  # a kernel runs for so long before clocks and power are read

SOURCE = r"""
constexpr int kPieceBytes = PIECE_BYTES, kWarps = WARPS, kStages = STAGES;

// pool: [pieces in all, kPieceBytes]; order: [pieces], which of them to read. One CTA an SM. The first thread of each warp keeps kStages pieces in
// flight and looks at none of them.
extern "C" __global__ void __launch_bounds__(kWarps * 32) read_pieces(const char* pool, const int* order, int pieces) {
  extern __shared__ __align__(128) char ring[];
  __shared__ __align__(8) unsigned long long full[kWarps * kStages];
  if (threadIdx.x % 32 != 0) return;
  const int warp = threadIdx.x / 32, first = blockIdx.x * kWarps + warp, step = gridDim.x * kWarps;
  const unsigned barriers = (unsigned)__cvta_generic_to_shared(full + warp * kStages);
  const unsigned stages = (unsigned)__cvta_generic_to_shared(ring + warp * kStages * kPieceBytes);
  for (int i = 0; i < kStages; i++) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barriers + 8 * i) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta;" ::: "memory");
  const int count = first < pieces ? (pieces - first - 1) / step + 1 : 0;
  int piece = count > 0 ? order[first] : 0;
  for (int i = 0; i < count + kStages; i++) {
    const int next = i + 1 < count ? order[first + (i + 1) * step] : 0;  // on its way while this thread waits
    const unsigned barrier = barriers + 8 * (i % kStages);
    const unsigned parity = (i / kStages + 1) & 1;
    for (unsigned done = i < kStages; !done;)
      asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                   : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
    if (i < count) {
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(kPieceBytes) : "memory");
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(stages + i % kStages * kPieceBytes),
                   "l"(pool + (long long)piece * kPieceBytes), "r"(kPieceBytes), "r"(barrier) : "memory");
    }
    piece = next;
  }
}
"""


def source():
    text = SOURCE
    for name in ("PIECE_BYTES", "WARPS", "STAGES"):
        text = text.replace(f" = {name}", f" = {globals()[name]}")
    return text


def watched(replay):
    """NVML's clocks and power while a graph is replayed."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    replay()
    end.record()
    torch.cuda.synchronize()
    for _ in range(max(1, round(2 * WATCH_SECONDS * 1000 / begin.elapsed_time(end)))):
        replay()
    time.sleep(WATCH_SECONDS)
    state = measure.gpu_state()
    torch.cuda.synchronize()
    return state


def timed(launch, copies, launches):
    """Microseconds a launch, and what NVML says meanwhile."""
    replay = timing.Replay(launch, copies, launches)
    samples, = timing.race([replay], 0, seed=1)
    return sorted(samples)[len(samples) // 2], watched(replay)


def reads():
    """For several N: how fast N SMs read."""
    properties = torch.cuda.get_device_properties(0)
    module = cuda_driver.Module(cuda_driver.compile_source(source(), cuda_driver.architecture(properties.major, properties.minor)))
    shared_bytes = WARPS * STAGES * PIECE_BYTES
    kernel = module.kernel("read_pieces", shared_bytes)
    pieces = READ_BYTES // PIECE_BYTES
    pool = torch.ones(POOL_READS * READ_BYTES, dtype=torch.uint8, device="cuda")
    order = torch.randperm(POOL_READS * pieces, device="cuda").to(torch.int32).view(POOL_READS, pieces)
    found = []
    arguments = [(ctypes.c_void_p(pool.data_ptr()), ctypes.c_void_p(part.data_ptr()), ctypes.c_int(pieces)) for part in order]
    for sms in [*(n for n in (8, 16, 24, 32, 40, 48, 56, 66, 80, 100, 116) if n < properties.multi_processor_count), properties.multi_processor_count]:
        def launch(copy):
            cuda_driver.launch(kernel, sms, WARPS * 32, shared_bytes, systems.stream(), *arguments[copy])

        us, state = timed(launch, POOL_READS, POOL_READS)
        found.append({"sms": sms, "us": us, "gbps": READ_BYTES / us / 1e3, "gpu_state": state})
        print(f"{sms} SMs read {found[-1]['gbps']:.0f} GB/s", flush=True)
    return found


def time_of(decode_bytes, prefill_us, found):
    """(microseconds in which all SMs read the bytes, microseconds of the ideal), by what reads() has found."""
    sms, one = max(each["sms"] for each in found), max(each["gbps"] / each["sms"] for each in found)
    decode_us = decode_bytes / max(each["gbps"] for each in found) / 1e3
    return decode_us, max(decode_us, (decode_bytes / (one * 1e3) + prefill_us * sms) / sms)


def of_step(step, flash3, options, found):
    """The record of a mixed step: FlashAttention-3's time for the requests that are no decodes, and the ideal."""
    copies = mixed_data.copies_for(step, torch.cuda.get_device_properties(0).L2_cache_size)
    data = mixed_data.StepData(step, copies, options.seed, options.layout)
    decodes, rest = (data.part(*requests) for requests in step.parts())
    run, splits, _ = flash3.best(rest)
    output = rest.output()
    us, state = timed(lambda copy: run(copy, output), copies, timing.launches_for(rest.case.kv_bytes, copies, rest.case.flops))
    decode_us, ideal_us = time_of(decodes.case.kv_bytes, us, found)
    return {"name": step.name, "decode_bytes": decodes.case.kv_bytes, "decode_us": decode_us, "prefill_us": us, "splits": splits, "ideal_us": ideal_us,
            "gpu_state": state}
