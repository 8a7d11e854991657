"""What the operators of torch.ops.leanattn launch, on a GPU that is not there. PyTorch is not needed."""
import functools
import importlib
import types

import pytest

fake = pytest.importorskip("_fake_gpu", reason="built with the tests only")

import engine_stand_in  # noqa: E402
import leanattn  # noqa: E402
from fake_tensors import FastTensor  # noqa: E402

Q_HEADS, KV_HEADS, HEAD_DIM = 8, 2, 64


class Library:
    def __init__(self, *_):
        self.functions = {}

    def define(self, schema, **_):
        pass

    def impl(self, name, function, _):
        self.functions[name] = function


@pytest.fixture
def operators(engines):
    """The functions of the operators by name."""
    torch = types.ModuleType("torch")
    torch.library = types.SimpleNamespace(Library=Library, register_fake=lambda *_, **__: None)
    torch.Tag, torch.float32 = types.SimpleNamespace(pt2_compliant_tag=0, needs_fixed_stride_order=1), "float32"
    with engine_stand_in.in_place({"torch": torch}, "torch", "leanattn.torch"):
        module = importlib.import_module("leanattn.torch")
        module._decode = functools.partial(leanattn.decode, engine=leanattn.engine(0))
        yield module._library.functions


@pytest.mark.parametrize("name", ["decode", "decode_with_lse", "decode_append"])
def test_a_captured_launch_serves_any_mix_of_prefill_and_decode(operators, name):
    """The packed query tokens are its capacity. Offsets and lengths stay where they are, for what a replay brings."""
    batch, tokens = 3, 5000
    q, pools = FastTensor((tokens, Q_HEADS, HEAD_DIM)), [FastTensor((400, KV_HEADS, 16, HEAD_DIM)) for _ in range(2)]
    new = [FastTensor((tokens, KV_HEADS, HEAD_DIM)) for _ in range(2)] if name == "decode_append" else []
    offsets, lengths, table = FastTensor((batch + 1,), "int32"), FastTensor((batch,), "int32"), FastTensor((batch, 512), "int32")
    step = functools.partial(operators[name], q, *pools, *new, lengths, table, q_offsets=offsets, max_q_len=131072, window=300)
    step()  # loads the kernel
    FastTensor.current_stream = stream = fake.make_stream()
    fake.begin_capture(stream)
    made = step()
    graph = fake.end_capture(stream)
    fake.replay(graph, stream)
    o, lse = made if name == "decode_with_lse" else (made, None)
    assert o.shape == q.shape and (lse is None or (lse.shape, lse.dtype) == ((tokens, Q_HEADS), "fp32"))
    given = fake.launches()[-1]["arguments"]
    assert (given["q"], given["o"], given["lse"]) == (q.data, o.data, 0 if lse is None else lse.data)
    assert (given["batch"], given["query_tokens"], given["q_offsets"], given["context_lengths"]) == (batch, tokens, offsets.data, lengths.data)
    assert [given["k_new"], given["v_new"]] == [tensor.data for tensor in new] or not new
    fake.destroy_graph(graph)


def test_an_operator_writes_nothing_that_its_schema_does_not_say(operators):
    """New rows of caches with scales of tokens or of blocks would write these scales, too."""
    pools, new = [FastTensor((40, KV_HEADS, 16, HEAD_DIM // 2), "uint8") for _ in range(2)], [FastTensor((3, KV_HEADS, HEAD_DIM)) for _ in range(2)]
    q, lengths, table = FastTensor((3, Q_HEADS, HEAD_DIM)), FastTensor((3,), "int32"), FastTensor((3, 9), "int32")
    int4 = {"kv_dtype": "int4", **{name: FastTensor((40, KV_HEADS, 16), "fp32") for name in ("k_scale", "v_scale")}}
    nvfp4 = {"kv_dtype": "nvfp4", **{f"{of}_block_scales": FastTensor((40, KV_HEADS, 16, HEAD_DIM // 16), "uint8") for of in ("k", "v")}}
    for options in (int4, nvfp4):
        assert operators["decode"](q, *pools, lengths, table, **options).shape == q.shape  # two columns of V are a byte
        before = len(fake.launches())
        with pytest.raises(NotImplementedError, match="leanattn.decode"):
            operators["decode_append"](q, *pools, *new, lengths, table, **options)
        assert len(fake.launches()) == before


@pytest.mark.parametrize("name", ["decode", "decode_with_lse", "decode_append"])
def test_an_empty_batch_has_empty_results_and_no_launch(operators, name):
    q, caches = FastTensor((0, Q_HEADS, HEAD_DIM)), [FastTensor((0, KV_HEADS, 256, HEAD_DIM)) for _ in range(2)]
    new = [FastTensor((0, KV_HEADS, HEAD_DIM)) for _ in range(2)] if name == "decode_append" else []
    before = len(fake.launches())
    made = operators[name](q, *caches, *new, FastTensor((0,), "int32"))
    o, lse = made if name == "decode_with_lse" else (made, None)
    assert o.shape == q.shape and (lse is None or lse.shape == (0, Q_HEADS))
    assert len(fake.launches()) == before
