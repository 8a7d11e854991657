"""The backend of SGLang on a GPU that is not there, in an SGLang that is not there: which steps go where, and what arrives at the driver."""
import math
import sys
import types

import pytest

fake = pytest.importorskip("_fake_gpu", reason="built with the tests only")

import leanattn  # noqa: E402
import sglang_stand_in as stand_in  # noqa: E402
from sglang_stand_in import Tensor, Type  # noqa: E402

Q_HEADS, KV_HEADS, HEAD_DIM, SLOTS, LONGEST, MOST_REQUESTS = 8, 2, 64, 512, 128, 4
BF16 = Type("bf16")


@pytest.fixture(params=stand_in.VERSIONS)
def version(request):
    return request.param


@pytest.fixture
def adapter(version, engines):
    with stand_in.installed(version) as module:
        yield module


def mode(name):
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    return ForwardMode[name]


class Model:
    """A model of one kind of layer, as SGLang knows it after loading, and the backend for it."""

    def __init__(self, adapter, page_size=1, draft_tokens=None, topk=0, kv_cache_dtype="bf16", sinks=None, sliding_window_pool=False, unified=False,
                 runner=None, **layer):
        from sglang.srt.layers.radix_attention import RadixAttention
        from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

        heads = {"num_heads": Q_HEADS, "head_dim": HEAD_DIM, "scaling": HEAD_DIM**-0.5, "num_kv_heads": KV_HEADS, "layer_id": 0, **layer}
        self.layer, self.sinks = RadixAttention(**heads), sinks
        element = Type(kv_cache_dtype)
        self.pool = MHATokenToKVPool.__new__(MHATokenToKVPool)
        self.pool.buffers = {0: (Tensor((SLOTS, heads["num_kv_heads"], heads["head_dim"]), element),
                                 Tensor((SLOTS, heads["num_kv_heads"], self.layer.v_head_dim), element))}
        self.pool.written = []
        attention = types.SimpleNamespace(children=lambda: [self.layer], sinks=sinks)
        self.runner = types.SimpleNamespace(**{
            "model": types.SimpleNamespace(modules=lambda: [attention, types.SimpleNamespace(children=list)]),
            "model_config": types.SimpleNamespace(context_len=LONGEST), "page_size": page_size, "dtype": BF16, "kv_cache_dtype": element,
            "kv_cache_dtype_str": "auto", "gpu_id": 0, "token_to_kv_pool": self.pool, "use_mla_backend": False, "is_draft_worker": False,
            "req_to_token_pool": types.SimpleNamespace(req_to_token=Tensor((MOST_REQUESTS + 1, LONGEST + 20), "int32"), size=MOST_REQUESTS),
            "server_args": types.SimpleNamespace(enable_deterministic_inference=stand_in.deterministic.enable_deterministic_inference,
                                                 attention_backend="leanattn", prefill_attention_backend=None, kv_cache_dtype="auto",
                                                 chunked_prefill_size=300, max_prefill_tokens=16384),
            "sliding_window_pool": sliding_window_pool, "unified": unified, "topk": topk, "draft_tokens": draft_tokens, "context_ranks": 1,
            "without_cache": False, **(runner or {})})
        try:
            self.backend = adapter.Backend.for_runner(self.runner)
        except leanattn.Error as error:
            if error.code == "nvrtc_missing":
                pytest.skip(error.message)
            raise

    def batch(self, requests, name="DECODE", **more):
        given = {"batch_size": requests, "forward_mode": mode(name), "spec_info": None, "seq_lens": Tensor((requests,), "int64"), "seq_lens_cpu": None,
                 "req_pool_indices": Tensor((requests,), "int64"), "out_cache_loc": Tensor((requests,), "int64"), "out_cache_loc_is_physical": True}
        if name == "TARGET_VERIFY":
            given["spec_info"] = types.SimpleNamespace(custom_mask=Tensor((4096,), "uint8"))
        return types.SimpleNamespace(**{**given, **more})

    def capture(self, batch):
        """SGLang's call before a graph is captured, and before it is replayed."""
        self._graph(batch, True)

    def replay(self, batch):
        self._graph(batch, False)

    def _graph(self, batch, capture):
        backend, requests = self.backend, batch.batch_size
        if hasattr(backend, "init_forward_metadata_out_graph"):
            backend.init_forward_metadata_out_graph(batch, **({"in_capture": True} if capture else {}))
            return
        given = (batch.req_pool_indices, batch.seq_lens)
        if capture:
            backend.init_forward_metadata_capture_cuda_graph(requests, 7, *given, None, batch.forward_mode, batch.spec_info)
        else:
            backend.init_forward_metadata_replay_cuda_graph(requests, *given, 0, None, batch.forward_mode, batch.spec_info, seq_lens_cpu=batch.seq_lens_cpu)

    def forward(self, batch, tokens, save_kv_cache=True, **more):
        """What the layer does in a step. Returns q, the output and the launches."""
        layer = self.layer
        whole = (Q_HEADS + 2 * KV_HEADS) * HEAD_DIM  # q is a part of what one projection makes, as in SGLang
        q = Tensor((tokens, layer.tp_q_head_num * layer.head_dim), BF16, strides=(whole, 1))
        k, v = (Tensor((tokens, layer.tp_k_head_num, size), BF16) for size in (layer.head_dim, layer.v_head_dim))
        self.kv, before = (k, v), len(fake.launches())
        if self.sinks is not None:
            more["sinks"] = self.sinks
        output = self.backend.forward(q, k, v, layer, batch, save_kv_cache, **more)
        return q, output, fake.launches()[before:]

    def step(self, requests, name="DECODE", tokens=1, **more):
        """A step without a graph, for which every kernel is there already."""
        batch = self.batch(requests, name, **more)
        self.backend.init_forward_metadata(batch)
        loaded = fake.calls("cuLibraryLoadData")
        made = self.forward(batch, requests * tokens)
        assert fake.calls("cuLibraryLoadData") == loaded
        return made


