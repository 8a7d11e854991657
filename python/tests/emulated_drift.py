"""emulated_drift.py -- states of leanattn.recurrent after many steps, on the emulator: the kernel that a GPU would run, executed on the CPU.

    LD_LIBRARY_PATH=build/test/tests/emulator/cuda LEANATTN_NVRTC_DIR=build/test/tests/emulator/nvrtc python3 python/tests/emulated_drift.py [STEPS]

The error against FP64 of a small layer's states, fp32 and bf16, stays within twice that of a plain fp32 implementation in NumPy, and outputs of steps that
replay a ring are to the bit those of steps that store the state. gpu/test_recurrent.py has 10,000 steps of larger layers on a GPU. Prints a line for each case;
exit code 1: an error was too large.
"""
import ctypes
import sys

import numpy

import leanattn
from fake_tensors import FakeTensor

REQUESTS, QK_HEADS, V_HEADS, KEY_DIM, VALUE_DIM = 2, 1, 2, 32, 32
TIMES = 2
ARRAYS = {"fp32": numpy.float32, "int32": numpy.int32}


def driver():
    library, device, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_void_p()
    for name, arguments in (("cuInit", [0]), ("cuDeviceGet", [ctypes.byref(device), 0]), ("cuDevicePrimaryCtxRetain", [ctypes.byref(context), device]),
                            ("cuCtxSetCurrent", [context])):
        assert getattr(library, name)(*arguments) == 0, name
    return library


class DeviceTensor(FakeTensor):
    """In the emulator's memory. Arrays of bf16 are of fp32 here."""

    driver = None

    def __init__(self, shape, dtype="bf16", **more):
        super().__init__(shape, dtype, **more)
        self.elements = int(numpy.prod(self.shape))
        pointer = ctypes.c_uint64()
        assert self.driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(self.elements * 4)) == 0
        self.data = pointer.value

    def write(self, values):
        self._copy("cuMemcpyHtoDAsync_v2", bits_of(values) if self.dtype == "bf16" else values.astype(ARRAYS[self.dtype]), to_device=True)
        return self

    def read(self):
        values = numpy.empty(self.shape, numpy.uint16 if self.dtype == "bf16" else ARRAYS[self.dtype])
        self._copy("cuMemcpyDtoHAsync_v2", values, to_device=False)
        return (values.astype(numpy.uint32) << 16).view(numpy.float32) if self.dtype == "bf16" else values

    def _copy(self, function, values, to_device):
        """The emulator draws when a copy lands, so that both sides wait for it."""
        values = numpy.ascontiguousarray(values)
        ends = [ctypes.c_uint64(self.data), ctypes.c_void_p(values.ctypes.data)]
        assert getattr(self.driver, function)(*(ends if to_device else ends[::-1]), ctypes.c_size_t(values.nbytes), None) == 0
        assert self.driver.cuStreamSynchronize(None) == 0


