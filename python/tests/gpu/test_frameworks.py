"""Tensors of other frameworks than PyTorch, on their own current stream."""
import pytest
import torch

import leanattn
import reference

SHAPES = [(2, 8, 128), (2, 2, 200, 128), (2, 2, 200, 128)]


def data(dtype=torch.float16):
    torch.manual_seed(2)
    q, k, v = (torch.randn(shape, device="cuda", dtype=dtype) for shape in SHAPES)
    return q, k, v, torch.tensor([200, 77], dtype=torch.int32, device="cuda")


def test_cupy():
    cupy = pytest.importorskip("cupy")
    inputs = data()
    torch.cuda.synchronize()
    given = [cupy.from_dlpack(tensor) for tensor in inputs]
    with cupy.cuda.Stream(non_blocking=True) as stream:
        o, lse = leanattn.decode(*given, return_lse=True)
        assert isinstance(o, cupy.ndarray) and lse.dtype == cupy.float32
        stream.synchronize()
    torch.testing.assert_close(torch.from_dlpack(o), reference.decode(*inputs), rtol=0, atol=2e-3)


def test_cupy_graph():
    cupy = pytest.importorskip("cupy")
    inputs = data()
    torch.cuda.synchronize()
    given = [cupy.from_dlpack(tensor) for tensor in inputs]
    out = cupy.empty_like(given[0])
    with cupy.cuda.Stream(non_blocking=True) as stream:
        leanattn.decode(*given, out=out)
        stream.begin_capture()
        leanattn.decode(*given, out=out)
        graph = stream.end_capture()
        out.fill(0)
        graph.launch(stream)
        stream.synchronize()
    torch.testing.assert_close(torch.from_dlpack(out), reference.decode(*inputs), rtol=0, atol=2e-3)


def test_jax():
    jax = pytest.importorskip("jax")
    if not any(device.platform == "gpu" for device in jax.devices()):
        pytest.skip("JAX finds no GPU")
    inputs = data(torch.bfloat16)
    torch.cuda.synchronize()
    given = [jax.dlpack.from_dlpack(tensor) for tensor in inputs]
    o = leanattn.decode(*given)
    assert isinstance(o, jax.Array) and o.dtype == jax.numpy.bfloat16
    torch.testing.assert_close(torch.from_dlpack(o), reference.decode(*inputs), rtol=0, atol=1.6e-2)


@pytest.mark.parametrize("make", [lambda s: s, lambda s: s.cuda_stream], ids=["object", "handle"])
def test_a_stream_by_name(make):
    inputs = data()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    o = leanattn.decode(*inputs, stream=make(stream))
    stream.synchronize()
    torch.testing.assert_close(o, reference.decode(*inputs), rtol=0, atol=2e-3)
