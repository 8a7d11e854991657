"""torch.ops.leanattn as compiled models see it, on the CPU, where a reference stands for the kernels."""
import functools

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import leanattn.torch  # noqa: E402
import reference  # noqa: E402

Q_HEADS, KV_HEADS, HEAD_DIM = 8, 2, 64


@pytest.fixture
def compiled(monkeypatch):
    """Lets the real operators compute on the CPU, and gives torch.compile, which traces as ever, but compiles nothing."""
    monkeypatch.setattr(leanattn.torch, "_decode", reference_of)
    torch._dynamo.reset()
    return functools.partial(torch.compile, backend="aot_eager", fullgraph=True, dynamic=True)


def reference_of(*given, out, out_lse=None, k_new=None, v_new=None, **options):
    """Rows of new tokens are of the last tokens of each request, in its pages."""
    q, k_cache, v_cache, lengths, table = given
    if k_new is not None:
        for request, (begin, end) in enumerate(zip(options["q_offsets"].tolist(), options["q_offsets"].tolist()[1:])):
            for row in range(begin, end):
                token = int(lengths[request]) - (end - row)
                k_cache[table[request, token // 16], :, token % 16], v_cache[table[request, token // 16], :, token % 16] = k_new[row], v_new[row]
    if out_lse is None:
        return reference.decode(*given, out=out, **options)
    o, lse = reference.decode(*given, return_lse=True, **options)
    return out.copy_(o), out_lse.copy_(lse)


def test_compiled_models_pack_any_number_of_query_tokens(compiled):
    """The results have the shapes that the compiler was told, and one compilation serves any number of tokens."""
    def step(q, k_cache, v_cache, k_new, v_new, lengths, table, offsets):
        o = torch.ops.leanattn.decode_append(q * 1.5, k_cache, v_cache, k_new, v_new, lengths, table, q_offsets=offsets, max_q_len=131072)
        again, lse = torch.ops.leanattn.decode_with_lse(o.sin(), k_cache, v_cache, lengths, table, q_offsets=offsets, max_q_len=131072)
        return torch.ops.leanattn.decode(again + 1, k_cache, v_cache, lengths, table, q_offsets=offsets, max_q_len=131072), lse + o.sum(-1)

    run = compiled(step)
    torch.manual_seed(2)
    for new in ((40, 1, 300), (1, 70, 16), (200, 3, 0)):
        q = torch.randn(sum(new), Q_HEADS, HEAD_DIM)
        pools = torch.randn(2, 80, KV_HEADS, 16, HEAD_DIM)
        k_new, v_new = torch.randn(2, sum(new), KV_HEADS, HEAD_DIM)
        table = torch.randperm(80)[:3 * 20].reshape(3, 20).to(torch.int32)
        lengths = torch.tensor([max(new[0], 290), 33 + new[1], new[2] + 2], dtype=torch.int32)
        offsets = torch.tensor([0, *torch.tensor(new).cumsum(0).tolist()], dtype=torch.int32)
        kept = pools.clone()
        expected = step(q, *kept, k_new, v_new, lengths, table, offsets)
        arguments = (q, *kept, k_new, v_new, lengths, table), {"q_offsets": offsets, "max_q_len": 131072}
        for name, of in (("decode", (0, 1, 2, 5, 6)), ("decode_with_lse", (0, 1, 2, 5, 6)), ("decode_append", range(7))):
            torch.library.opcheck(getattr(torch.ops.leanattn, name).default, tuple(arguments[0][index] for index in of), arguments[1],
                                  test_utils=("test_schema", "test_faketensor"))
        with torch.compiler.set_stance("default" if new == (40, 1, 300) else "fail_on_recompile"):
            o, lse = run(q, *pools, k_new, v_new, lengths, table, offsets)
        assert (o.shape, lse.shape) == (q.shape, q.shape[:-1]) and torch.equal(pools, kept)
        torch.testing.assert_close((o, lse), expected)
