"""The backend of vLLM on a GPU that is not there, in a vLLM that is not there: which rows go where, and what arrives at the driver."""
import dataclasses
import math
import sys
import types

import pytest

fake = pytest.importorskip("_fake_gpu", reason="built with the tests only")

import leanattn  # noqa: E402
import simulated_program  # noqa: E402
import vllm_stand_in as stand_in  # noqa: E402
from vllm_stand_in import Tensor  # noqa: E402

np = pytest.importorskip("numpy")
Q_HEADS, KV_HEADS, HEAD_DIM, PAGE, PAGES, WIDTH = 8, 2, 64, 16, 32, 8
GRAPHS, MOST_REQUESTS, MOST_TOKENS, LONGEST = (1, 2, 4), 4, 64, WIDTH * PAGE
ENCODER_LONGEST = 1500
INTERLEAVE = 8  # tokens that one of several ranks has in a row
ANY_NUMBER = 131072  # of query tokens
ALIBI = {"alibi_slopes": [0.5] * Q_HEADS}
VARIABLE, TUNE = "LEANATTN_VLLM_CONTEXT", "LEANATTN_VLLM_TUNE"


#: Caches in which a token of a head has its scale behind its row: what kernels of it are called, and the bytes of a row.
INLINE = {"int4_per_token_head": ("_i4r_", lambda columns: columns // 2), "int8_per_token_head": ("_i8r_", lambda columns: columns),
          "fp8_per_token_head": ("_e4m3r_", lambda columns: columns)}


@pytest.fixture(params=stand_in.VERSIONS)
def version(request):
    return request.param


@pytest.fixture
def adapter(version, engines, monkeypatch):
    torch = types.SimpleNamespace(tensor=lambda values, dtype: Tensor((len(values),), dtype), float32="fp32")
    with stand_in.installed(version) as module:
        monkeypatch.setitem(sys.modules, "torch", torch)
        yield module


class Model:
    """A model of one kind of layer, as vLLM knows it after loading: its configuration, a layer and the builder of its metadata."""

    def __init__(self, adapter, speculative=0, ranks=1, kv_cache_dtype="auto", scale_heads=1, layout="NHD", images=False, clamped=False, decode_graphs=True,
                 **implementation):
        self.head_dim, stand_in.group.world_size = implementation.pop("head_size", HEAD_DIM), ranks
        # vLLM has context parallelism only where ranks share a KV head.
        backend, kv_heads = adapter.Backend, implementation.pop("num_kv_heads", KV_HEADS if ranks == 1 else 1)
        given = {"alibi_slopes": None, "sliding_window": None, "kv_cache_dtype": kv_cache_dtype, **implementation}
        self.impl = backend.get_impl_cls()(Q_HEADS, self.head_dim, self.head_dim**-0.5, kv_heads, **given)
        scale = lambda: Tensor((scale_heads,) if scale_heads > 1 else (), "fp32")  # noqa: E731
        self.layer = types.SimpleNamespace(impl=self.impl, _k_scale=scale(), _v_scale=scale(), _q_scale=scale(), mm_prefix_clamp_sliding_window=clamped)
        self.config = types.SimpleNamespace(
            model_config=types.SimpleNamespace(max_model_len=LONGEST, dtype="torch.bfloat16", is_mm_prefix_lm=images, rswa_window=None),
            scheduler_config=types.SimpleNamespace(max_num_seqs=MOST_REQUESTS, max_num_batched_tokens=MOST_TOKENS,
                                                   max_num_encoder_input_tokens=ENCODER_LONGEST),
            parallel_config=types.SimpleNamespace(decode_context_parallel_size=ranks, cp_kv_cache_interleave_size=INTERLEAVE),
            speculative_config=types.SimpleNamespace(num_speculative_tokens=speculative) if speculative else None,
            compilation_config=types.SimpleNamespace(static_forward_context={"layer": self.layer}, cudagraph_capture_sizes=list(GRAPHS),
                                                     cudagraph_mode=types.SimpleNamespace(separate_routine=lambda: decode_graphs)))
        self.impl.process_weights_after_loading("torch.bfloat16")
        try:
            self.builder = backend.get_builder_cls()(types.SimpleNamespace(block_size=PAGE), ["layer"], self.config,
                                                     types.SimpleNamespace(type="cuda", index=0))
        except leanattn.Error as error:
            if error.code == "nvrtc_missing":
                pytest.skip(error.message)
            raise
        row = 2 * (INLINE[kv_cache_dtype][1](self.head_dim) + 4) if kv_cache_dtype in INLINE else 2 * self.head_dim
        whole = Tensor((PAGES, PAGE, kv_heads, row) if layout == "NHD" else (PAGES, kv_heads, PAGE, row),
                       "int8" if kv_cache_dtype.startswith("int8") else "uint8" if "fp8" in kv_cache_dtype or "int4" in kv_cache_dtype else "bf16")
        self.cache = whole.permute(0, 2, 1, 3) if layout == "NHD" else whole
        self.kv_heads = kv_heads

    def forward(self, metadata, tokens):
        """What the layer does in a step, for which every kernel is there already. Returns q, the output and the launches; `kv` are K and V."""
        # q is a part of what one projection makes, as in vLLM
        q, k, v = (Tensor((tokens, heads, self.head_dim), strides=((Q_HEADS + 2 * self.kv_heads) * self.head_dim, self.head_dim, 1))
                   for heads in (Q_HEADS, self.kv_heads, self.kv_heads))
        self.kv = k, v
        output, before, loaded = Tensor((tokens, Q_HEADS, self.head_dim)), len(fake.launches()), fake.calls("cuLibraryLoadData")
        assert self.impl.forward(self.layer, q, k, v, self.cache, metadata, output) is output
        assert fake.calls("cuLibraryLoadData") == loaded
        return q, output, fake.launches()[before:]


def step(query_tokens, padded=0, **more):
    """vLLM's metadata of a step in which requests have so many query tokens; `padded` tokens of a graph are beyond these."""
    from vllm.v1.attention.backend import CommonAttentionMetadata

    count, tokens = len(query_tokens), sum(query_tokens) + padded
    starts = np.concatenate(([0], np.cumsum(query_tokens))).astype(np.int32)
    return CommonAttentionMetadata(
        query_start_loc=Tensor((count + 1,), "int32"), query_start_loc_cpu=starts, seq_lens=Tensor((count,), "int32"), num_reqs=count,
        num_actual_tokens=tokens, max_query_len=max(query_tokens), max_seq_len=100, block_table_tensor=Tensor((count, WIDTH), "int32"),
        slot_mapping=Tensor((tokens,), "int64"), **more)


def needs_no_other(model):
    """Whether neither vLLM's implementation nor its builder for FlashAttention was ever made."""
    return "other" not in {**vars(model.impl), **vars(model.builder)}


def local(count):
    """What vLLM adds to the metadata of a step of so many requests where contexts are spread over several ranks."""
    return {"dcp_local_seq_lens": Tensor((count,), "int32")}


def rows_of(metadata):
    return getattr(metadata, "rows", None)


def test_a_step_without_prefill_touches_no_tensor(adapter):
    """No operation on a tensor is enqueued or waited for when its metadata is built, and leanattn gets vLLM's own tensors."""
    model, common = Model(adapter), step([1, 1, 1])
    Tensor.operations = 0
    metadata = model.builder.build(0, common)
    rows = metadata.rows
    assert Tensor.operations == 0
    assert rows.lengths is common.seq_lens and rows.page_table is common.block_table_tensor and rows.offsets is None
    assert (rows.tokens, rows.shape.batch, rows.shape.longest_context, metadata.rest) == (3, 4, LONGEST, None)
    assert metadata.slot_mapping is common.slot_mapping  # of which the cache update reads


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_a_decode_step_arrives_as_vllm_has_it(adapter, layout):
    model, common = Model(adapter, layout=layout), step([1, 1, 1])
    q, output, launches = model.forward(model.builder.build(0, common), 3)
    (launch,) = launches
    given, cache = launch["arguments"], model.cache
    assert (given["q"], given["o"], given["k"], given["v"]) == (q.data, output.data, cache.data, cache.data + HEAD_DIM * 2)
    assert (given["context_lengths"], given["page_table"]) == (common.seq_lens.data, common.block_table_tensor.data)
    for tensor in ("k", "v"):
        strides = tuple(given[f"{tensor}_stride_{name}"] for name in ("batch", "head", "token"))
        assert strides == cache.strides[:3]
    assert given["q_stride_batch"] == q.strides[0] and given["page_table_stride"] == WIDTH
    assert (given["batch"], given["pool_pages"], given["kv_heads"]) == (3, PAGES, KV_HEADS)
    assert math.isclose(given["scale_log2"], HEAD_DIM**-0.5 * math.log2(math.e), rel_tol=1e-6)
    assert not launch["programmatic"] and needs_no_other(model)


def test_one_kv_head_has_strides_that_can_be_loaded(adapter):
    model = Model(adapter, num_kv_heads=1)
    model.cache.strides = (model.cache.strides[0], 1, *model.cache.strides[2:])  # torch may say anything of a dimension of one
    _, _, (launch,) = model.forward(model.builder.build(0, step([1])), 1)
    assert launch["arguments"]["k_stride_token"] == 2 * HEAD_DIM


def test_steps_need_nothing_that_was_not_made_at_start_up(adapter):
    """Neither a kernel nor a plan: any step can be captured right away, and graphs and other steps share one workspace."""
    model = Model(adapter, speculative=2)
    loaded = fake.calls("cuLibraryLoadData")
    assert loaded > 0
    stream = fake.make_stream()
    Tensor.current_stream = stream
    workspaces, graphs = set(), []
    for requests in range(1, MOST_REQUESTS + 1):
        for tokens in ([1] * requests, [3] * requests):
            metadata = model.builder.build(0, step(tokens))
            fake.begin_capture(stream)
            model.forward(metadata, sum(tokens))
            graphs.append(fake.end_capture(stream))
            fake.replay(graphs[-1], stream)
            workspaces.add(fake.launches()[-1]["arguments"]["partials"])
    Tensor.current_stream = 0
    model.forward(model.builder.build(0, step([1])), 1)
    workspaces.add(fake.launches()[-1]["arguments"]["partials"])
    assert len(workspaces) == 1 and fake.calls("cuLibraryLoadData") == loaded
    assert leanattn.engine(0).workspace_bytes == 0
    for graph in graphs:
        fake.destroy_graph(graph)


def test_ranks_have_their_part_of_every_context(adapter):
    """A launch has the query heads of all ranks and the lengths on this one, as vLLM has them; its results go to vLLM's own exchange."""
    model, common = Model(adapter, ranks=4), step([1, 1, 1], **local(3))
    Tensor.operations = 0
    rows = model.builder.build(0, common).rows
    assert Tensor.operations == 0 and rows.lengths is common.dcp_local_seq_lens and rows.page_table is common.block_table_tensor
    assert (rows.tokens, rows.shape.batch, rows.shape.longest_context, rows.offsets) == (3, 4, LONGEST // 4, None)

    q, output, (launch,) = model.forward(model.builder.build(0, common), 3)
    ((own, gathered),), (combined,) = stand_in.group.gathered, stand_in.group.combined
    assert own.shape == q.shape and gathered.shape == (3, 4 * Q_HEADS, HEAD_DIM)
    given = launch["arguments"]
    assert (given["q"], given["o"], given["lse"]) == (gathered.data, combined.part.data, combined.lse.data)
    assert (given["context_lengths"], given["page_table"]) == (common.dcp_local_seq_lens.data, common.block_table_tensor.data)
    assert combined.part.shape == gathered.shape and (combined.lse.shape, combined.lse.dtype) == ((3, 4 * Q_HEADS), "fp32")
    assert (combined.ways, combined.named_ways) == ((), {"is_lse_base_on_e": True})
    assert output.copied is combined.result and model.impl.other.seen == []


def test_steps_over_ranks_need_nothing_that_was_not_made_at_start_up(adapter):
    """And their graphs read the lengths where vLLM keeps them."""
    model, kept, stream = Model(adapter, ranks=2), local(MOST_REQUESTS)["dcp_local_seq_lens"], fake.make_stream()
    loaded, Tensor.current_stream = fake.calls("cuLibraryLoadData"), stream
    for requests in range(1, MOST_REQUESTS + 1):
        metadata = model.builder.build(0, step([1] * requests, dcp_local_seq_lens=kept[:requests]))
        fake.begin_capture(stream)
        model.forward(metadata, requests)
        graph = fake.end_capture(stream)
        fake.replay(graph, stream)
        assert fake.launches()[-1]["arguments"]["context_lengths"] == kept.data
        fake.destroy_graph(graph)
    Tensor.current_stream = 0
    assert fake.calls("cuLibraryLoadData") == loaded and leanattn.engine(0).workspace_bytes == 0


def test_the_prefill_of_a_mixed_step_over_ranks_is_flash_attentions(adapter, monkeypatch):
    model, parts = Model(adapter, ranks=2), []
    flash = type(model.builder.other)
    of_flash = flash.build
    monkeypatch.setattr(flash, "build", lambda self, prefix, common, *more: parts.append(common) or of_flash(self, prefix, common, *more))
    common = step([1, 1, 40], **local(3))
    metadata = model.builder.build(0, common)
    assert (metadata.rows.tokens, metadata.rows.lengths.shape, metadata.rows.lengths.data) == (2, (2,), common.dcp_local_seq_lens.data)
    assert (parts[0].dcp_local_seq_lens.shape, parts[0].dcp_local_seq_lens.data) == ((1,), common.dcp_local_seq_lens.data + 8)
    q, output, launches = model.forward(metadata, 42)
    (seen,), (combined,) = model.impl.other.seen, stand_in.group.combined
    assert len(launches) == 1 and combined.part.shape[0] == 2 and (seen.query.shape[0], seen.metadata) == (40, metadata.rest)


def test_a_second_builder_finds_everything_made(adapter):
    model = Model(adapter)
    memory, loaded = fake.live_buffers(), fake.calls("cuLibraryLoadData")
    model.builder.__class__(types.SimpleNamespace(block_size=PAGE), ["layer"], model.config, types.SimpleNamespace(type="cuda", index=0))
    assert (fake.live_buffers(), fake.calls("cuLibraryLoadData")) == (memory, loaded)


def test_nothing_waits_for_the_gpu(adapter):
    model = Model(adapter, speculative=2)
    model.forward(model.builder.build(0, step([3, 3])), 6)
    waits = [fake.calls(name) for name in ("cuStreamSynchronize", "cuCtxSynchronize", "cuMemcpyDtoHAsync", "cuEventSynchronize")]
    for tokens in ([1, 1], [3, 3], [1, 3], [1, 2, 40]):
        model.forward(model.builder.build(0, step(tokens)), sum(tokens))
    assert [fake.calls(name) for name in ("cuStreamSynchronize", "cuCtxSynchronize", "cuMemcpyDtoHAsync", "cuEventSynchronize")] == waits


def test_speculation_is_ragged(adapter):
    """So one graph serves requests whose drafts were accepted in part, and padding that has no tokens."""
    model, common = Model(adapter, speculative=2), step([3, 2, 3, 0], padded=4)
    assert model.builder.reorder_batch_threshold == 3
    metadata = model.builder.build(0, common)
    assert rows_of(metadata).offsets is common.query_start_loc and metadata.rows.most_tokens == 3
    q, output, (launch,) = model.forward(metadata, 12)
    given = launch["arguments"]
    assert (given["q"], given["o"], given["q_offsets"], given["batch"]) == (q.data, output.data, common.query_start_loc.data, 4)
    assert given["q_stride_token"] == q.strides[0]


def test_with_speculation_a_step_of_single_tokens_is_a_plain_one(adapter):
    model = Model(adapter, speculative=2)
    assert model.builder.build(0, step([1, 1])).rows.offsets is None
    assert model.builder.build(0, step([1, 1], padded=1)).rows.offsets is not None  # one query token each, and a row that is nobody's


def test_steps_with_more_draft_tokens_than_decode_kernels_take_are_mixed_steps(adapter):
    model = Model(adapter, speculative=16)
    assert model.builder.reorder_batch_threshold == 1
    assert rows_of(model.builder.build(0, step([17, 17]))).most_tokens == rows_of(model.builder.build(0, step([1, 17]))).most_tokens == ANY_NUMBER


MIXES = {"decode and a chunk": ([1, 1, 40], 0), "a prompt": ([40], 0), "prompts": ([40, 17], 0), "drafts, a short chunk and a prompt": ([3, 1, 5, 40], 0),
         "requests without tokens, and tokens of nobody": ([1, 9, 0, 0], 6), "tokens of nobody": ([1, 1], 2)}


@pytest.mark.parametrize("speculative", [0, 2])
@pytest.mark.parametrize("tokens, padded", MIXES.values(), ids=MIXES)
def test_a_mixed_step_is_one_launch(adapter, tokens, padded, speculative):
    """Of all its rows, with vLLM's own offsets, lengths and page table, and the padded number of tokens as its capacity."""
    model, common = Model(adapter, speculative=speculative), step(tokens, padded=padded)
    Tensor.operations = 0
    metadata = model.builder.build(0, common)
    rows, total = metadata.rows, sum(tokens) + padded
    drafts = max(tokens) <= 1 + speculative and speculative > 0
    assert Tensor.operations == 0 and metadata.rest is None and rows.tokens == total
    assert rows.most_tokens == (1 + speculative if drafts else ANY_NUMBER)
    q, output, (launch,) = model.forward(metadata, total)
    given = launch["arguments"]
    assert (given["q"], given["o"], given["batch"], given["query_tokens"]) == (q.data, output.data, len(tokens), total)
    assert (given["q_offsets"], given["context_lengths"]) == (common.query_start_loc.data, common.seq_lens.data)
    assert (given["page_table"], given["page_table_stride"]) == (common.block_table_tensor.data, WIDTH)
    assert (given["q_stride_token"], given["o_stride_token"]) == (q.strides[0], output.strides[0])
    assert ("_q131072_" in launch["kernel"]) == (not drafts) and needs_no_other(model)


@pytest.mark.parametrize("head_size", [64, 192, 256])
def test_what_is_said_of_kernels_for_prefill_is_so(adapter, head_size):
    """A look-up answers with the family wgmma_prefill: load path tensor, and two warpgroups of 64 query rows."""
    model = Model(adapter, head_size=head_size)
    (launch,) = model.forward(model.builder.build(0, step([40])), 40)[2]
    assert model.impl.prefills_here and "_tensor_" in launch["kernel"] and "_w8x" in launch["kernel"]


def test_steps_of_decode_only_keep_their_kernels(adapter):
    model = Model(adapter, speculative=2)
    kernels = [model.forward(model.builder.build(0, step(tokens)), sum(tokens))[2][0]["kernel"] for tokens in ([1, 1], [3, 2], [3, 40])]
    assert ["_q131072_" in name for name in kernels] == [False, False, True] and len(set(kernels)) == 3


def test_a_graph_serves_any_mix_up_to_its_size(adapter):
    """vLLM captures it with a single prefill as the longest request, and replays it for whatever it has in the same tensors."""
    model, stream, size = Model(adapter), fake.make_stream(), 64
    kept = step([16, 16, 16, 16])

    def of(tokens):
        return step(tokens, padded=size - sum(tokens)).replace(query_start_loc=kept.query_start_loc, seq_lens=kept.seq_lens,
                                                                block_table_tensor=kept.block_table_tensor)

    q, output = Tensor((size, Q_HEADS, HEAD_DIM)), Tensor((size, Q_HEADS, HEAD_DIM))
    Tensor.current_stream, loaded = stream, fake.calls("cuLibraryLoadData")

    def launched(tokens, longest=None):
        common = of(tokens) if longest is None else of(tokens).replace(max_query_len=longest)
        model.impl.forward(model.layer, q, None, None, model.cache, model.builder.build(0, common), output)

    fake.begin_capture(stream)
    launched([16, 16, 16, 16], longest=size)
    graph = fake.end_capture(stream)
    fake.replay(graph, stream)
    captured = fake.launches()[-1]
    assert captured["arguments"]["query_tokens"] == size and "_q131072_" in captured["kernel"]
    for tokens in ([1, 1, 1, 1], [61, 1, 1, 1], [1, 40, 0, 0], [64, 0, 0, 0], [1, 0, 0, 0]):
        launched(tokens)
        assert fake.launches()[-1] == captured, tokens
    Tensor.current_stream = 0
    assert fake.calls("cuLibraryLoadData") == loaded and needs_no_other(model)
    fake.destroy_graph(graph)


@pytest.mark.parametrize("decode_graphs", [True, False])
def test_a_graph_that_is_captured_with_single_tokens_holds_what_its_mode_says(adapter, decode_graphs):
    """Where vLLM has no graphs of decode steps apart, one of 3 tokens also serves a prompt of 3."""
    model = Model(adapter, decode_graphs=decode_graphs)
    common = step([1, 1, 1])
    rows = model.builder.build_for_cudagraph_capture(common).rows
    assert (rows.offsets, rows.most_tokens) == ((None, None) if decode_graphs else (common.query_start_loc, ANY_NUMBER))
    assert model.builder.build_for_cudagraph_capture(step([1])).rows.offsets is None and model.builder.build(0, step([1, 1, 1])).rows.offsets is None


@pytest.mark.parametrize("graphs", ["any batch", "decode"])
def test_how_strong_graphs_are(adapter, monkeypatch, graphs):
    """The strongest class where a step is one launch. Where it may be split, or where some steps have what is not in a graph, that of decode."""
    import vllm.envs
    from vllm.v1.attention.backend import AttentionCGSupport

    def support(prepare=lambda config: None, **model):
        made = Model(adapter, **model)
        prepare(made.config)
        return made.builder.get_cudagraph_support(made.config, None)

    if graphs == "any batch":
        for model in ({}, {"speculative": 2}, {"sliding_window": 24, "logits_soft_cap": 30.0, **ALIBI}, {"attn_type": "encoder_only"},
                      {"attn_type": "encoder_decoder"}):
            assert support(**model) is AttentionCGSupport.ALWAYS
        return
    for model in ({"ranks": 2}, {"kv_cache_dtype": "fp8"}, {**ALIBI, "attn_type": "encoder_only"}, {"head_size": 272}):
        assert support(**model) is AttentionCGSupport.UNIFORM_BATCH
    assert support(lambda config: setattr(config.model_config, "rswa_window", 64)) is AttentionCGSupport.UNIFORM_BATCH
    monkeypatch.setattr(stand_in.Platform, "family", 80)
    assert support() is AttentionCGSupport.UNIFORM_BATCH
    monkeypatch.setattr(stand_in.Platform, "family", 90)
    monkeypatch.setattr(vllm.envs, "VLLM_BATCH_INVARIANT", True)
    assert support() is AttentionCGSupport.UNIFORM_BATCH


def test_a_plain_model_imports_no_flash_attention(version, engines):
    """It has the same steps where vLLM's module for FlashAttention cannot be imported."""
    with stand_in.installed(version, without=("vllm.v1.attention.backends.flash_attn",)) as adapter:
        backend = adapter.Backend
        assert backend.supports_head_size(128) and backend.supports_sink() and backend.supports_kv_cache_dtype("bfloat16")
        assert backend.supports_combination(128, "torch.bfloat16", "auto", 16, False, True, False, False, None) is None
        assert backend.get_supported_kernel_block_sizes()[0].base == 16
        model = Model(adapter, sliding_window=24, sinks=Tensor((Q_HEADS,), "bf16"))
        assert model.forward(None, 5)[2] == []
        for tokens in ([1, 1], [1, 40], [40, 17]):
            assert len(model.forward(model.builder.build(0, step(tokens)), sum(tokens))[2]) == 1
        with pytest.raises(ModuleNotFoundError):
            model.builder.build(0, step([1, 1], causal=False))


def on_another_gpu(monkeypatch):
    monkeypatch.setattr(stand_in.Platform, "family", 80)


def batch_invariant(monkeypatch):
    import vllm.envs

    monkeypatch.setattr(vllm.envs, "VLLM_BATCH_INVARIANT", True)


@pytest.mark.parametrize("speculative, decodes", [(0, [1, 1]), (2, [3, 1, 2])])
@pytest.mark.parametrize("given, setting", [({"kv_cache_dtype": "fp8"}, None), ({"head_size": 272}, None), ({"head_size": 80}, None),
                                            ({}, on_another_gpu), ({}, batch_invariant)],
                         ids=["one-byte cache", "large heads", "heads of no multiple of 64", "another GPU", "batch invariance"])
def test_a_step_is_split_where_prefill_has_no_kernels(adapter, monkeypatch, speculative, decodes, given, setting):
    if setting is not None:
        setting(monkeypatch)
    model, prefills = Model(adapter, speculative=speculative, **given), [40, 17]
    common = step([*decodes, *prefills], seq_lens_cpu_upper_bound=np.arange(len(decodes) + 2))
    metadata = model.builder.build(0, common)
    requests, tokens = len(decodes), sum(decodes)
    rows, rest = metadata.rows, metadata.rest
    assert (rows.tokens, rows.lengths.shape, rows.page_table.shape) == (tokens, (requests,), (requests, WIDTH))
    assert rows.offsets is None if speculative == 0 else rows.offsets.shape == (requests + 1,)
    assert (rest.num_actual_tokens, rest.max_query_len) == (57, 40)
    assert rest.seq_lens.shape == (2,) and rest.seq_lens.data == common.seq_lens.data + 4 * requests
    assert rest.block_table.data == common.block_table_tensor.data + 4 * requests * WIDTH
    assert rest.slot_mapping.shape == (57,) and rest.query_start_loc.shape == (3,) and rest.scheduler_metadata == "of FlashAttention"

    q, output, (launch,) = model.forward(metadata, tokens + 57)
    assert (launch["arguments"]["q"], launch["arguments"]["o"], launch["arguments"]["batch"]) == (q.data, output.data, requests)
    (seen,) = model.impl.other.seen
    assert seen.metadata is rest and seen.query.shape[0] == seen.key.shape[0] == seen.value.shape[0] == 57
    assert seen.query.dtype == "fp8_e4m3" or seen.query.data == q.data + 2 * tokens * q.strides[0]
    assert (seen.output.shape[0], seen.output.data) == (57, output.data + 2 * tokens * output.strides[0])
    alone = model.builder.build(0, step(prefills))
    assert rows_of(alone) is None and model.forward(alone, 57)[2] == []


def test_a_prompt_that_is_longer_than_kernels_take_is_flash_attentions(adapter):
    model = Model(adapter)
    metadata = model.builder.build(0, step([1, ANY_NUMBER + 1]))
    assert (metadata.rows.tokens, metadata.rows.offsets, metadata.rest.num_actual_tokens) == (1, None, ANY_NUMBER + 1)
    assert model.builder.build(0, step([1, ANY_NUMBER])).rest is None


def test_flash_attention_plans_for_the_windows_of_these_layers(adapter):
    """vLLM's builder looks for layers with FlashAttention, and these have none."""
    model = Model(adapter, sliding_window=24, kv_cache_dtype="fp8")
    assert model.builder.other.aot_sliding_window == (23, 0) and model.builder.other.aot_schedule
    other = types.SimpleNamespace(impl=Model(adapter, sliding_window=25, kv_cache_dtype="fp8").impl, _k_scale=Tensor((), "fp32"))
    model.config.compilation_config.static_forward_context["other"] = other
    both = model.builder.__class__(types.SimpleNamespace(block_size=PAGE), ["layer", "other"], model.config, types.SimpleNamespace(type="cuda", index=0))
    assert not both.other.aot_schedule


def test_the_cache_is_updated_by_vllms_own_operation(adapter):
    model, key, value, slots = Model(adapter), Tensor((3, KV_HEADS, HEAD_DIM)), Tensor((3, KV_HEADS, HEAD_DIM)), Tensor((3,), "int64")
    model.impl.do_kv_cache_update(model.layer, key, value, model.cache, slots)
    (given,) = stand_in.cached
    assert (given.key, given.value, given.slot_mapping, given.kv_cache_dtype) == (key, value, slots, "auto")
    assert given.key_cache.shape == given.value_cache.shape == (PAGES, PAGE, KV_HEADS, HEAD_DIM)
    assert (given.key_cache.data, given.value_cache.data) == (model.cache.data, model.cache.data + HEAD_DIM * 2)
    for attn_type, written in (("encoder_only", 1), ("encoder", 1), ("encoder_decoder", 2)):
        Model(adapter, attn_type=attn_type).impl.do_kv_cache_update(model.layer, key, value, model.cache, slots)
        assert len(stand_in.cached) == written


def test_the_rest_of_a_mixed_step_is_counted_from_its_first_token(adapter, monkeypatch):
    model, parts = Model(adapter, kv_cache_dtype="fp8"), []
    flash = type(model.builder.other)
    monkeypatch.setattr(flash, "build", lambda self, prefix, common, fast_build=False: parts.append((common, fast_build)))
    whole = step([1, 1, 40, 17], is_prefilling=np.array([0, 0, 1, 1], bool), seq_lens_cpu_upper_bound=np.array([5, 6, 40, 30]))
    whole._token_to_req_indices_cache = whole._num_computed_tokens_cache = "of all four"
    model.builder.build(0, whole, fast_build=True)
    ((common, fast_build),) = parts
    assert fast_build and common.num_reqs == 2 and list(common.query_start_loc_cpu) == [0, 40, 57]
    assert list(common.is_prefilling) == [True, True] and list(common.seq_lens_cpu_upper_bound) == [40, 30]
    assert common._token_to_req_indices_cache is None and common._num_computed_tokens_cache is None
    assert (common.max_query_len, common.max_seq_len) == (40, 100)
    assert whole.num_reqs == 4 and list(whole.query_start_loc_cpu) == [0, 1, 2, 42, 59]  # as it was


@pytest.mark.parametrize("why, tokens, common, model", [
    ("not causal", [1, 1], {"causal": False}, {}),
    ("causal for some", [1, 1], {"causal": "a tensor"}, {}),
    ("images of a model that has none", [1, 1], {"mm_req_doc_ranges": {0: [(0, 4)]}}, {}),
    ("a window beside a prompt", [1, 1], {"rswa_prefix_lens": "a tensor"}, {}),
    ("padded by tokens alone", [1, 1], {"padded": 2}, {"kv_cache_dtype": "fp8"}),
    ("an encoder with ALiBi", [1, 1], {}, {**ALIBI, "attn_type": "encoder_only"}),
    ("an encoder over ranks", [1, 1], {}, {"ranks": 2, "attn_type": "encoder_only"}),
    ("an encoder with heads of no multiple of 64", [1, 1], {}, {"head_size": 80, "attn_type": "encoder_only"}),
    ("cross attention with ALiBi", [1, 1], {}, {**ALIBI, "attn_type": "encoder_decoder"}),
    ("cross attention with a window", [1, 1], {}, {"sliding_window": 24, "attn_type": "encoder_decoder"}),
    ("cross attention over ranks", [1, 1], {}, {"ranks": 2, "attn_type": "encoder_decoder"}),
    ("windows over ranks", [1, 1], {}, {"ranks": 2, "sliding_window": 24}),
    ("ALiBi over ranks", [1, 1], {}, {"ranks": 2, **ALIBI}),
    ("sinks over ranks", [1, 1], {}, {"ranks": 2, "sinks": "a tensor"}),
    ("speculation over ranks", [1, 1], {}, {"ranks": 2, "speculative": 2}),
    ("half of a step over ranks", [1, 1], {"dcp_local_seq_lens": None}, {"ranks": 2}),
], ids=lambda value: value if isinstance(value, str) else "")
def test_flash_attention_has_what_leanattn_does_not(adapter, why, tokens, common, model):
    if "sinks" in model:
        model = {**model, "sinks": Tensor((Q_HEADS,), "bf16")}
    model, common = Model(adapter, **model), {**(local(len(tokens)) if "ranks" in model else {}), **common}
    metadata = model.builder.build(0, step(tokens, **common))
    assert rows_of(metadata) is None and metadata.scheduler_metadata == "of FlashAttention"
    _, output, launches = model.forward(metadata, sum(tokens))
    assert launches == [] and model.impl.other.seen[0].output is output


def test_the_order_of_a_batch_is_left_alone_where_nothing_is_ours(adapter):
    for model in (Model(adapter, ranks=2, sliding_window=24), Model(adapter, attn_type="encoder_only", **ALIBI)):
        assert model.builder.reorder_batch_threshold is None


def test_no_attention_while_memory_is_profiled(adapter):
    model = Model(adapter)
    _, output, launches = model.forward(None, 5)
    assert launches == [] and output.value == 0 and needs_no_other(model)


@pytest.mark.parametrize("cache", ["auto", "fp8"])
def test_layers_that_share_a_cache_have_no_keys_of_their_own(adapter, cache):
    model, output = Model(adapter, kv_cache_dtype=cache), Tensor((42, Q_HEADS, HEAD_DIM))
    metadata = model.builder.build(0, step([1, 1, 40]))
    model.impl.forward(model.layer, Tensor((42, Q_HEADS, HEAD_DIM)), None, None, model.cache, metadata, output)
    assert (metadata.rest is None or model.impl.other.seen[0].key is None) and len(fake.launches()) == 1


def test_another_groups_block_table_goes_to_both_parts(adapter):
    table, slots = Tensor((3, WIDTH), "int32"), Tensor((42,), "int64")
    for cache, split in (("auto", False), ("fp8", True)):
        model = Model(adapter, kv_cache_dtype=cache)
        metadata = model.builder.build(0, step([1, 1, 40]))
        moved = model.builder.update_block_table(metadata, table, slots)
        assert moved.block_table is table and moved.slot_mapping is slots
        assert (moved.rows.page_table.data, moved.rows.page_table.shape) == (table.data, (2 if split else 3, WIDTH))
        assert metadata.rows.page_table.data != table.data  # the first group's is as it was
    assert moved.rest.block_table.data == table.data + 2 * WIDTH * 4 and moved.rest.slot_mapping.data == slots.data + 2 * 8
    alone = model.builder.update_block_table(model.builder.build(0, step([40])), table[:1], slots)
    assert rows_of(alone) is None and alone.slot_mapping is slots


def test_a_copy_of_the_fields_is_metadata_as_well(adapter):
    """vLLM makes a subclass of a metadata's class and copies its fields, where layers skip prefill."""
    model = Model(adapter)
    metadata = model.builder.build(0, step([1, 1]))
    copied = object.__new__(type("Copied", (metadata.__class__,), {}))
    for field in dataclasses.fields(metadata.__class__):
        setattr(copied, field.name, getattr(metadata, field.name))
    assert len(model.forward(copied, 2)[2]) == 1


def test_features_of_a_layer_arrive(adapter):
    sinks, slopes = Tensor((Q_HEADS,), "bf16"), [0.5] * Q_HEADS
    model = Model(adapter, sliding_window=24, sinks=sinks, alibi_slopes=slopes, logits_soft_cap=30.0)
    _, _, (launch,) = model.forward(model.builder.build(0, step([1, 1])), 2)
    given = launch["arguments"]
    constant = model.impl._constant
    assert given["alibi_slopes"] == model.impl.alibi_slopes.data
    assert given["sink_logits"] == constant["sink_logits"].data and constant["sink_logits"].dtype == "fp32"  # the kernels' type
    assert constant["window"] == 24 and constant["soft_cap"] == 30.0
    plain = Model(adapter)
    assert plain.forward(plain.builder.build(0, step([1, 1])), 2)[2][0]["kernel"] != launch["kernel"]


def test_sinks_are_read_after_the_weights_are_loaded(adapter):
    """They are a parameter, which has no values when the layer is made; and where weights are loaded again, graphs have the address."""
    model = Model(adapter, sinks=Tensor((Q_HEADS,), "bf16"))
    first = model.impl._constant["sink_logits"]
    again = model.impl.sinks = Tensor((Q_HEADS,), "bf16")
    model.impl.process_weights_after_loading("torch.bfloat16")
    assert model.impl._constant["sink_logits"] is first and first.copied is again


@pytest.mark.parametrize("scale_heads", [1, KV_HEADS])
def test_fp8_caches_have_vllms_scales(adapter, scale_heads):
    model = Model(adapter, kv_cache_dtype="fp8", scale_heads=scale_heads)
    q, _, (launch,) = model.forward(model.builder.build(0, step([1, 1])), 2)
    given = launch["arguments"]
    assert (given["k_scale"], given["v_scale"]) == (model.layer._k_scale.data, model.layer._v_scale.data)
    assert (given["q"], given["v"]) == (q.data, model.cache.data + HEAD_DIM)
    assert model.impl.options(model.layer).kv_scale == ("head" if scale_heads > 1 else "tensor")


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("name", INLINE)
def test_caches_with_inline_scales_arrive_as_vllm_lays_them(adapter, name, layout):
    """A row of K, its scale, a row of V, and its scale; decode, drafts, and a mixed step are one launch each."""
    model, (short_name, bytes_of_row) = Model(adapter, speculative=2, kv_cache_dtype=name, layout=layout), INLINE[name]
    row, cache, expected = bytes_of_row(HEAD_DIM), model.cache, {}
    for tokens in ([1, 1], [3, 2], [1, 40]):
        metadata = model.builder.build(0, step(tokens))
        assert metadata.rest is None
        q, output, (launch,) = model.forward(metadata, sum(tokens))
        given = launch["arguments"]
        assert (given["k"], given["k_scale"]) == (cache.data, cache.data + row)
        assert (given["v"], given["v_scale"]) == (cache.data + row + 4, cache.data + 2 * row + 4)
        assert [given[f"{tensor}_stride_{of}"] for tensor in ("k", "v") for of in ("batch", "head", "token")] == 2 * list(cache.strides[:3])
        assert [given[f"kv_scale_stride_{of}"] for of in ("batch", "head", "token")] == [stride // 4 for stride in cache.strides[:3]]
        assert short_name in launch["kernel"] and given["o"] == output.data
        turned = name.startswith("int4")
        assert math.isclose(given["scale_log2"], HEAD_DIM**(-1.5 if turned else -0.5) * math.log2(math.e), rel_tol=1e-6)
        if not turned:
            assert given["q"] == q.data and stand_in.rotated == []
            continue
        # q is rotated in fp32 and rounded to its type again; the result is rotated back, and divided by the size of the matrix.
        forward, back = stand_in.rotated
        assert (forward.given.shape, forward.given.dtype, forward.inverse) == (q.shape, "fp32", False) and given["q"] != q.data
        assert (back.given.shape, back.given.dtype, back.inverse) == (output.shape, "fp32", True)
        assert output.copied.quotient == (back.made, HEAD_DIM)
        stand_in.rotated.clear()
    assert model.impl.options(model.layer).kv_scale == "in_row"


@pytest.mark.parametrize("name", INLINE)
def test_caches_with_inline_scales_are_written_by_vllms_backend_for_them(adapter, name):
    model, key, value, slots = Model(adapter, kv_cache_dtype=name), Tensor((3, KV_HEADS, HEAD_DIM)), Tensor((3, KV_HEADS, HEAD_DIM)), Tensor((3,), "int64")
    model.impl.do_kv_cache_update(model.layer, key, value, model.cache, slots)
    assert model.impl.other.updated == [types.SimpleNamespace(key=key, value=value, kv_cache=model.cache, slot_mapping=slots)] and stand_in.cached == []


@pytest.mark.parametrize("name", INLINE)
def test_what_leanattn_does_not_compute_over_inline_scales_is_tritons(adapter, name, monkeypatch):
    model = Model(adapter, kv_cache_dtype=name)
    metadata = model.builder.build(0, step([1, 1], causal=False))
    _, output, launches = model.forward(metadata, 2)
    assert launches == [] and metadata.of == "Triton" and model.impl.other.seen[0].output is output
    given = [128, "torch.bfloat16", name, 16, False, False, False, False, None]
    assert adapter.Backend.supports_combination(*given) is None
    given[0] = 80
    assert (adapter.Backend.supports_combination(*given) is None) == (not name.startswith("int4"))
    for more, setting in (({"ranks": 2}, None), ({"attn_type": "encoder_only", **ALIBI}, None), ({}, batch_invariant)):
        if setting is not None:
            setting(monkeypatch)
        with pytest.raises(ValueError, match="TRITON_ATTN"):
            Model(adapter, kv_cache_dtype=name, **more)


@pytest.mark.parametrize("scale_heads", [1, KV_HEADS])
def test_only_flash_attention_gets_fp8_queries(adapter, scale_heads):
    model = Model(adapter, kv_cache_dtype="fp8", scale_heads=scale_heads)
    assert not model.impl.supports_quant_query_input and model.impl.other.supports_quant_query_input
    q, _, _ = model.forward(model.builder.build(0, step([1, 1, 40])), 42)
    seen = model.impl.other.seen[0]
    assert (seen.query.dtype, seen.query.shape) == ("fp8_e4m3", (40, Q_HEADS, HEAD_DIM)) and q.dtype == "bf16"
    shape = tuple(model.impl._fp8_queries[True].group_shape)
    assert shape == (-1, HEAD_DIM * Q_HEADS // KV_HEADS)


def test_batch_invariance_is_vllms_own_setting(adapter, monkeypatch):
    import vllm.envs

    monkeypatch.setattr(vllm.envs, "VLLM_BATCH_INVARIANT", True)
    model = Model(adapter)
    wide = Tensor((2, WIDTH + 40), "int32")
    metadata = model.builder.build(0, step([1, 1]).replace(block_table_tensor=wide))
    # A plan's context is a limit then, and so no page table may be wider.
    assert metadata.rows.shape.longest_context >= LONGEST and metadata.rows.page_table.shape[1] * PAGE == metadata.rows.shape.longest_context
    assert model.impl._constant["batch_invariant"] and len(model.forward(metadata, 2)[2]) == 1
    shared = Model(adapter, ranks=2)
    rows = shared.builder.build(0, step([1, 1], **local(2)).replace(block_table_tensor=wide)).rows
    assert LONGEST // 2 <= rows.shape.longest_context < LONGEST and rows.page_table.shape[1] * PAGE == rows.shape.longest_context


def test_output_is_not_quantised_and_says_so(adapter):
    model = Model(adapter)
    with pytest.raises(NotImplementedError, match="fused_output_quant_supported"):
        model.impl.forward(model.layer, Tensor((1, Q_HEADS, HEAD_DIM)), None, None, model.cache, model.builder.build(0, step([1])),
                           Tensor((1, Q_HEADS, HEAD_DIM)), output_scale=Tensor((1,), "fp32"))
    assert fake.launches() == []


@pytest.mark.parametrize("head_size, supported", [(16, True), (80, True), (128, True), (256, True), (512, True), (72, False), (528, False)])
def test_head_sizes(adapter, head_size, supported):
    assert adapter.Backend.supports_head_size(head_size) is supported


def test_a_cache_of_another_type_than_the_model_is_refused(adapter):
    given = [128, "torch.bfloat16", "float16", 16, False, False, False, False, None]
    assert "float16" in adapter.Backend.supports_combination(*given)
    for same in ("auto", "bfloat16", None):
        given[2] = same
        assert adapter.Backend.supports_combination(*given) is None


def test_flash_attention_says_what_it_takes_where_rows_are_its_own(adapter, monkeypatch):
    backend, theirs = adapter.Backend, "of FlashAttention"
    assert backend.supports_kv_cache_dtype("fp8") == backend.supports_per_head_quant_scales() == theirs
    given = [128, "torch.bfloat16", "auto", 16, False, False, False, False, None]
    for place, other in ((0, 272), (2, "fp8")):
        assert backend.supports_combination(*given[:place], other, *given[place + 1:]) == theirs
    monkeypatch.setattr(stand_in.Platform, "family", 80)
    assert backend.supports_sink() == backend.supports_combination(*given) == theirs


def test_a_group_that_is_too_large_is_refused_by_name(adapter):
    for ranks, heads in ((1, 256), (4, 64)):  # of all ranks together
        stand_in.group.world_size = ranks
        with pytest.raises(ValueError, match="256 query heads share 1 KV heads.*--attention-backend"):
            adapter.Backend.get_impl_cls()(heads, HEAD_DIM, 1.0, 1, None, None, "auto")


@pytest.mark.parametrize("tokens, ranks, interleave, most", [(100, 1, 1, 100), (100, 1, 16, 100), (100, 4, 1, 25), (101, 4, 1, 26), (96, 2, 16, 48),
                                                            (97, 2, 16, 64), (1, 4, 8, 1)])
def test_the_most_tokens_on_a_rank(adapter, tokens, ranks, interleave, most):
    from leanattn.vllm import step_plans

    assert step_plans._most_here(tokens, types.SimpleNamespace(dcp_world_size=ranks, cp_kv_cache_interleave_size=interleave)) == most


def test_graphs_of_uneven_speculation_where_vllm_has_them(adapter, version):
    builder = adapter.Backend.get_builder_cls()
    config = lambda tokens, parallel=1: types.SimpleNamespace(  # noqa: E731
        speculative_config=types.SimpleNamespace(num_speculative_tokens=tokens),
        parallel_config=types.SimpleNamespace(decode_context_parallel_size=parallel))
    if version.startswith("0.26"):
        assert not hasattr(builder, "get_varlen_cudagraph_max_query_len")
        return
    limits = [builder.get_varlen_cudagraph_max_query_len(config(*given), None) for given in ((3,), (15,), (16,), (3, 2))]
    assert limits == [4, 16, None, None]


def test_steps_of_a_draft_model_in_one_graph_have_nothing_to_update(adapter, version):
    if version.startswith("0.26"):
        assert not hasattr(adapter.Backend.get_builder_cls(), "update_draft_decode_metadata")
        return
    model = Model(adapter)
    own, other = model.builder.build(0, step([1, 1])), model.builder.build(0, step([1, 1], causal=False))
    Tensor.operations = 0
    model.builder.update_draft_decode_metadata(own)
    model.builder.update_draft_decode_metadata(other)
    assert Tensor.operations == 0 and other.scheduler_metadata == "updated"


def test_cascade_attention_is_not_used(adapter, version):
    builder = adapter.Backend.get_builder_cls()
    if version.startswith("0.26"):
        assert builder.use_cascade_attention(None, 4096, [1], 8, 2, False, False, False, 132, 1) is False
    else:
        assert not hasattr(builder, "use_cascade_attention")


def test_start_up_says_what_was_found_and_how_long_it_took(adapter, caplog):
    caplog.set_level("INFO")
    Model(adapter)
    (line,) = [record.getMessage() for record in caplog.records if record.name == "vllm.leanattn"]
    # Of single tokens, and of any numbers of them.
    assert f"2 problems and 3 batches up to {MOST_REQUESTS} at context {LONGEST}" in line and "fallback: 6" in line and " s;" in line


@pytest.mark.skipif(simulated_program.find() is None, reason="no tree has the simulated program")
def test_start_up_tunes_where_it_is_asked_to(adapter, monkeypatch, caplog):
    caplog.set_level("INFO")
    for name, value in {**simulated_program.environment(), "LEANATTN_VLLM_TUNE": "600"}.items():
        monkeypatch.setenv(name, value)
    with simulated_program.cache_directory() as folder:
        engine = leanattn.Engine(cache_dir=folder)
        monkeypatch.setattr(leanattn, "engine", lambda ordinal: engine)
        Model(adapter)
    tuned, looked_up = [record.getMessage() for record in caplog.records if record.name == "vllm.leanattn"]
    assert "has tuned 6 shapes" in tuned and "exact: 6" in looked_up, "of three batches, for steps without prefill and with it"


def test_a_tuning_that_fails_does_not_end_vllm(adapter, monkeypatch, caplog):
    monkeypatch.setenv("LEANATTN_VLLM_TUNE", "60")
    monkeypatch.setenv("LEANATTN_PROGRAM", "/nonexistent/leanattn")
    model = Model(adapter)
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "could not tune" in line and "LEANATTN_PROGRAM is /nonexistent/leanattn" in line
    assert model.builder.build(0, step([1])).rows.device.workspace is not None, "the plans are there"


# The part without vLLM.


@pytest.fixture
def plans():
    import leanattn._serving.plans

    return leanattn._serving.plans


@pytest.mark.parametrize("graphs, most, batches", [((1, 2, 4, 8, 16, 24), 24, (1, 2, 4, 8, 16, 24)), ((), 100, (1, 2, 4, 8, 16, 32, 64, 100)),
                                                   ((1, 512), 3, (1, 2, 3)), ((0,), 1, (1,))])
def test_batches_are_those_of_graphs_and_powers_of_two(plans, graphs, most, batches):
    sizes = plans.Sizes(plans.batches_for(graphs, most), 8192)
    assert sizes.batches == batches
    for requests in range(1, most + 1):
        assert sizes.batch_for(requests) >= requests and sizes.batch_for(requests) in batches
    assert sizes.batch_for(2 * most + 1) >= 2 * most + 1


@pytest.mark.parametrize("text, longest, context", [(None, 131072, 8192), (None, 4096, 4096), ("32768", 131072, 32768), ("32768", 4096, 4096)])
def test_the_context_is_a_setting(plans, monkeypatch, text, longest, context):
    monkeypatch.delenv(VARIABLE, raising=False)
    if text is not None:
        monkeypatch.setenv(VARIABLE, text)
    assert plans.context_for(longest, VARIABLE) == context


@pytest.mark.parametrize("text", ["", "0", "-1", "8k", "1.5", "８"])
def test_a_context_that_is_no_number_is_refused_by_name(plans, monkeypatch, text):
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(ValueError, match=VARIABLE):
        plans.context_for(4096, VARIABLE)


@pytest.mark.parametrize("text, seconds", [(None, 0), ("0", 0), ("90", 90), ("2.5", 2.5)])
def test_the_seconds_of_tuning_are_a_setting(plans, monkeypatch, text, seconds):
    monkeypatch.delenv(TUNE, raising=False)
    if text is not None:
        monkeypatch.setenv(TUNE, text)
    assert plans.tuning_seconds(TUNE) == seconds


@pytest.mark.parametrize("text", ["", "-1", "60s", "inf", "nan"])
def test_a_time_that_is_no_number_is_refused_by_name(plans, monkeypatch, text):
    monkeypatch.setenv(TUNE, text)
    with pytest.raises(ValueError, match=TUNE):
        plans.tuning_seconds(TUNE)


def test_problems_share_the_seconds_of_tuning(plans, monkeypatch):
    now, calls = [0.0], []

    def tune(problem, shapes, *, budget, engine):
        calls.append((problem, [shape.batch for shape in shapes], budget))
        now[0] += 6.0  # less than it may take
        return [types.SimpleNamespace(measured=shape.batch > 1) for shape in shapes]

    monkeypatch.setattr(leanattn, "engine", lambda ordinal: None)
    monkeypatch.setattr(leanattn, "tune", tune)
    monkeypatch.setattr(plans.time, "monotonic", lambda: now[0])
    sizes = plans.Sizes((1, 2, 4, 8, 16, 24, 40, 100), 8192)
    assert plans.Device(0).tune(["a", "b"], sizes, 0) == (0, "") and calls == [], "not unless it is asked to"
    shared = plans.Device(0)
    assert shared.tune(["a", "b"], sizes, 21) == (10, "")
    assert calls == [("a", [1, 2, 4, 8, 16, 100], 10.5), ("b", [1, 2, 4, 8, 16, 100], 15.0)]
    shared.tune(["c", "d"], sizes, 21)  # of another group of layers
    assert calls[2:] == [("c", [1, 2, 4, 8, 16, 100], 4.5), ("d", [1, 2, 4, 8, 16, 100], 3.0)]
    shared.tune(["e"], sizes, 21)
    assert len(calls) == 4, "nothing is left"


def test_steps_with_prefill_are_tuned_and_planned_as_full_as_the_scheduler_makes_them(adapter, monkeypatch):
    """By the one shape that every step of a batch is then looked up by."""
    tuned, planned, plan = [], [], leanattn.Engine.plan
    monkeypatch.setattr(leanattn, "tune", lambda problem, shapes, **_: tuned.extend((problem.q_len, shape) for shape in shapes) or [])
    monkeypatch.setattr(leanattn.Engine, "plan",
                        lambda engine, problem, shape, **options: planned.append((problem.q_len, shape)) or plan(engine, problem, shape, **options))
    monkeypatch.setenv(TUNE, "60")
    model = Model(adapter)
    mixed = [shape for q_len, shape in tuned if q_len == ANY_NUMBER]
    assert mixed and {shape.query_tokens for shape in mixed} == {MOST_TOKENS} and mixed[-1].batch == MOST_REQUESTS
    assert [shape.query_tokens for q_len, shape in tuned if q_len == 1] == [0] * len(mixed)
    shape = model.builder.build(0, step([1, 1, 30])).rows.shape
    assert shape == leanattn.Shape(4, LONGEST, query_tokens=MOST_TOKENS) and (ANY_NUMBER, shape) in planned
    assert model.builder.build(0, step([1, 1, 1])).rows.shape == leanattn.Shape(4, LONGEST)
    assert model.builder.build(0, step([1, 1, 30])).rows.shape is shape, "the host makes nothing anew"


def test_after_one_failure_nothing_more_is_tuned(plans, monkeypatch):
    calls = []

    def tune(problem, shapes, *, budget, engine):
        calls.append(problem)
        raise leanattn.Error("no program", "not_found", "Install it.")

    monkeypatch.setattr(leanattn, "engine", lambda ordinal: None)
    monkeypatch.setattr(leanattn, "tune", tune)
    device = plans.Device(0)
    assert device.tune(["a", "b"], plans.Sizes((1,), 8192), 21) == (0, "no program. Install it.")
    assert device.tune(["c"], plans.Sizes((1,), 8192), 21) == (0, "")
    assert calls == ["a"]


def test_a_workspace_that_is_outgrown_stays_for_its_graphs(plans, cache_dir, monkeypatch):
    fake.reset()
    engine = leanattn.Engine(cache_dir=cache_dir)
    monkeypatch.setattr(leanattn, "engine", lambda ordinal: engine)
    shared = plans.Device(0)
    options = plans.Options(q_heads=Q_HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM)
    problem = plans.problem_of(options, dtype="bf16", page_size=PAGE)
    try:
        shared.prepare([problem], plans.Sizes((1,), 64))
    except leanattn.Error as error:
        if error.code == "nvrtc_missing":
            pytest.skip(error.message)
        raise
    first = shared.workspace
    shared.prepare([dataclasses.replace(problem, batch_invariant=True)], plans.Sizes((16,), 2**17))
    assert shared.workspace.bytes > first.bytes and first in shared._outgrown


def test_after_tuning_all_plans_are_looked_up_again_and_the_workspace_is_as_large_as_they_need(plans, monkeypatch):
    looked_up, needs = [], {"a": 100, "b": 300}

    class Engine:
        def plan(self, problem, shape, *, max_batch):
            looked_up.append((problem, shape.batch, max_batch, shape.longest_context))
            return types.SimpleNamespace(provenance="exact", workspace_bytes=needs[problem] * shape.batch)

    def tune(problem, shapes, *, budget, engine):
        needs["a"] = 1000  # other winners were there, too
        if problem == "fails":
            raise leanattn.Error("no program", "not_found", "Install it.")
        return [types.SimpleNamespace(measured=True) for _ in shapes]

    engine = Engine()
    monkeypatch.setattr(leanattn, "engine", lambda ordinal: engine)
    monkeypatch.setattr(leanattn, "tune", tune)
    monkeypatch.setattr(leanattn, "Workspace", lambda engine, size: types.SimpleNamespace(bytes=size))
    shared = plans.Device(0)
    assert shared.tune(["a"], plans.Sizes((1, 2), 8192), 0) == (0, "") and shared.workspace is None
    assert shared.prepare(["a"], plans.Sizes((1, 2), 8192))[0] == {"exact": 2} and shared.workspace.bytes == 200
    first = shared.workspace
    del looked_up[:]
    assert shared.tune(["b"], plans.Sizes((1,), 4096), 60) == (1, "")
    assert looked_up == [("a", 1, 1, 8192), ("a", 2, 2, 8192)] and shared.workspace.bytes == 2000 and first in shared._outgrown
    del looked_up[:]
    assert shared.prepare(["b", "a"], plans.Sizes((1,), 4096))[0] == {"exact": 2}, "only new ones count"
    assert looked_up == [("b", 1, 1, 4096), ("a", 1, 1, 4096)] and shared.workspace.bytes == 2000
    needs["b"] = 5000
    assert shared.tune(["fails"], plans.Sizes((1,), 4096), 60)[0] == 0, "also where it has failed in the end"
    assert shared.workspace.bytes == 5000
    del looked_up[:]
    assert shared.tune(["b"], plans.Sizes((1,), 4096), 60) == (0, "") and looked_up == [], "nothing was tuned"


def test_a_device_without_a_number_is_the_current_one(plans, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=types.SimpleNamespace(current_device=lambda: 3)))
    assert plans.ordinal_of(types.SimpleNamespace(index=None)) == 3 and plans.ordinal_of(types.SimpleNamespace(index=0)) == 0
