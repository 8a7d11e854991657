"""decode() and merge_partials() on a GPU, with PyTorch tensors, against attention in FP64."""
import pytest
import torch

import leanattn
import reference

TOLERANCE = {torch.bfloat16: 1.6e-2, torch.float16: 2e-3}


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(11)


def tensors(batch=3, q_heads=8, kv_heads=2, head_dim=128, context=300, tokens=1, dtype=torch.bfloat16, v_head_dim=None):
    """q, k_cache, v_cache and ragged context lengths; NaN in the cache behind every context."""
    q = torch.randn(batch, tokens, q_heads, head_dim, device="cuda", dtype=dtype)
    k = torch.randn(batch, kv_heads, context, head_dim, device="cuda", dtype=dtype)
    v = torch.randn(batch, kv_heads, context, v_head_dim or head_dim, device="cuda", dtype=dtype)
    lengths = torch.randint(tokens, context + 1, (batch,), dtype=torch.int32)
    for request, length in enumerate(lengths):
        k[request, :, length:], v[request, :, length:] = float("nan"), float("nan")
    return q if tokens > 1 else q[:, 0], k, v, lengths.cuda()


def expect(o, expected):
    torch.testing.assert_close(o.double(), expected.double(), rtol=0, atol=TOLERANCE[o.dtype])


def paged(cache, page_size, pages_each):
    """A pool [pages, kv_heads, page_size, head_dim] in another order, and its page table."""
    batch, heads, context, head_dim = cache.shape
    padded = torch.nn.functional.pad(cache, (0, 0, 0, pages_each * page_size - context))
    pages = padded.reshape(batch, heads, pages_each, page_size, head_dim).transpose(1, 2).reshape(-1, heads, page_size, head_dim)
    order = torch.randperm(len(pages), generator=torch.Generator().manual_seed(5)).cuda()
    pool = torch.empty_like(pages)
    pool[order] = pages
    return pool, order.reshape(batch, pages_each).int()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("heads", [(8, 8), (8, 2), (14, 2), (16, 1)])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_plain(dtype, heads, head_dim):
    inputs = tensors(q_heads=heads[0], kv_heads=heads[1], head_dim=head_dim, dtype=dtype)
    o, lse = leanattn.decode(*inputs, return_lse=True)
    expected, expected_lse = reference.decode(*inputs, return_lse=True)
    expect(o, expected)
    torch.testing.assert_close(lse, expected_lse, rtol=0, atol=1e-3)


@pytest.mark.parametrize("options", [{"window": 37}, {"window": 37, "sink_tokens": 4}, {"soft_cap": 3.0}, {"scale": 0.2}], ids=str)
@pytest.mark.parametrize("tokens", [1, 5])
def test_masks_and_scores(options, tokens):
    inputs = tensors(tokens=tokens)
    expect(leanattn.decode(*inputs, **options), reference.decode(*inputs, **options))


def test_sinks_alibi_and_full_mask():
    inputs = tensors(tokens=3)
    for options in ({"sink_logits": torch.randn(8, device="cuda")}, {"alibi_slopes": torch.rand(8, device="cuda")}, {"mask": "full"}):
        expect(leanattn.decode(*inputs, **options), reference.decode(*inputs, **options))
    plain = leanattn.decode(*inputs, score="score * 0.5f")
    expect(plain, reference.decode(*inputs, scale=0.5 * 128**-0.5))


def test_tree_mask_of_a_chain_is_causal():
    inputs = tensors(tokens=4)
    chain = torch.tensor([1, 3, 7, 15], dtype=torch.int32, device="cuda").repeat(3, 1)
    expect(leanattn.decode(*inputs, tree_mask=chain), reference.decode(*inputs))


