"""_frameworks.py -- what DLPack does not say of a framework: its current stream, and how it makes a tensor.

Called by the compiled half, for PyTorch only where it has no C exchange interface. No framework is imported that the program has not.
"""
import sys


def stream_handle(stream):
    """A stream object's handle as an integer; None where it has none."""
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        return int((protocol() if callable(protocol) else protocol)[1])
    for name in ("cuda_stream", "ptr"):
        handle = getattr(stream, name, None)
        if isinstance(handle, int):
            return handle
    return None


def current_stream(tensor):
    """The handle of the current stream of the tensor's framework, and whether a call has to wait for its own work."""
    module = _framework(tensor)
    if module == "torch":
        return sys.modules["torch"].cuda.current_stream(tensor.device).cuda_stream, False
    if module == "cupy":
        with tensor.device:
            return sys.modules["cupy"].cuda.get_current_stream().ptr, False
    # JAX has streams of its own, which cannot be told to wait for another.
    return 0, module in ("jax", "jaxlib")


def empty(like, shape, fp32):
    """A new tensor beside `like`, of its type or of fp32."""
    module = _framework(like)
    if module == "torch":
        return like.new_empty(shape, dtype=sys.modules["torch"].float32 if fp32 else like.dtype)
    if module == "cupy":
        with like.device:
            return sys.modules["cupy"].empty(shape, dtype="float32" if fp32 else like.dtype)
    if module in ("jax", "jaxlib"):
        jax = sys.modules["jax"]
        made = jax.numpy.zeros(shape, dtype="float32" if fp32 else like.dtype, device=like.device)
        return made.block_until_ready()
    new_empty = getattr(like, "new_empty", None)
    if new_empty is not None:
        return new_empty(shape, dtype="float32") if fp32 else new_empty(shape)
    from .errors import ArgumentError

    raise ArgumentError(f"out is missing, and how {type(like).__module__} makes a tensor is not known", "invalid_argument", "Give out, and out_lse.")


def _framework(tensor):
    """The framework's name by the classes of the tensor, so that subclasses count as what they are of."""
    for base in type(tensor).__mro__:
        name = base.__module__.partition(".")[0]
        if name in ("torch", "cupy", "jax", "jaxlib"):
            return name
    return ""
