"""torch.ops.leanattn on a GPU: as an operator, under torch.compile, and in its CUDA graphs."""
import pytest
import torch

import leanattn.torch  # noqa: F401
import reference


def data(context=256):
    torch.manual_seed(4)
    q = torch.randn(2, 8, 64, device="cuda", dtype=torch.bfloat16)
    k, v = (torch.randn(2, 2, context, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return q, k, v, torch.tensor([context, 100], dtype=torch.int32, device="cuda")


def expect(o, expected):
    torch.testing.assert_close(o.double(), expected.double(), rtol=0, atol=1.6e-2)


def test_opcheck():
    inputs = data()
    checks = ("test_schema", "test_faketensor")
    for operator in (torch.ops.leanattn.decode, torch.ops.leanattn.decode_with_lse):
        torch.library.opcheck(operator.default, inputs, {"window": 50}, test_utils=checks)
    q, k, v, lengths = inputs
    new = [torch.randn(2, 2, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    torch.library.opcheck(torch.ops.leanattn.decode_append.default, (q, k, v, *new, lengths), test_utils=checks)


def step(q, k, v, lengths):
    """Work around two launches, so that there is something to fuse and to order."""
    o = torch.ops.leanattn.decode(q * 1.5, k, v, lengths, window=90)
    return torch.ops.leanattn.decode(o.sin(), k, v, lengths) + 1


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_compiled(mode):
    q, k, v, lengths = data()
    compiled = torch.compile(step, mode=mode, fullgraph=True)
    for turn in range(5):
        lengths.fill_(50 * turn + 7)
        q = torch.randn_like(q)
        torch.compiler.cudagraph_mark_step_begin()
        first = reference.decode(q * 1.5, k, v, lengths, window=90)
        expect(compiled(q, k, v, lengths), reference.decode(first.sin(), k, v, lengths) + 1)


def test_compiled_with_a_growing_cache():
    compiled = torch.compile(lambda q, k, v, lengths: torch.ops.leanattn.decode(q, k, v, lengths), dynamic=True, fullgraph=True)
    for context in (64, 65, 190):
        inputs = data(context)
        inputs[3].clamp_(max=context)
        expect(compiled(*inputs), reference.decode(*inputs))


def test_compiled_with_batches_that_may_be_empty():
    compiled = torch.compile(lambda q, k, v, lengths: torch.ops.leanattn.decode_with_lse(q, k, v, lengths), dynamic=True, fullgraph=True)
    for batch in (2, 0, 1):
        inputs = [tensor[:batch] for tensor in data()]
        o, lse = compiled(*inputs)
        assert (o.shape, lse.shape) == ((batch, 8, 64), (batch, 8))
        if batch:
            expect(o, reference.decode(*inputs))


def test_append_writes_under_compile():
    def write_and_read(q, k, v, k_new, v_new, lengths):
        o = torch.ops.leanattn.decode_append(q, k, v, k_new, v_new, lengths)
        return o, v.sum()  # reads what the operator has written

    q, k, v, lengths = data()
    k_new, v_new = (torch.randn(2, 2, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    expected_v = v.clone()
    expected_v[torch.arange(2), :, lengths.long() - 1] = v_new
    o, total = torch.compile(write_and_read, fullgraph=True)(q, k, v, k_new, v_new, lengths)
    assert torch.equal(v, expected_v)
    torch.testing.assert_close(total, expected_v.sum(), rtol=1e-2, atol=1.0)
    expect(o, reference.decode(q, k, v, lengths))


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_compiled_with_prefill_beside_decode(mode):
    def step(q, k, v, lengths, offsets):
        return torch.ops.leanattn.decode(q * 1.5, k, v, lengths, q_offsets=offsets, max_q_len=131072).sin()

    compiled = torch.compile(step, mode=mode, fullgraph=True)
    _, k, v, lengths = data(700)
    for new, contexts in (((300, 1), (700, 600)), ((1, 300), (1, 300)), ((150, 151), (150, 699))):
        q = torch.randn(301, 8, 64, device="cuda", dtype=torch.bfloat16)
        lengths.copy_(torch.tensor(contexts))
        offsets = torch.tensor([0, new[0], 301], dtype=torch.int32, device="cuda")
        torch.compiler.cudagraph_mark_step_begin()
        expect(compiled(q, k, v, lengths, offsets), reference.decode(q * 1.5, k, v, lengths, q_offsets=offsets).sin())


def test_operators_in_a_graph_of_ones_own():
    q, k, v, lengths = data()
    torch.ops.leanattn.decode_with_lse(q, k, v, lengths)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o, lse = torch.ops.leanattn.decode_with_lse(q, k, v, lengths)
    lengths.fill_(33)
    graph.replay()
    expected, expected_lse = reference.decode(q, k, v, lengths, return_lse=True)
    expect(o, expected)
    torch.testing.assert_close(lse, expected_lse, rtol=0, atol=2e-3)
