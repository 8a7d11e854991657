"""read_limit.py -- kernels that only read. No decode kernel that reads the same bytes from memory can take less time.

The kernels are those of templates/standalone/read_limit.cuh, in the same variants as the tuner has them; the fastest variant counts.
"""
import ctypes
import dataclasses
import pathlib

from . import cuda_driver

SOURCE = pathlib.Path(__file__).resolve().parents[2] / "templates" / "standalone/read_limit.cuh"


@dataclasses.dataclass(frozen=True)
class Variant:
    name: str
    kernel: str  # entry point
    ctas_per_sm: int
    threads: int
    stage_bytes: int = 0  # bulk: bytes a copy; 0: plain loads
    stages: int = 0  # bulk: copies in flight a CTA


PLAIN = [
    Variant("plain 2x512x4", "read_limit_plain_4", 2, 512),
    Variant("plain 4x512x4", "read_limit_plain_4", 4, 512),
    Variant("plain 2x512x8", "read_limit_plain_8", 2, 512),
]
BULK = [
    Variant(f"bulk {ctas}x{stages}x{kilobytes}k", "read_limit_bulk", ctas, 32, kilobytes << 10, stages)
    for ctas, stages, kilobytes in [(3, 8, 8), (2, 6, 16), (4, 8, 4), (1, 8, 8)]
]


class ReadLimit:
    """Every variant that exists on this GPU, compiled. `capability` is (major, minor), `sink` a device pointer to 4 bytes."""

    def __init__(self, capability, sm_count, shared_bytes_per_sm, sink):
        self.sm_count, self.sink = sm_count, sink
        module = cuda_driver.Module(cuda_driver.compile_source(SOURCE.read_text(), cuda_driver.architecture(*capability)))
        # The system takes 1 KB of shared memory for each CTA.
        fitting = [v for v in BULK if v.ctas_per_sm * (v.stages * v.stage_bytes + 1024) <= shared_bytes_per_sm]
        self.variants = PLAIN + (fitting if capability[0] >= 9 else [])
        # Variants share an entry point, whose limit of shared memory is set once for all of them.
        most = {v.kernel: max(w.stages * w.stage_bytes for w in self.variants if w.kernel == v.kernel) for v in self.variants}
        self.kernels = {kernel: module.kernel(kernel, shared_bytes) for kernel, shared_bytes in most.items()}

    def launch(self, variant, a, b, bytes_each, stream):
        """Enqueues one read of two arrays of bytes_each, a positive multiple of 16; a and b are device pointers aligned to 16 bytes."""
        if bytes_each <= 0 or bytes_each % 16:
            raise ValueError(f"a read of {bytes_each} bytes: give a positive multiple of 16")
        arguments = [ctypes.c_void_p(a), ctypes.c_void_p(b), ctypes.c_longlong(bytes_each // 16), ctypes.c_void_p(self.sink)]
        if variant.stage_bytes:
            arguments += [ctypes.c_int(variant.stage_bytes), ctypes.c_int(variant.stages)]
        cuda_driver.launch(self.kernels[variant.kernel], self.sm_count * variant.ctas_per_sm, variant.threads,
                           variant.stage_bytes * variant.stages, stream, *arguments)