@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("layout", ["HND", "NHD"])
def test_pages(page_size, layout):
    q, k, v, lengths = tensors()
    pages_each = -(-300 // page_size)
    (k_pool, table), (v_pool, _) = paged(k, page_size, pages_each), paged(v, page_size, pages_each)
    if layout == "NHD":
        k_pool, v_pool = k_pool.transpose(1, 2).contiguous(), v_pool.transpose(1, 2).contiguous()
    expect(leanattn.decode(q, k_pool, v_pool, lengths, table, kv_layout=layout), reference.decode(q, k, v, lengths))


def compressed(table, lengths, page_size, spare=5):
    """The same page table as (indptr, indices, last_page_len), with `spare` entries of indices that are nobody's."""
    pages = (lengths + page_size - 1) // page_size
    indptr = torch.cat([pages.new_zeros(1), pages.cumsum(0)]).int()
    indices = torch.cat([row[:count] for row, count in zip(table, pages.tolist())] + [table.new_full((spare,), 1 << 30)])
    return indptr, indices, torch.where(pages > 0, lengths - (pages - 1) * page_size, 0).int()


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("layout", ["HND", "NHD"])
def test_pages_in_compressed_rows(page_size, layout):
    q, k, v, lengths = tensors(batch=37)
    lengths[5] = 0
    pools = [paged(cache, page_size, 320 // page_size) for cache in (k, v)]
    k_pool, v_pool = [pool if layout == "HND" else pool.transpose(1, 2).contiguous() for pool, _ in pools]
    arrays = compressed(pools[0][1], lengths, page_size)
    expected = reference.decode(q, k, v, lengths)
    expect(leanattn.decode(q, k_pool, v_pool, None, arrays, kv_layout=layout), expected)
    table, made = leanattn.page_table(*arrays, page_size, max_pages=320 // page_size)
    assert torch.equal(made, lengths)
    expect(leanattn.decode(q, k_pool, v_pool, made, table, kv_layout=layout), expected)


def test_compressed_rows_on_another_stream_than_the_current_one():
    """What the current stream allocates and writes meanwhile is no memory of the launches."""
    q, k, v, lengths = tensors()
    (k_pool, table), (v_pool, _) = paged(k, 16, 20), paged(v, 16, 20)
    arrays, o, stream = compressed(table, lengths, 16), torch.empty_like(q), torch.cuda.Stream()
    step = lambda: leanattn.decode(q, k_pool, v_pool, None, arrays, out=o, stream=stream)
    step()  # compiles
    torch.cuda.synchronize()
    o.zero_()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
    step()
    others = [torch.zeros(size, device="cuda", dtype=torch.int32) for size in (len(q), table.numel(), len(q) * len(arrays[1])) for _ in range(4)]
    assert not stream.query(), "the launches have not run yet"
    torch.cuda.synchronize()
    del others
    expect(o, reference.decode(q, k, v, lengths))


def test_a_graph_follows_compressed_rows():
    q, k, v, lengths = tensors()
    (k_pool, table), (v_pool, _) = paged(k, 16, 20), paged(v, 16, 20)
    given = [array.clone() for array in compressed(table, lengths, 16, spare=60)]
    o = torch.empty_like(q)
    leanattn.decode(q, k_pool, v_pool, None, tuple(given), out=o)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        leanattn.decode(q, k_pool, v_pool, None, tuple(given), out=o)
    shorter = (lengths + 1) // 2
    for array, changed in zip(given, compressed(table, shorter, 16)):
        array[:len(changed)] = changed
    graph.replay()
    expect(o, reference.decode(q, k, v, shorter))


def test_token_major_caches_by_name_and_as_a_view():
    q, k, v, lengths = tensors()
    expected = reference.decode(q, k, v, lengths)
    token_major = [cache.transpose(1, 2).contiguous() for cache in (k, v)]
    expect(leanattn.decode(q, *token_major, lengths, kv_layout="NHD"), expected)
    expect(leanattn.decode(q, *(cache.transpose(1, 2) for cache in token_major), lengths), expected)


@pytest.mark.parametrize("q_heads", [8, 32, 64])  # kernels of other load paths
def test_expanded_views_are_read_as_copies(q_heads):
    q, _, _, lengths = tensors(q_heads=q_heads)
    k = torch.randn(1, 1, 300, 128, device="cuda", dtype=torch.bfloat16).expand(3, 2, -1, -1)
    v = torch.randn(3, 1, 300, 128, device="cuda", dtype=torch.bfloat16).expand(-1, 2, -1, -1)
    copies = [tensor.contiguous() for tensor in (k, v)]
    expect(leanattn.decode(q, k, v, lengths), reference.decode(q, *copies, lengths))
    alike = q[:, :1].expand(-1, q_heads, -1)
    assert torch.equal(leanattn.decode(alike, k, v, lengths), leanattn.decode(alike.contiguous(), *copies, lengths))


def test_an_empty_batch_has_an_empty_result_also_in_a_graph():
    none = [tensor[:0] for tensor in tensors()]
    assert leanattn.decode(*none).shape == (0, 8, 128)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o, lse = leanattn.decode(*none, return_lse=True)
    graph.replay()
    assert (o.shape, lse.shape) == ((0, 8, 128), (0, 8))


def test_ragged_query_tokens():
    q, k, v, lengths = tensors(tokens=4)
    lengths = lengths.clamp(min=4)
    counts = [3, 0, 4]
    offsets = torch.tensor([0, 3, 3, 7], dtype=torch.int32, device="cuda")
    rows = torch.cat([q[request, 4 - count:] for request, count in enumerate(counts)])
    k, v = k.nan_to_num(), v.nan_to_num()
    o = leanattn.decode(rows, k, v, lengths, q_offsets=offsets, max_q_len=4)
    expected = reference.decode(q, k, v, lengths)
    expect(o, torch.cat([expected[request, 4 - count:] for request, count in enumerate(counts)]))


# (query tokens, context) of each request.
STEPS = {"a prompt": [(513, 513)], "prompts": [(300, 300), (17, 17), (64, 64)], "a chunk": [(257, 1500)],
         "a mixed step": [(1, 1200), (400, 400), (0, 33), (130, 1000), (1, 1), (5, 77)]}


def packed(step, **more):
    """q, k_cache, v_cache, context lengths and query offsets of a step."""
    new, contexts = zip(*step)
    q, k, v, _ = tensors(batch=len(step), context=max(contexts), **more)
    rows = torch.randn(sum(new), *q.shape[1:], device="cuda", dtype=q.dtype)
    offsets = torch.tensor([0, *torch.tensor(new).cumsum(0).tolist()], dtype=torch.int32, device="cuda")
    return rows, k.nan_to_num(), v.nan_to_num(), torch.tensor(contexts, dtype=torch.int32, device="cuda"), offsets


@pytest.mark.parametrize("options", [{}, {"window": 100}, {"window": 60, "sink_tokens": 4}, {"soft_cap": 3.0}, {"sink_logits": [1.0, -2.0] * 4}], ids=str)
@pytest.mark.parametrize("page_size", [None, 1, 16])
@pytest.mark.parametrize("step", STEPS)
def test_prefill_beside_decode(step, page_size, options):
    q, k, v, lengths, offsets = packed(STEPS[step])
    if "sink_logits" in options:
        options = {"sink_logits": torch.tensor(options["sink_logits"], device="cuda")}
    expected, expected_lse = reference.decode(q, k, v, lengths, q_offsets=offsets, return_lse=True, **options)
    caches, table = (k, v), None
    if page_size is not None:
        pages = -(-k.shape[2] // page_size)
        (k_pool, table), (v_pool, _) = paged(k, page_size, pages), paged(v, page_size, pages)
        caches = k_pool, v_pool
    o, lse = leanattn.decode(q, *caches, lengths, table, q_offsets=offsets, max_q_len=131072, return_lse=True, **options)
    expect(o, expected)
    torch.testing.assert_close(lse, expected_lse, rtol=0, atol=2e-3)


@pytest.mark.parametrize("head_dim, v_head_dim", [(64, 64), (256, 256), (192, 128)])
def test_prefill_of_other_head_sizes(head_dim, v_head_dim):
    q, k, v, lengths, offsets = packed(STEPS["a mixed step"], head_dim=head_dim, v_head_dim=v_head_dim)
    expect(leanattn.decode(q, k, v, lengths, q_offsets=offsets, max_q_len=131072), reference.decode(q, k, v, lengths, q_offsets=offsets))


def test_a_graph_serves_any_mix_of_prefill_and_decode():
    """Up to the query tokens and requests that it was captured for."""
    q, k, v, lengths, offsets = packed([(600, 1500), (1, 900), (3, 40)])
    leanattn.decode(q, k, v, lengths, q_offsets=offsets, max_q_len=131072)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = leanattn.decode(q, k, v, lengths, q_offsets=offsets, max_q_len=131072)
    for new, contexts in (((600, 1, 3), (1500, 900, 40)), ((1, 1, 1), (1, 1500, 700)), ((0, 604, 0), (9, 604, 9)), ((33, 500, 71), (33, 1500, 71))):
        q.copy_(torch.randn_like(q))
        lengths.copy_(torch.tensor(contexts))
        offsets[1:] = torch.tensor(new).cumsum(0)
        graph.replay()
        used = sum(new)
        expect(o[:used], reference.decode(q[:used], k, v, lengths, q_offsets=offsets))


@pytest.mark.parametrize("scale", ["tensor", "head", "token"])
@pytest.mark.parametrize("name", ["int8", "float8_e4m3fn"])
def test_one_byte_caches(name, scale):
    q, k, v, lengths = tensors()
    k, v = k.nan_to_num(), v.nan_to_num()
    small, scales, wide = [], [], []
    for cache in (k, v):
        most = {"tensor": cache.abs().amax().reshape(1), "head": cache.abs().amax((0, 2, 3)), "token": cache.abs().amax(3)}[scale].float().clamp(min=1e-3)
        each = most / (127.0 if name == "int8" else 448.0)
        shaped = {"tensor": each, "head": each[None, :, None, None], "token": each[..., None]}[scale] if scale != "tensor" else each
        values = cache.float() / shaped
        small.append(values.round().to(torch.int8) if name == "int8" else values.to(torch.float8_e4m3fn))
        scales.append(each.contiguous())
        wide.append((small[-1].float() * shaped).to(torch.float32))
    given = small if name == "int8" else [cache.view(torch.uint8) for cache in small]
    o = leanattn.decode(q, *given, lengths, k_scale=scales[0], v_scale=scales[1], kv_dtype=None if name == "int8" else "fp8_e4m3")
    expect(o, reference.decode(q, *wide, lengths))


def test_append_and_rotation_write_the_cache():
    q, k, v, lengths = tensors()
    k, v = k.nan_to_num(), v.nan_to_num()
    k_new, v_new = (torch.randn(3, 2, 128, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    angle = torch.arange(300, device="cuda")[:, None] / 10000 ** (torch.arange(64, device="cuda") / 64)
    table = torch.cat((angle.cos(), angle.sin()), -1).contiguous()

    def turned(x, position):
        cosine, sine = angle[position].cos()[:, None], angle[position].sin()[:, None]
        a, b = x.float().chunk(2, -1)
        return torch.cat((a * cosine - b * sine, b * cosine + a * sine), -1).to(x.dtype)

    last = lengths.long() - 1
    rows = torch.arange(3, device="cuda")
    k_expected, v_expected = k.clone(), v.clone()
    k_expected[rows, :, last], v_expected[rows, :, last] = turned(k_new, last), v_new
    o = leanattn.decode(q, k, v, lengths, k_new=k_new, v_new=v_new, rope_table=table)
    torch.testing.assert_close(k.float(), k_expected.float(), rtol=0, atol=3.2e-2)
    assert torch.equal(v, v_expected)
    expect(o, reference.decode(turned(q, last), k_expected, v_expected, lengths))


def test_other_options_change_no_result():
    inputs = tensors()
    expected = reference.decode(*inputs)
    for options in ({"batch_invariant": True}, {"pdl": True}, {"max_batch": 64}, {"longest_context": 7, "total_context": 7}):
        expect(leanattn.decode(*inputs, **options), expected)
    out = torch.full_like(inputs[0], float("nan"))
    assert leanattn.decode(*inputs, out=out) is out
    expect(out, expected)


def test_an_empty_request_is_zero():
    q, k, v, lengths = tensors()
    lengths[1] = 0
    o, lse = leanattn.decode(q, k, v, lengths, return_lse=True)
    assert not o[1].any() and (lse[1] == -float("inf")).all()
    expect(o, reference.decode(q, k, v, lengths))


def test_merge_is_attention_over_the_whole():
    q, k, v, _ = tensors(context=256)
    k, v = torch.randn_like(k), torch.randn_like(v)
    half = torch.full((3,), 128, dtype=torch.int32, device="cuda")
    parts = [leanattn.decode(q, k[:, :, i:i + 128], v[:, :, i:i + 128], half, return_lse=True) for i in (0, 128)]
    o, lse = leanattn.merge_partials([o for o, _ in parts], [lse for _, lse in parts], return_lse=True)
    expected, expected_lse = reference.decode(q, k, v, half * 2, return_lse=True)
    expect(o, expected)
    torch.testing.assert_close(lse, expected_lse, rtol=0, atol=2e-3)


def test_each_stream_has_its_own_workspace():
    inputs = tensors(batch=1, context=20000)
    expected = reference.decode(*inputs)
    streams = [torch.cuda.Stream() for _ in range(4)]
    torch.cuda.synchronize()
    outs = []
    for _ in range(20):
        for stream in streams:
            with torch.cuda.stream(stream):
                outs.append(leanattn.decode(*inputs))
    torch.cuda.synchronize()
    for o in outs:
        expect(o, expected)


def test_a_graph_follows_lengths_and_gives_its_workspace_back():
    engine = leanattn.Engine()
    q, k, v, lengths = tensors()
    k, v = k.nan_to_num(), v.nan_to_num()
    leanattn.decode(q, k, v, lengths, engine=engine)
    held = None
    for _ in range(5):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            o = [leanattn.decode(q, k, v, lengths, engine=engine) for _ in range(4)]
        for length in (1, 77, 300):
            lengths.fill_(length)
            graph.replay()
            for layer in o:
                expect(layer, reference.decode(q, k, v, lengths))
        torch.cuda.synchronize()
        del graph, o
        held = held or engine.workspace_bytes
        assert engine.workspace_bytes == held


def test_a_capture_before_the_first_call_says_what_to_do():
    inputs = tensors(head_dim=96)
    engine = leanattn.Engine()
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(leanattn.NotPrepared, match="before the capture") as caught:
        with torch.cuda.graph(graph):
            leanattn.decode(*inputs, engine=engine)
    assert caught.value.code == "not_prepared"
    torch.cuda.synchronize()
    expect(leanattn.decode(*inputs, engine=engine), reference.decode(*inputs))


@pytest.mark.parametrize("argument, change", [
    ("q", lambda t: t.cpu()), ("q", lambda t: t.float()), ("q", lambda t: t[..., ::2]), ("q", lambda t: t[0]),
    ("k_cache", lambda t: t.cpu()), ("k_cache", lambda t: t.half()), ("k_cache", lambda t: t[:2]), ("k_cache", lambda t: t[..., :64]),
    ("k_cache", lambda t: t.transpose(2, 3)), ("v_cache", lambda t: t[:, :, 1:]),
    ("context_lengths", lambda t: t.cpu()), ("context_lengths", lambda t: t.long()), ("context_lengths", lambda t: t[:2]),
    ("context_lengths", lambda t: [1, 2, 3]),
])
def test_bad_tensors_are_named(argument, change):
    given = dict(zip(("q", "k_cache", "v_cache", "context_lengths"), tensors(), strict=True))
    given[argument] = change(given[argument])
    with pytest.raises((TypeError, ValueError)) as caught:
        leanattn.decode(**given)
    # A mismatch of k_cache with v_cache or q may be said of either.
    assert str(caught.value).split()[0] in {argument, "v_cache", "k_cache"} and isinstance(caught.value, leanattn.Error)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_tensors_of_two_gpus_are_refused_by_name():
    q, k, v, lengths = tensors()
    with pytest.raises(ValueError, match="context_lengths is on CUDA device 1"):
        leanattn.decode(q, k, v, lengths.to("cuda:1"))


def selected(q, k, v, lengths, lists, counts, block):
    """Attention in FP64 of one query token a request to the blocks of its lists, [batch, kv_heads or 1, entries]; tokens behind the context are masked."""
    batch, q_heads, head_dim = q.shape
    kv_heads = k.shape[1]
    group, o = q_heads // kv_heads, torch.zeros(batch, q_heads, v.shape[3], dtype=torch.float64, device=q.device)
    for request in range(batch):
        for head in range(kv_heads):
            entries = lists[request, head % lists.shape[1], :counts[request]].tolist()
            tokens = [token for entry in entries if entry >= 0 for token in range(entry * block, (entry + 1) * block) if token < lengths[request]]
            heads = slice(head * group, (head + 1) * group)
            if tokens:
                logits = q[request, heads].double() @ k[request, head, tokens].double().T * head_dim**-0.5
                o[request, heads] = logits.softmax(-1) @ v[request, head, tokens].double()
    return o


@pytest.mark.parametrize("page_size", [16, 64])
@pytest.mark.parametrize("block", [1, 16, 64])
@pytest.mark.parametrize("shared", [False, True])
def test_a_selection(page_size, block, shared):
    q, k, v, lengths = tensors(context=700)
    pages_each = -(-700 // page_size)
    (k_pool, table), (v_pool, _) = paged(k, page_size, pages_each), paged(v, page_size, pages_each)
    blocks = -(-700 // block)
    lists = torch.stack([torch.randperm(blocks)[:-(-blocks // 2)] for _ in range(3 * (1 if shared else 2))]).view(3, -1, -(-blocks // 2)).int().cuda()
    lists[:, :, ::5] = -1
    counts = torch.tensor([lists.shape[2], 0, lists.shape[2] - 1], dtype=torch.int32, device="cuda")
    options = {"selected_counts": counts, "selection_block": block}
    expected = selected(q, k, v, lengths, lists, counts, block)
    expect(leanattn.decode(q, k_pool, v_pool, lengths, table, selection=lists, **options), expected)
    if page_size % block == 0:  # the same tokens as places in the pool, of blocks that lie in the context as a whole
        lists[(lists + 1) * block > lengths[:, None, None]] = -1
        expected = selected(q, k, v, lengths, lists, counts, block)
        pages = table[torch.arange(3, device="cuda")[:, None, None], (lists.clamp(min=0) * block // page_size).long()]
        places = torch.where(lists < 0, -1, pages * (page_size // block) + lists % (page_size // block)).int()
        expect(leanattn.decode(q, k_pool, v_pool, None, selection=places, **options), expected)


def test_selected_tokens_of_a_latent_cache():
    q = torch.randn(3, 2, 16, 576, device="cuda", dtype=torch.bfloat16)
    pool = torch.randn(40, 1, 64, 576, device="cuda", dtype=torch.bfloat16)
    selection = torch.stack([torch.randperm(40 * 64)[:500] for _ in range(6)]).view(3, 2, 1, 500).int().cuda()
    counts = torch.tensor([[500, 1], [0, 250], [63, 64]], dtype=torch.int32, device="cuda")
    o = leanattn.decode(q, pool, None, None, v_head_dim=512, scale=0.05, selection=selection, selected_counts=counts)
    rows = pool.view(-1, 576).double()
    for request in range(3):
        for token in range(2):
            seen = rows[selection[request, token, 0, :counts[request, token]].long()]
            weights = (q[request, token].double() @ seen.T * 0.05).softmax(-1)
            expect(o[request, token], weights @ seen[:, :512] if len(seen) else torch.zeros_like(o[request, token]).double())


@pytest.mark.parametrize("page_size, block", [(16, 1), (16, 64), (64, 16)])
def test_a_second_cache_beside_selected_blocks(page_size, block):
    q, k, v, lengths = tensors(context=700)
    pages_each = -(-700 // page_size)
    (k_pool, table), (v_pool, _) = paged(k, page_size, pages_each), paged(v, page_size, pages_each)
    blocks = -(-700 // block)
    lists = torch.stack([torch.randperm(blocks)[:-(-blocks // 3)] for _ in range(6)]).view(3, 2, -1).int().cuda()
    counts = torch.tensor([lists.shape[2], 0, lists.shape[2] - 1], dtype=torch.int32, device="cuda")
    window_k, window_v = (torch.randn(3, 2, 2 * 64, 128, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    (second_k, second_table), (second_v, _) = paged(window_k, page_size, 128 // page_size), paged(window_v, page_size, 128 // page_size)
    second_lengths = torch.tensor([128, 37, 0], dtype=torch.int32, device="cuda")
    o = leanattn.decode(q, k_pool, v_pool, lengths, table, selection=lists, selected_counts=counts, selection_block=block, second_k_cache=second_k,
                        second_v_cache=second_v, second_page_table=second_table, second_lengths=second_lengths)
    group = q.shape[1] // 2
    for request in range(3):
        for head in range(q.shape[1]):
            kv_head = head // group
            chosen = lists[request, kv_head, :counts[request]].long()
            tokens = (chosen[:, None] * block + torch.arange(block, device="cuda")).flatten()
            tokens = tokens[tokens < lengths[request]]
            own = second_lengths[request]
            keys = torch.cat([k[request, kv_head, tokens], window_k[request, kv_head, :own]]).double()
            values = torch.cat([v[request, kv_head, tokens], window_v[request, kv_head, :own]]).double()
            weights = (q[request, head].double() @ keys.T * q.shape[-1] ** -0.5).softmax(-1)
            expect(o[request, head], weights @ values)


@pytest.mark.parametrize("heads, rows", [(16, False), (128, False), (16, True), (128, True)])
def test_a_second_cache_beside_selected_tokens_of_a_latent_cache(heads, rows):
    q = torch.randn(3, 2, heads, 576, device="cuda", dtype=torch.bfloat16)
    columns, window = (torch.randn(pages, 64, 576, device="cuda", dtype=torch.bfloat16) for pages in (40, 9))
    (cache, values), (second, second_values) = (ds_mla_rows(x) if rows else (x, x) for x in (columns, window))
    selection = torch.stack([torch.randperm(40 * 64)[:500] for _ in range(6)]).view(3, 2, 1, 500).int().cuda()
    counts = torch.tensor([[500, 1], [0, 250], [63, 64]], dtype=torch.int32, device="cuda")
    table = torch.randperm(9)[:6].view(3, 2).int().cuda()
    second_lengths = torch.tensor([[128, 127], [3, 0], [0, 64]], dtype=torch.int32, device="cuda")
    o = leanattn.decode(q, cache, None, None, v_head_dim=512, scale=0.05, selection=selection, selected_counts=counts, second_k_cache=second,
                        second_page_table=table, second_lengths=second_lengths, **({"kv_dtype": "fp8_ds_mla"} if rows else {}))
    values, second_values = values.reshape(-1, 576).double(), second_values.double()
    for request in range(3):
        for token in range(2):
            own = second_values[table[request].long()].reshape(-1, 576)[:second_lengths[request, token]]
            seen = torch.cat([values[selection[request, token, 0, :counts[request, token]].long()], own])
            weights = (q[request, token].double() @ seen.T * 0.05).softmax(-1)
            expect(o[request, token], weights @ seen[:, :512] if len(seen) else torch.zeros_like(o[request, token]).double())


def ds_mla_rows(columns):
    """[..., 576] bf16 as rows of 656 bytes, as vLLM's concat_and_cache_mla writes them, and the values that they then have, [..., 576] fp32."""
    latent = columns[..., :512].float().unflatten(-1, (4, 128))
    # Divided by a tensor, because on a GPU PyTorch multiplies by the reciprocal of a number, which may differ in the last bit.
    scales = latent.abs().amax(-1, keepdim=True) / torch.full((), 448.0, device=columns.device)
    quantised = (latent / scales).to(torch.float8_e4m3fn)
    rows = torch.cat([quantised.flatten(-2).view(torch.uint8), scales.squeeze(-1).contiguous().view(torch.uint8),
                      columns[..., 512:].contiguous().view(torch.uint8)], -1)
    return rows, torch.cat([(quantised.float() * scales).flatten(-2), columns[..., 512:].float()], -1)


@pytest.mark.parametrize("heads", [16, 128])
def test_new_rows_are_stored_as_engines_quantise_them_and_seen_as_stored(heads):
    sizes = torch.tensor([1e-2, 1.0, 30.0, 1e3], device="cuda").repeat_interleave(128)
    q = torch.randn(3, heads, 576, device="cuda")
    q[..., :512] /= sizes
    columns = torch.randn(40, 64, 576, device="cuda")
    columns[..., :512] *= sizes
    k_new = torch.randn(3, 1, 576, device="cuda")
    k_new[..., :512] *= sizes
    k_new[1, :, 128:256] = 0
    rows, values = ds_mla_rows(columns.bfloat16())
    q, k_new = q.bfloat16(), k_new.bfloat16()
    table = torch.randperm(40)[:39].view(3, 13).int().cuda()
    lengths = torch.tensor([800, 1, 130], dtype=torch.int32, device="cuda")
    last = (lengths - 1).long()
    places = table[torch.arange(3, device="cuda"), last // 64].long() * 64 + last % 64
    expected_rows, expected_values = ds_mla_rows(k_new.squeeze(1))
    # The smallest normal number is the scale of a group of zeros, whose bytes would be those of NaN otherwise.
    expected_rows[1, 128:256], expected_values[1, 128:256] = 0, 0
    expected_rows[1, 516:520] = torch.tensor([torch.finfo(torch.float32).tiny]).view(torch.uint8).cuda()
    before = rows.clone()
    o = leanattn.decode(q, rows, None, lengths, table, v_head_dim=512, scale=0.05, kv_dtype="fp8_ds_mla", k_new=k_new)
    before.view(-1, 656)[places] = expected_rows
    assert torch.equal(rows, before)
    values = values.view(-1, 576).double()
    values[places] = expected_values.double()
    for request in range(3):
        tokens = torch.arange(int(lengths[request]), device="cuda")
        seen = values[table[request].long()[tokens // 64] * 64 + tokens % 64]
        expected = (q[request].double() @ seen.T * 0.05).softmax(-1) @ seen[:, :512]
        torch.testing.assert_close(o[request].double() / sizes, expected / sizes, rtol=0, atol=0.03)


@pytest.mark.parametrize("heads", [16, 128])
def test_rows_that_engines_quantise(heads):
    # Groups of very different sizes, which q makes up for. Scales have all their bits, and values are rounded to bf16 in the kernel.
    sizes = torch.tensor([1e-2, 1.0, 30.0, 1e3], device="cuda").repeat_interleave(128)
    q = torch.randn(3, heads, 576, device="cuda")
    q[..., :512] /= sizes
    columns = torch.randn(40, 64, 576, device="cuda")
    columns[..., :512] *= sizes
    rows, values = ds_mla_rows(columns.bfloat16())
    q, values = q.bfloat16(), values.view(-1, 576).double()
    table = torch.randperm(40)[:39].view(3, 13).int().cuda()
    lengths = torch.tensor([800, 1, 130], dtype=torch.int32, device="cuda")
    selection = torch.stack([torch.randperm(40 * 64)[:500] for _ in range(3)]).view(3, 1, 500).int().cuda()
    counts = torch.tensor([500, 64, 0], dtype=torch.int32, device="cuda")
    paged = leanattn.decode(q, rows, None, lengths, table, v_head_dim=512, scale=0.05, kv_dtype="fp8_ds_mla")
    chosen = leanattn.decode(q, rows, None, None, v_head_dim=512, scale=0.05, kv_dtype="fp8_ds_mla", selection=selection, selected_counts=counts)
    for request in range(3):
        tokens = torch.arange(int(lengths[request]), device="cuda")
        places = table[request].long()[tokens // 64] * 64 + tokens % 64
        for o, seen in ((paged, values[places]), (chosen, values[selection[request, 0, :counts[request]].long()])):
            expected = (q[request].double() @ seen.T * 0.05).softmax(-1) @ seen[:, :512] if len(seen) else torch.zeros(heads, 512, device="cuda").double()
            torch.testing.assert_close(o[request].double() / sizes, expected / sizes, rtol=0, atol=0.03)


def ds_v4_pages(columns, pages):
    """Writes [pages, 64, 512] bf16 into padded pages [pages, 65 * 576] uint8 as vLLM's quantize_and_insert_k_cache does; the values that they then have."""
    latent = columns[..., :448].float().unflatten(-1, (7, 64))
    exponents = (latent.abs().amax(-1, keepdim=True).clamp(min=1e-4) / 448).log2().ceil()
    quantised = (latent / exponents.exp2()).to(torch.float8_e4m3fn)
    data = torch.cat([quantised.flatten(-2).view(torch.uint8), columns[..., 448:].contiguous().view(torch.uint8)], -1)
    pages[:, :64 * 576] = data.flatten(1)
    scales = torch.nn.functional.pad((exponents.squeeze(-1) + 127).to(torch.uint8), (0, 1))
    pages[:, 64 * 576:64 * 584] = scales.flatten(1)
    return torch.cat([(quantised.float() * exponents.exp2()).flatten(-2), columns[..., 448:].float()], -1)


@pytest.mark.parametrize("heads", [16, 64, 128])
def test_rows_whose_scales_lie_behind_those_of_their_page(heads):
    q = torch.randn(3, heads, 512, device="cuda", dtype=torch.bfloat16)
    columns, window = (torch.randn(pages, 64, 512, device="cuda", dtype=torch.bfloat16) for pages in (40, 9))
    memory, second_memory = (torch.full((pages, 65 * 576), 0xa5, device="cuda", dtype=torch.uint8) for pages in (40, 9))
    values, second_values = ds_v4_pages(columns, memory).view(-1, 512).double(), ds_v4_pages(window, second_memory).double()
    rows, second = (pages.as_strided((len(pages), 64, 584), (65 * 576, 584, 1)) for pages in (memory, second_memory))
    given = {"v_head_dim": 512, "scale": 0.05, "kv_dtype": "fp8_ds_v4"}
    table = torch.randperm(40)[:39].view(3, 13).int().cuda()
    lengths = torch.tensor([800, 1, 130], dtype=torch.int32, device="cuda")
    # New rows become the bytes that engines would write, and are seen as these.
    k_new = torch.randn(3, 1, 512, device="cuda", dtype=torch.bfloat16)
    last = (lengths - 1).long()
    at = torch.arange(3, device="cuda")
    places = table[at, last // 64].long() * 64 + last % 64
    columns.view(-1, 512)[places] = k_new.squeeze(1)
    expected = memory.clone()
    values = ds_v4_pages(columns, expected).view(-1, 512).double()
    o = leanattn.decode(q, rows, None, lengths, table, k_new=k_new, **given)
    assert torch.equal(memory, expected)
    selection = torch.stack([torch.randperm(40 * 64)[:500] for _ in range(3)]).view(3, 1, 500).int().cuda()
    counts = torch.tensor([500, 64, 0], dtype=torch.int32, device="cuda")
    second_table = torch.randperm(9)[:6].view(3, 2).int().cuda()
    second_lengths = torch.tensor([128, 37, 0], dtype=torch.int32, device="cuda")
    chosen = leanattn.decode(q, rows, None, None, selection=selection, selected_counts=counts, second_k_cache=second, second_page_table=second_table,
                             second_lengths=second_lengths, **given)
    for request in range(3):
        tokens = torch.arange(int(lengths[request]), device="cuda")
        own = second_values[second_table[request].long()].reshape(-1, 512)[:second_lengths[request]]
        for result, seen in ((o, values[table[request].long()[tokens // 64] * 64 + tokens % 64]),
                             (chosen, torch.cat([values[selection[request, 0, :counts[request]].long()], own]))):
            weights = (q[request].double() @ seen.T * 0.05).softmax(-1)
            expect(result[request], weights @ seen if len(seen) else torch.zeros_like(result[request]).double())
