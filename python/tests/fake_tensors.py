"""fake_tensors.py -- tensors on a GPU that is not there: host memory that says it is CUDA memory, through DLPack and nothing else.

FakeTensor has `__dlpack__`, as any framework; FastTensor has the C exchange interface instead, as PyTorch.
"""
import ctypes
import math

CPU, CUDA = 1, 2
TYPES = {"bf16": (4, 16), "fp16": (2, 16), "fp32": (2, 32), "int32": (0, 32), "int64": (0, 64), "uint32": (1, 32), "int8": (0, 8), "uint8": (1, 8),
         "fp8_e4m3": (10, 8), "fp8_e5m2": (12, 8)}


class Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", Device), ("ndim", ctypes.c_int32), ("dtype", DataType), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class Managed(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("manager", ctypes.c_void_p), ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p))]


class Versioned(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("manager", ctypes.c_void_p), ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
                ("flags", ctypes.c_uint64), ("tensor", Tensor)]


class Exchange(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("previous", ctypes.c_void_p), ("allocate", ctypes.c_void_p),
                ("managed_from_object", ctypes.c_void_p), ("managed_to_object", ctypes.c_void_p),
                ("view", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(Tensor))),
                ("stream", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p)))]


_capsule = ctypes.pythonapi.PyCapsule_New
_capsule.restype, _capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class FakeTensor:
    """`strides` in elements; None: row-major. `offset` elements into memory that is 256-byte aligned; a tensor without elements has none.
    `borrowed` counts capsules not given back."""

    def __init__(self, shape, dtype="bf16", strides=None, device=CUDA, device_id=0, offset=0, version=(1, 0)):
        self.shape, self.dtype, self.device_type, self.device_id, self.version = tuple(shape), dtype, device, device_id, version
        self.dense = [math.prod(self.shape[i + 1:]) for i in range(len(self.shape))]
        self.strides = tuple(strides or self.dense)
        self.memory = ctypes.create_string_buffer(256 + 16)  # never read: launches do not run
        self.data = 0 if 0 in self.shape else (ctypes.addressof(self.memory) + 255) // 256 * 256 + offset * TYPES[dtype][1] // 8
        self.no_strides = strides is None
        self.borrowed, self.streams, self._kept, self._arrays = 0, [], [], []

    def new_empty(self, shape, dtype=None):
        made = type(self)(shape, {None: self.dtype, "float32": "fp32"}[dtype], device_id=self.device_id)
        self._kept.append(made)  # a framework keeps its memory for what the stream still does, and tests look at that
        return made

    def fill(self, tensor):
        code, bits = TYPES[self.dtype]
        count = len(self.shape)
        shape, strides = ((ctypes.c_int64 * max(count, 1))(*sizes) for sizes in (self.shape, self.strides))
        self._arrays.append((shape, strides))  # a call may be given the tensor twice
        tensor.data, tensor.byte_offset, tensor.ndim = self.data, 0, count
        tensor.device, tensor.dtype = Device(self.device_type, self.device_id), DataType(code, bits, 1)
        tensor.shape, tensor.strides = shape, None if self.no_strides else strides

    def __dlpack_device__(self):
        return self.device_type, self.device_id

    def __dlpack__(self, *, stream=None, max_version=None):
        self.streams.append(stream)
        newer = max_version is not None and self.version is not None
        made = Versioned(*self.version) if newer else Managed()
        self.fill(made.tensor)

        def give_back(_):
            self.borrowed -= 1

        made.deleter = type(made.deleter)(give_back)
        self.borrowed += 1
        self._kept.append(made)
        return _capsule(ctypes.addressof(made), b"dltensor_versioned" if newer else b"dltensor", None)


class OldTensor(FakeTensor):
    """Of before DLPack 1.0: takes no max_version."""

    def __dlpack__(self, *, stream=None):
        return super().__dlpack__(stream=stream)


class FastTensor(FakeTensor):
    """`current_stream` is what its framework would answer."""

    current_stream = 0

    def __dlpack__(self, **_):
        raise AssertionError("the exchange interface is there to be used")


def _view(tensor, out):
    tensor.fill(out[0])
    return 0


def _stream(device_type, device_id, out):
    out[0] = FastTensor.current_stream or None
    return 0


_NAME = b"dlpack_exchange_api"  # a capsule keeps no copy of its name
_exchange = Exchange(1, 3, None, None, None, None, dict(Exchange._fields_)["view"](_view), dict(Exchange._fields_)["stream"](_stream))
FastTensor.__dlpack_c_exchange_api__ = _capsule(ctypes.addressof(_exchange), _NAME, None)