@pytest.fixture
def trees(adapter, monkeypatch):
    """What leanattn.sglang.tensors makes, and of what; test_sglang_tree.py has the real one."""
    import leanattn.sglang.tensors as tensors

    made = []

    def words(custom_mask, seq_lens, draft_tokens):
        made.append(("words", custom_mask, seq_lens, draft_tokens))
        return Tensor((seq_lens.shape[0] * draft_tokens,), "int32")

    def table(req_to_token, req_pool_indices, width):
        made.append(("table", req_to_token, width))
        return Tensor((req_pool_indices.shape[0], width), "int32")

    monkeypatch.setattr(tensors, "tree_words", words)
    monkeypatch.setattr(tensors, "page_table", table)
    monkeypatch.setattr(Tensor, "__add__", lambda self, other: Tensor(self.shape, self.dtype), raising=False)
    monkeypatch.setattr(Tensor, "to", lambda self, dtype: Tensor(self.shape, dtype), raising=False)
    return made


@pytest.mark.parametrize("page_size", [1, 16])
def test_a_decode_step_arrives_as_sglang_has_it(adapter, page_size):
    model = Model(adapter, page_size=page_size)
    q, output, (launch,) = model.step(3)
    given, metadata, (keys, values) = launch["arguments"], model.backend.forward_metadata, model.pool.buffers[0]
    assert (given["q"], given["o"], given["k"], given["v"]) == (q.data, output.data, keys.data, values.data)
    assert output.shape == (3, Q_HEADS * HEAD_DIM)
    assert (given["context_lengths"], given["page_table"]) == (metadata.cache_seqlens_int32.data, metadata.page_table.data)
    assert (given["k_stride_batch"], given["k_stride_head"]) == (page_size * KV_HEADS * HEAD_DIM, HEAD_DIM)
    if page_size > 1:
        assert given["k_stride_token"] == KV_HEADS * HEAD_DIM
    assert given["q_stride_batch"] == q.strides[0] and given["page_table_stride"] == LONGEST // page_size
    assert (given["batch"], given["pool_pages"], given["kv_heads"]) == (3, SLOTS // page_size, KV_HEADS)
    assert math.isclose(given["scale_log2"], HEAD_DIM**-0.5 * math.log2(math.e), rel_tol=1e-6)
    assert model.backend.seen == []


def test_a_decode_step_without_requests_has_an_empty_output_and_no_launch(adapter):
    _, output, launches = Model(adapter).step(0)
    assert (output.shape, launches) == ((0, Q_HEADS * HEAD_DIM), [])


def test_the_output_goes_where_sglang_wants_it(adapter):
    model, wanted = Model(adapter), Tensor((3, Q_HEADS, HEAD_DIM), BF16)
    _, output, (launch,) = model.step(3, _attn_output=wanted)
    assert launch["arguments"]["o"] == output.data == wanted.data and output.shape == (3, Q_HEADS * HEAD_DIM)


def test_new_keys_and_values_are_written_before_the_launch(adapter, version):
    model = Model(adapter)
    model.layer.k_scale = model.layer.v_scale = Tensor((), "fp32")
    batch = model.batch(2)
    model.backend.init_forward_metadata(batch)
    model.forward(batch, 2)
    (written,) = model.pool.written
    where = written["loc"] if version.startswith("0.5.12") else written["loc_info"].loc
    assert where is batch.out_cache_loc and written["cache_k"].shape == (2, KV_HEADS, HEAD_DIM)
    assert written["k_scale"] is model.layer.k_scale and written["v_scale"] is model.layer.v_scale
    model.forward(batch, 2, save_kv_cache=False)
    assert len(model.pool.written) == 1


def test_steps_need_nothing_that_was_not_made_at_start_up(adapter, trees):
    """Neither a kernel nor a plan: any step can be captured right away, and graphs and other steps share one workspace."""
    loaded = fake.calls("cuLibraryLoadData")
    stream, workspaces, graphs = fake.make_stream(), set(), []
    for topk in (1, 2):
        model = Model(adapter, draft_tokens=3, topk=topk)
        model.backend.init_cuda_graph_state(MOST_REQUESTS, 3 * MOST_REQUESTS)
        for requests in range(1, MOST_REQUESTS + 1):
            for name, tokens in (("DECODE", 1), ("TARGET_VERIFY", 3), ("EXTEND", 40)):
                batch = model.batch(requests, name)
                model.capture(batch)
                loaded = fake.calls("cuLibraryLoadData")
                Tensor.current_stream = stream
                fake.begin_capture(stream)
                _, _, launches = model.forward(batch, requests * tokens)
                graphs.append(fake.end_capture(stream))
                fake.replay(graphs[-1], stream)
                Tensor.current_stream = 0
                assert model.backend.seen == [] and fake.calls("cuLibraryLoadData") == loaded
                workspaces.add((topk, fake.launches()[-1]["arguments"]["partials"]))
        model.step(1)
        workspaces.add((topk, fake.launches()[-1]["arguments"]["partials"]))
        assert len(workspaces) == topk and leanattn.engine(0).workspace_bytes == 0
    assert loaded > 0
    for graph in graphs:
        fake.destroy_graph(graph)


def test_a_graph_gets_a_plan_for_its_own_batch(adapter, monkeypatch):
    model, asked = Model(adapter), []
    plan = leanattn.Engine.plan
    monkeypatch.setattr(leanattn.Engine, "plan", lambda engine, problem, shape, **options: asked.append(shape.batch) or plan(engine, problem, shape, **options))
    assert model.backend._sizes.batches == (1, 2, 4)
    assert model.backend._batch_for(3) == 4 and asked == []
    model.capture(model.batch(3))
    assert asked == [3, 3] and model.backend._batch_for(3) == 3  # decode and prefill
    model.capture(model.batch(3))
    assert asked == [3, 3]


@pytest.mark.parametrize("chunk, most", [(300, 300), (-1, 16384), (None, 16384)])
def test_steps_with_prefill_are_planned_as_full_as_the_scheduler_makes_them(adapter, chunk, most):
    arguments = types.SimpleNamespace(enable_deterministic_inference=False, attention_backend="leanattn", prefill_attention_backend=None,
                                      kv_cache_dtype="auto", chunked_prefill_size=chunk, max_prefill_tokens=16384)
    backend = Model(adapter, runner={"server_args": arguments}).backend
    planned = backend._device._made
    packed, decode = backend._shape_for(3, {"q_offsets": None}), backend._shape_for(3, {})
    assert (packed, decode) == (leanattn.Shape(4, LONGEST, query_tokens=most), leanattn.Shape(4, LONGEST))
    assert {problem.q_len for problem, shape in planned if shape == packed} == {131072}
    assert {problem.q_len for problem, shape in planned if shape == decode} == {1}


def test_nothing_waits_for_the_gpu(adapter):
    model = Model(adapter, draft_tokens=3, topk=1)
    model.step(2)
    names = ("cuStreamSynchronize", "cuCtxSynchronize", "cuMemcpyDtoHAsync", "cuEventSynchronize")
    waits = [fake.calls(name) for name in names]
    for requests, name, tokens in ((2, "DECODE", 1), (1, "TARGET_VERIFY", 3), (3, "MIXED", 9), (3, "DECODE", 1)):
        model.step(requests, name, tokens)
    assert [fake.calls(name) for name in names] == waits


def test_a_chain_of_drafts_is_verified_under_the_causal_mask(adapter):
    model = Model(adapter, draft_tokens=3, topk=1)
    q, output, (launch,) = model.step(2, "TARGET_VERIFY", tokens=3)
    given, metadata = launch["arguments"], model.backend.forward_metadata
    assert (given["q"], given["o"], given["batch"]) == (q.data, output.data, 2) and output.shape == (6, Q_HEADS * HEAD_DIM)
    assert (given["context_lengths"], given["page_table"]) == (metadata.cache_seqlens_int32.data, metadata.page_table.data)
    assert (given["q_stride_batch"], given["q_stride_token"]) == (3 * q.strides[0], q.strides[0]) and not given["tree_mask"]
    assert len(model.pool.written) == 1 and model.backend.seen == []


def expect_packed(model, batch, tokens):
    """A step whose requests have their own numbers of query tokens, all of them together at most `tokens`, is one launch with query offsets."""
    q, output, (launch,) = model.forward(batch, tokens)
    given, metadata, requests = launch["arguments"], model.backend.forward_metadata, batch.batch_size
    assert (given["q"], given["o"], given["batch"]) == (q.data, output.data, requests) and output.shape == (tokens, Q_HEADS * HEAD_DIM)
    assert (given["context_lengths"], given["page_table"], given["q_offsets"]) == (
        metadata.cache_seqlens_int32.data, metadata.page_table.data, metadata.cu_seqlens_q.data)
    assert (given["q_stride_token"], given["query_tokens"]) == (q.strides[0], tokens) and not given["tree_mask"] and "_rq_" in launch["kernel"]
    assert len(model.pool.written) == 1 and model.backend.seen == []


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("name", ["EXTEND", "MIXED"])
def test_prompts_and_chunks_beside_decode_are_one_launch(adapter, name, page_size):
    model = Model(adapter, page_size=page_size)
    batch = model.batch(3, name)
    model.backend.init_forward_metadata(batch)
    model.backend.forward_metadata.max_seq_len_q = 131072  # the most
    loaded = fake.calls("cuLibraryLoadData")
    expect_packed(model, batch, 140)
    assert fake.calls("cuLibraryLoadData") == loaded


def test_chains_of_another_length_than_at_start_up_have_query_offsets(adapter):
    """Where SGLang adapts the number of drafts to how many are accepted, or pads the rows of a graph."""
    for drafts, tokens in ((2, 6), (2, 9), (3, 12), (17, 51)):
        model = Model(adapter, draft_tokens=3, topk=1)
        batch = model.batch(3, "TARGET_VERIFY")
        model.backend.speculative_num_draft_tokens = drafts
        model.backend.init_forward_metadata(batch)
        expect_packed(model, batch, tokens)


def test_chains_of_more_drafts_than_the_kernels_of_decode_take_have_query_offsets(adapter):
    model = Model(adapter, draft_tokens=17, topk=1)
    batch = model.batch(2, "TARGET_VERIFY")
    model.backend.init_forward_metadata(batch)
    expect_packed(model, batch, 34)


def test_drafts_of_different_numbers_have_query_offsets(adapter):
    """Also where the rows are as many as if their numbers were the same."""
    model = Model(adapter, draft_tokens=3, topk=1)
    batch = model.batch(2, "TARGET_VERIFY", spec_info=types.SimpleNamespace(ragged_verify_layout=1))
    model.backend.init_forward_metadata(batch)
    expect_packed(model, batch, 6)


def test_a_graph_of_prefill_serves_any_mix_that_fits(adapter, version):
    """Lengths, offsets and page tables are where SGLang writes those of the next step."""
    if version.startswith("0.5.12"):
        pytest.skip("this version has no graphs of prefill")
    model = Model(adapter)
    batch = model.batch(3, "EXTEND")
    model.capture(batch)
    captured = model.backend.forward_metadata
    assert 3 in model.backend._sizes.batches  # with a plan of its own
    expect_packed(model, batch, 512)
    model.replay(batch)
    assert model.backend.forward_metadata is captured


def test_a_tree_of_drafts_is_verified_with_its_mask(adapter, trees):
    model = Model(adapter, draft_tokens=3, topk=2)
    _, _, (launch,) = model.step(2, "TARGET_VERIFY", tokens=3)
    given, tree = launch["arguments"], model.backend._tree
    assert (given["tree_mask"], given["context_lengths"], given["page_table"]) == (tree.words.data, tree.lengths.data, tree.page_table.data)
    assert tree.words.shape == (6,) and tree.lengths.dtype == "int32" and model.backend.seen == []
    (_, slots, width), (_, _, _, tokens) = trees
    # The host does not know the lengths, so that the table has room for the longest context and its drafts.
    assert slots is model.backend.req_to_token and (width, tokens) == (LONGEST + 16, 3)


def test_a_graphs_tree_stays_where_it_is(adapter, trees):
    model = Model(adapter, draft_tokens=3, topk=2)
    model.backend.init_cuda_graph_state(MOST_REQUESTS, 3 * MOST_REQUESTS)
    batch = model.batch(2, "TARGET_VERIFY")
    model.capture(batch)
    assert trees == []  # SGLang has no mask yet
    _, _, (launch,) = model.forward(batch, 6)
    captured = launch["arguments"]
    assert model.backend.seen == []
    batch.seq_lens_cpu = Lengths(30, 40)
    model.replay(batch)
    tree = model.backend._tree
    assert (tree.words.data, tree.lengths.data, tree.page_table.data) == (captured["tree_mask"], captured["context_lengths"], captured["page_table"])
    assert tree.words.copied.shape == (6,) and tree.lengths.copied.shape == (2,)
    assert [made[0] for made in trees] == ["table", "words"] and trees[0][2] == 43  # the longest with its draft tokens


def encoder():
    from sglang.srt.layers.radix_attention import AttentionType

    return {"attn_type": AttentionType.ENCODER_ONLY}


@pytest.mark.parametrize("name", ["EXTEND", "TARGET_VERIFY"])
def test_tokens_of_an_encoder_see_all_of_their_request(adapter, name):
    """Over the cache, to which its keys and values are written first; also those of a chain of drafts, as diffusion models make them."""
    model = Model(adapter, **encoder(), **({"draft_tokens": 3, "topk": 1} if name == "TARGET_VERIFY" else {}))
    batch = model.batch(3, name)
    model.backend.init_forward_metadata(batch)
    loaded = fake.calls("cuLibraryLoadData")
    expect_packed(model, batch, 9)
    assert fake.calls("cuLibraryLoadData") == loaded and "full_" in fake.launches()[-1]["kernel"]


def test_a_window_of_an_encoder_reaches_both_ways_where_flash_attentions_does(adapter, version):
    model = Model(adapter, sliding_window_size=23, **encoder())
    _, output, launches = model.step(2, "EXTEND")
    if version.startswith("0.5.23"):
        assert len(launches) == 1 and model.backend._layers[model.layer, False]["window"] == 24
    else:
        assert output == "of FlashAttention"


@pytest.mark.parametrize("kind", ["bf16", "fp8_e4m3"])
@pytest.mark.parametrize("encodes", [False, True])
def test_prompts_that_skip_the_cache_read_keys_and_values_of_the_step(adapter, encodes, kind):
    """Nothing is written, and the type of the cache does not matter."""
    model = Model(adapter, kv_cache_dtype=kind, runner={"without_cache": True}, **(encoder() if encodes else {}))
    batch = model.batch(3, "EXTEND")
    model.backend.init_forward_metadata(batch)
    loaded = fake.calls("cuLibraryLoadData")
    q, output, (launch,) = model.forward(batch, 40)
    given, (k, v), offsets = launch["arguments"], model.kv, model.backend.forward_metadata.cu_seqlens_q.data
    assert (given["q"], given["o"], given["k"], given["v"], given["batch"]) == (q.data, output.data, k.data, v.data, 3)
    assert given["q_offsets"] == given["context_lengths"] == offsets and (given["page_table"], given["k_scale"]) == (0, 0)
    assert (given["query_tokens"], given["context_capacity"]) == (40, 40) and ("full_" in launch["kernel"]) == encodes
    assert model.pool.written == [] and model.backend.seen == [] and fake.calls("cuLibraryLoadData") == loaded


class Lengths(list):
    def __init__(self, *lengths):
        super().__init__(lengths)

    def max(self):
        return max(self)


FLASH = [
    ("prefill that ranks share", {"runner": {"context_ranks": 2}}, ("EXTEND", 1, 40), {}),
    ("a tree of drafts that all see each other", {"topk": 2, "draft_tokens": 3, "attn_type": "ENCODER_ONLY"}, ("TARGET_VERIFY", 2, 6), {}),
    ("an encoder with heads of no multiple of 64", {"attn_type": "ENCODER_ONLY", "head_dim": 80}, ("EXTEND", 1, 40), {}),
    ("a decoder that sees what follows", {"attn_type": "DECODER_BIDIRECTIONAL"}, ("EXTEND", 1, 40), {}),
    ("prefill with cross attention", {"is_cross_attention": True}, ("EXTEND", 1, 40), {}),
    ("cross attention", {"is_cross_attention": True}, ("DECODE", 2, 2), {}),
    ("an encoder", {"attn_type": "ENCODER_ONLY"}, ("DECODE", 2, 2), {}),
    ("another cap", {"logit_capping_method": "sigmoid"}, ("DECODE", 2, 2), {}),
    ("rows without a request", {}, ("DECODE", 2, 4), {}),
    ("a draft of several", {"topk": 2, "draft_tokens": 3}, ("DECODE", 2, 2), {"spec_info": "drafts"}),
    ("a tree of more drafts than the kernels take", {"topk": 2, "draft_tokens": 17}, ("TARGET_VERIFY", 1, 17), {}),
    ("a tree and a window", {"topk": 2, "draft_tokens": 3, "sliding_window_size": 23}, ("TARGET_VERIFY", 2, 6), {}),
    ("a tree in pages of several tokens", {"topk": 2, "draft_tokens": 3, "page_size": 16}, ("TARGET_VERIFY", 2, 6), {}),
    ("rows that are not those of the tree", {"topk": 2, "draft_tokens": 3}, ("TARGET_VERIFY", 2, 8), {}),
]


@pytest.mark.parametrize("why, model, step, batch", FLASH, ids=[case[0] for case in FLASH])
def test_flash_attention_has_what_leanattn_does_not(adapter, trees, why, model, step, batch):
    from sglang.srt.layers.radix_attention import AttentionType

    given = dict(model)
    if "attn_type" in given:
        given["attn_type"] = AttentionType[given["attn_type"]]
    made = Model(adapter, **given)
    of = made.batch(step[1], step[0], **batch)
    made.backend.init_forward_metadata(of)
    _, output, launches = made.forward(of, step[2], save_kv_cache=False)
    (seen,) = made.backend.seen
    assert (launches, output, seen.save_kv_cache, made.pool.written) == ([], "of FlashAttention", False, [])


def test_chunks_that_a_layer_sees_alone_are_flash_attentions(adapter):
    model = Model(adapter, use_irope=True)
    batch = model.batch(2)
    model.backend.init_forward_metadata(batch)
    assert len(model.forward(batch, 2)[2]) == 1
    model.backend.forward_metadata.local_attn_metadata = "chunks"
    assert model.forward(batch, 2)[1] == "of FlashAttention"


@pytest.mark.parametrize("name, value", [("max_seq_len_q", 131073), ("image_token_ranges", "ranges"), ("cu_seqlens_q", None), ("page_table", None)])
def test_prefill_that_the_kernels_do_not_take_is_flash_attentions(adapter, name, value):
    model = Model(adapter)
    batch = model.batch(2, "EXTEND")
    model.backend.init_forward_metadata(batch)
    setattr(model.backend.forward_metadata, name, value)
    assert model.forward(batch, 40)[1] == "of FlashAttention"


def test_arguments_that_leanattn_does_not_know_lead_to_flash_attention(adapter):
    model = Model(adapter)
    batch = model.batch(2)
    model.backend.init_forward_metadata(batch)
    for name, value in {"k_rope": Tensor((2, 64), BF16), "score_mod": len, "return_lse": True}.items():
        assert model.forward(batch, 2, **{name: value})[1] == "of FlashAttention"
        assert model.backend.seen[-1].more == {name: value}
    assert len(model.forward(batch, 2, score_mod=None, return_lse=False)[2]) == 1


def test_a_tree_over_slots_that_are_named_indirectly_is_flash_attentions(adapter, version, trees):
    if not version.startswith("0.5.23"):
        pytest.skip("this version has none")
    model = Model(adapter, draft_tokens=3, topk=2, unified=True)
    assert model.step(2, "TARGET_VERIFY", tokens=3)[1] == "of FlashAttention" and trees == []
    assert len(model.step(2)[2]) == 1


def test_features_of_a_layer_arrive(adapter):
    sinks = Tensor((Q_HEADS,), BF16)
    model = Model(adapter, sliding_window_size=23, logit_cap=30.0, sinks=sinks)
    _, _, (launch,) = model.step(2)
    assert launch["arguments"]["sink_logits"] not in (0, None, sinks.data)  # in the kernels' type
    assert model.backend._layers[model.layer, True] == {"scale": HEAD_DIM**-0.5, "window": 24, "soft_cap": 30.0, "batch_invariant": False}
    plain = Model(adapter).step(2)[2][0]
    assert plain["kernel"] != launch["kernel"] and not plain["arguments"]["sink_logits"]


def test_layers_with_windows_read_their_own_pool(adapter):
    model = Model(adapter, sliding_window_size=23, sliding_window_pool=True)
    _, _, (launch,) = model.step(2)
    metadata = model.backend.forward_metadata
    assert launch["arguments"]["page_table"] == metadata.swa_page_table.data
    metadata.swa_page_table = None  # made in the layer
    assert model.forward(model.batch(2), 2)[1] == "of FlashAttention"
    full = Model(adapter, sliding_window_pool=True)
    assert full.step(2)[2][0]["arguments"]["page_table"] == full.backend.forward_metadata.page_table.data


@pytest.mark.parametrize("kind", ["fp8_e4m3", "fp8_e5m2"])
@pytest.mark.parametrize("scale", ["tensor", "number", None])
def test_fp8_caches_have_sglangs_scales(adapter, kind, scale):
    split = {"server_args": types.SimpleNamespace(enable_deterministic_inference=False, attention_backend="triton", prefill_attention_backend=None,
                                                  kv_cache_dtype=kind, chunked_prefill_size=300, max_prefill_tokens=16384)}
    model = Model(adapter, kv_cache_dtype=kind, runner=split)
    layer = model.layer
    layer.k_scale = layer.v_scale = {"tensor": Tensor((), "fp32"), "number": 0.25, None: None}[scale]
    q, _, (launch,) = model.step(2)
    given = launch["arguments"]
    assert (given["q"], given["k"]) == (q.data, model.pool.buffers[0][0].data) and q.dtype == "bf16"
    if scale == "tensor":
        assert (given["k_scale"], given["v_scale"]) == (layer.k_scale.data, layer.v_scale.data)
    elif scale is None:
        assert not given["k_scale"] and not given["v_scale"]
    else:
        made = model.backend._scales[layer, "k_scale", 0.25]
        assert made.value == 0.25 and given["k_scale"] == made.data
        assert model.step(2)[2][0]["arguments"]["k_scale"] == made.data


def test_values_may_have_a_size_of_their_own(adapter):
    _, output, (launch,) = Model(adapter, v_head_dim=32).step(2)
    assert output.shape == (2, Q_HEADS * 32) and launch["arguments"]["o_stride_batch"] == Q_HEADS * 32


def test_one_kv_head_has_a_plan_as_well(adapter):
    for page_size in (1, 16):
        assert len(Model(adapter, num_kv_heads=1, page_size=page_size).step(2)[2]) == 1


def test_deterministic_inference_is_batch_invariance(adapter, monkeypatch):
    monkeypatch.setattr(stand_in.deterministic, "enable_deterministic_inference", True)
    model = Model(adapter)
    batch = model.batch(2)
    model.backend.init_forward_metadata(batch)
    model.backend.forward_metadata.page_table = Tensor((2, LONGEST + 300), "int32")
    # A plan's context is a limit then, which a table of SGLang may exceed.
    assert model.backend._sizes.context >= LONGEST and len(model.forward(batch, 2)[2]) == 1
    assert model.backend._layers[model.layer, False]["batch_invariant"]
    # Packed query tokens are not batch-invariant.
    assert model.step(2, "EXTEND")[1] == "of FlashAttention"


def test_deterministic_inference_refuses_a_cache_that_its_prefill_does_not_have(adapter, monkeypatch):
    assert len(Model(adapter, kv_cache_dtype="fp8_e5m2").step(2, "EXTEND")[2]) == 1
    monkeypatch.setattr(stand_in.deterministic, "enable_deterministic_inference", True)
    with pytest.raises(ValueError, match="fp8_e5m2.*--prefill-attention-backend"):
        Model(adapter, kv_cache_dtype="fp8_e5m2")


@pytest.mark.parametrize("capability, changes", [((9, 0), {"kv_cache_dtype": "fp8_e4m3"}), ((9, 0), {"head_dim": 80}), ((8, 0), {})])
def test_prefill_without_kernels_made_for_it_is_flash_attentions(adapter, capability, changes):
    sys.modules["torch"].capability = capability
    assert Model(adapter, **changes).step(2, "EXTEND")[1] == "of FlashAttention"
    sys.modules["torch"].capability = (9, 0)
    assert Model(adapter).step(2, "EXTEND")[1] != "of FlashAttention"


@pytest.mark.parametrize("capability, flash", [((8, 0), 3), ((9, 0), 3), ((10, 0), 4), ((12, 0), 4)])
def test_prefill_is_the_flash_attention_of_the_gpu(adapter, capability, flash):
    sys.modules["torch"].capability = capability
    assert Model(adapter).backend.fa_impl_ver == flash


REFUSED = [
    ({"runner": {"use_mla_backend": True}}, "latent attention.*--attention-backend"),
    ({"runner": {"is_draft_worker": True}}, "no draft models.*--speculative-draft-attention-backend"),
    ({"runner": {"dtype": Type("fp32")}}, "torch.float32.*--dtype bfloat16"),
    ({"kv_cache_dtype": "fp16"}, "torch.float16.*--kv-cache-dtype auto"),
    ({"kv_cache_dtype": "fp8_e4m3", "runner": {"kv_cache_dtype_str": "mxfp8"}}, "mxfp8.*--kv-cache-dtype auto"),
    ({"num_heads": 256, "num_kv_heads": 1}, "256 query heads share 1 KV heads.*--attention-backend"),
    ({"num_heads": 7}, "7 query heads share 2 KV heads.*--attention-backend"),
    ({"head_dim": 72}, "head_dim of layer 0 is 72.*--attention-backend"),
    ({"v_head_dim": 8}, "v_head_dim of layer 0 is 8.*--attention-backend"),
]


@pytest.mark.parametrize("given, message", REFUSED, ids=[message.partition(".*")[0] for _, message in REFUSED])
def test_what_cannot_be_served_is_refused_with_what_to_do(adapter, given, message):
    with pytest.raises(ValueError, match=message):
        Model(adapter, **given)


def test_start_up_says_what_was_found_and_how_long_it_took(adapter, caplog):
    caplog.set_level("INFO")
    Model(adapter, draft_tokens=3, topk=1)
    (line,) = [record.getMessage() for record in caplog.records if record.name == "leanattn.sglang.backend"]
    assert f"3 problems and 3 batches up to {MOST_REQUESTS} at context {LONGEST}" in line and "fallback: 9" in line and " s;" in line


def test_the_context_is_a_setting_of_its_own(adapter, monkeypatch):
    monkeypatch.setenv("LEANATTN_SGLANG_CONTEXT", "64")
    assert Model(adapter).backend._sizes.context == 64
    monkeypatch.setenv("LEANATTN_SGLANG_CONTEXT", "all")
    with pytest.raises(ValueError, match="LEANATTN_SGLANG_CONTEXT is 'all'"):
        Model(adapter)
