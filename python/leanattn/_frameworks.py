"""_frameworks.py -- what DLPack does not offer: the current stream of a framework, and a new tensor of it.

The compiled half calls these functions; for PyTorch only where it has no C exchange interface. They import no framework that the program
has not imported.
"""
import sys


def stream_handle(stream):
    """The handle of a stream object as an integer; None where it has none."""
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        return int((protocol() if callable(protocol) else protocol)[1])
    for name in ("cuda_stream", "ptr"):
        handle = getattr(stream, name, None)
        if isinstance(handle, int):
            return handle
    return None


def current_stream(tensor):
    """The handle of the current stream of the tensor's framework, and whether a call must wait for its work."""
    module = _framework(tensor)
    if module == "torch":
        return sys.modules["torch"].cuda.current_stream(tensor.device).cuda_stream, False
    if module == "cupy":
        with tensor.device:
            return sys.modules["cupy"].cuda.get_current_stream().ptr, False
    # The streams of JAX cannot wait for another stream.
    return 0, module in ("jax", "jaxlib")


def empty(like, shape, fp32):
    """A new tensor on the GPU of `like`, with its element type or fp32."""
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
    """The framework of a tensor, by its classes and their bases; empty where it is unknown."""
    for base in type(tensor).__mro__:
        name = base.__module__.partition(".")[0]
        if name in ("torch", "cupy", "jax", "jaxlib"):
            return name
    return ""