def bits_of(values):
    """bf16, rounded to the nearest even."""
    bits = values.astype(numpy.float32).view(numpy.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(numpy.uint16)


def rounded(values):
    return (bits_of(values).astype(numpy.uint32) << 16).view(numpy.float32).astype(values.dtype)


def plain(state, q, k, v, a, b, a_log, dt_bias):
    """One token of the gated delta rule in the type of `state`."""
    q, k, v, a, b, a_log, dt_bias = (array.astype(state.dtype) for array in (q, k, v, a, b, a_log, dt_bias))
    one = state.dtype.type(1)
    q, k = (x / numpy.sqrt((x * x).sum(-1, keepdims=True) + state.dtype.type(1e-6)) for x in (q, k))
    q, k = (numpy.repeat(x, V_HEADS // QK_HEADS, 1) for x in (q, k))
    state = state * numpy.exp(-numpy.exp(a_log) * numpy.log1p(numpy.exp(a + dt_bias)))[..., None, None]
    u = (v - numpy.einsum("rhvk,rhk->rhv", state, k)) / (one + numpy.exp(-b))[..., None]
    return state + u[..., None] * k[..., None, :]


def rms(values):
    return float(numpy.sqrt((values.astype(numpy.float64) ** 2).mean()))


SHAPES = {"q": (REQUESTS, QK_HEADS, KEY_DIM), "k": (REQUESTS, QK_HEADS, KEY_DIM), "v": (REQUESTS, V_HEADS, VALUE_DIM), "a": (REQUESTS, V_HEADS),
          "b": (REQUESTS, V_HEADS)}


def of_all_steps(a_log, dt_bias):
    return {"slots": DeviceTensor((REQUESTS,), "int32").write(numpy.arange(REQUESTS)), "out": DeviceTensor(SHAPES["v"]),
            "a_log": DeviceTensor((V_HEADS,), "fp32").write(a_log), "dt_bias": DeviceTensor((V_HEADS,), "fp32").write(dt_bias)}


def drift(state_type, steps):
    """The errors of leanattn's states and of the plain ones, over the root mean square of the exact ones."""
    random = numpy.random.default_rng(4)
    a_log, dt_bias = numpy.array([-9, -2], numpy.float32), random.standard_normal(V_HEADS, numpy.float32)
    shapes, fixed = SHAPES, of_all_steps(a_log, dt_bias)
    tensors = {name: DeviceTensor(shape) for name, shape in shapes.items()}
    of_plain = numpy.zeros((REQUESTS, V_HEADS, VALUE_DIM, KEY_DIM), numpy.float32)
    exact, state = of_plain.astype(numpy.float64), DeviceTensor(of_plain.shape, state_type).write(of_plain)
    for _ in range(steps):
        given = {name: rounded(random.standard_normal(shape, numpy.float32)) for name, shape in shapes.items()}
        leanattn.recurrent(state=state, **{name: tensors[name].write(values) for name, values in given.items()}, **fixed)
        of_plain, exact = (plain(each, **given, a_log=a_log, dt_bias=dt_bias) for each in (of_plain, exact))
        of_plain = rounded(of_plain) if state_type == "bf16" else of_plain
    assert rms(exact) > 0.01
    return [rms(found - exact) / rms(exact) for found in (state.read(), of_plain)]


def differing(steps, entries=5):
    """Steps whose output differs between a state that is stored and one whose ring is replayed; of each request every other token is accepted."""
    random = numpy.random.default_rng(5)
    fixed = of_all_steps(numpy.array([-9, -2], numpy.float32), random.standard_normal(V_HEADS, numpy.float32))
    tensors = {name: DeviceTensor(shape) for name, shape in SHAPES.items()}
    pool = random.standard_normal((REQUESTS, V_HEADS, VALUE_DIM, KEY_DIM), numpy.float32)
    stored, replayed = (DeviceTensor(pool.shape, "fp32").write(pool) for _ in range(2))
    ring = tuple(DeviceTensor((REQUESTS, entries, *of_entry), "fp32") for of_entry in ((V_HEADS, VALUE_DIM), (QK_HEADS, KEY_DIM), (V_HEADS,)))
    on_device, spans, found = DeviceTensor((REQUESTS, 2), "int32"), numpy.array([[0, 0], [3, 0]]), 0
    for step in range(steps):
        given = {name: tensors[name].write(rounded(random.standard_normal(shape, numpy.float32))) for name, shape in SHAPES.items()}
        before, outputs = stored.read(), []
        for state, more in ((stored, {}), (replayed, {"ring": ring, "ring_spans": on_device.write(spans)})):
            leanattn.recurrent(state=state, **given, **fixed, **more)
            outputs.append(fixed["out"].read())
        found += not numpy.array_equal(*outputs)
        accepted = (step + numpy.arange(REQUESTS)) % 2
        first, count = spans.T
        flushed = count + 2 > entries
        spans = numpy.stack([numpy.where(flushed, (first + count) % entries, first), numpy.where(flushed, 0, count) + accepted], 1)
        stored.write(numpy.where(accepted[:, None, None, None], stored.read(), before))  # a rejected token has not happened
    return found


def main():
    DeviceTensor.driver = driver()
    steps, failed = int(sys.argv[1]) if len(sys.argv) > 1 else 40, False
    for state_type in ("fp32", "bf16"):
        ours, of_plain = drift(state_type, steps)
        failed |= not ours <= TIMES * of_plain
        print(f"{state_type}: {ours:.3g} after {steps} steps, and {of_plain:.3g} of the plain implementation", flush=True)
    found = differing(steps)
    print(f"{found} of {steps} steps differ with a ring", flush=True)
    return int(failed or found > 0)


if __name__ == "__main__":
    sys.exit(main())
