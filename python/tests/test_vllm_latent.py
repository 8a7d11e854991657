"""Latent attention in vLLM on a GPU that is not there, in a vLLM that is not there: which rows go to leanattn, and what arrives at the driver."""
import sys
import types

import pytest

fake = pytest.importorskip("_fake_gpu", reason="built with the tests only")

import leanattn  # noqa: E402
import vllm_stand_in as stand_in  # noqa: E402
from test_vllm_backend import GRAPHS, INTERLEAVE, LONGEST, MOST_REQUESTS, WIDTH, local, step  # noqa: E402
from vllm_stand_in import Tensor  # noqa: E402

HEADS, LATENT, ROPE, PAGE, PAGES = 16, 512, 64, 64, 32
ROW = LATENT + ROPE


@pytest.fixture(params=stand_in.VERSIONS)
def adapter(request, engines, monkeypatch):
    with stand_in.installed(request.param) as module:
        monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=types.SimpleNamespace(current_device=lambda: 0)))
        yield module


class Model:
    """A model of latent attention, as vLLM knows it after loading: its configuration, a layer and the builder of its metadata."""

    def __init__(self, adapter, speculative=0, kv_cache_dtype="auto", heads=HEADS, ranks=1):
        backend, self.ranks = adapter.LatentBackend, ranks
        stand_in.group.world_size = ranks
        self.impl = backend.get_impl_cls()(heads, ROW, 0.13, 1, None, None, kv_cache_dtype, None, "decoder", None, q_lora_rank=1536, kv_lora_rank=LATENT,
                                           qk_nope_head_dim=128, qk_rope_head_dim=ROPE, qk_head_dim=192, v_head_dim=128, kv_b_proj=None)
        self.layer = types.SimpleNamespace(impl=self.impl, _k_scale=Tensor((), "fp32"))
        config = types.SimpleNamespace(
            model_config=types.SimpleNamespace(max_model_len=LONGEST, dtype="torch.bfloat16"),
            scheduler_config=types.SimpleNamespace(max_num_seqs=MOST_REQUESTS),
            parallel_config=types.SimpleNamespace(decode_context_parallel_size=ranks, cp_kv_cache_interleave_size=INTERLEAVE),
            speculative_config=types.SimpleNamespace(num_speculative_tokens=speculative) if speculative else None,
            compilation_config=types.SimpleNamespace(static_forward_context={"layer": self.layer}, cudagraph_capture_sizes=list(GRAPHS)))
        try:
            self.builder = backend.get_builder_cls()(types.SimpleNamespace(block_size=PAGE), ["layer"], config, types.SimpleNamespace(type="cuda", index=0))
        except leanattn.Error as error:
            if error.code == "nvrtc_missing":
                pytest.skip(error.message)
            raise
        self.cache = Tensor((PAGES, PAGE, ROW), "fp8_e4m3" if kv_cache_dtype == "fp8" else "bf16")

    def forward(self, metadata, tokens):
        """What the layer does with a step's rows, for which every kernel is there already. Returns q, the output and the launches."""
        q = Tensor((tokens, self.impl.num_heads * self.ranks, ROW))  # vLLM has the heads of all ranks in it
        before, loaded = len(fake.launches()), fake.calls("cuLibraryLoadData")
        output, lse = self.impl.forward_mqa(q, self.cache, metadata, self.layer)
        assert output.shape == (*q.shape[:2], LATENT) and fake.calls("cuLibraryLoadData") == loaded
        launches = fake.launches()[before:]
        if self.ranks == 1:
            assert lse is None and launches[0]["arguments"]["lse"] == 0
        else:
            assert (lse.shape, lse.dtype, lse.data) == (q.shape[:2], "fp32", launches[0]["arguments"]["lse"])
        return q, output, launches


class Prefill:
    """Prefill of latent attention, as a builder of metadata has it, for values of 128 columns."""

    def __init__(self, adapter, **scheduler):
        config = types.SimpleNamespace(
            model_config=types.SimpleNamespace(max_model_len=LONGEST, dtype="torch.bfloat16"),
            scheduler_config=types.SimpleNamespace(**{"max_num_seqs": MOST_REQUESTS, "max_num_batched_tokens": 64, **scheduler}))
        self.sizes = {"qk_nope_head_dim": 128, "qk_rope_head_dim": ROPE, "v_head_dim": 128}
        self.backend = adapter.LatentPrefill(HEADS, 0.13, LATENT, *self.sizes.values(), config).clone()

    def run(self, method, *before, query_tokens, tokens, metadata, **more):
        """q, k and v, what came back, and the launch, for which every kernel is there already."""
        self.backend.prepare_metadata(metadata)
        # Values are a part of what one projection makes.
        q, k, v = Tensor((query_tokens, HEADS, 192)), Tensor((tokens, HEADS, 192)), Tensor((tokens, HEADS, 256))[:, :, 128:]
        launches, loaded = len(fake.launches()), fake.calls("cuLibraryLoadData")
        made = getattr(self.backend, method)(*before, q=q, k=k, v=v, **more)
        (launch,) = fake.launches()[launches:]
        assert fake.calls("cuLibraryLoadData") == loaded
        given = launch["arguments"]
        assert (given["q"], given["k"], given["v"], given["kv_heads"], given["v_stride_token"]) == (q.data, k.data, v.data, HEADS, HEADS * 256)
        assert (given["query_tokens"], given["context_capacity"]) == (query_tokens, tokens)
        return made, launch


@pytest.mark.parametrize("lse", [False, True])
def test_new_tokens_of_prefill_read_keys_and_values_of_the_step(adapter, lse):
    starts = Tensor((4,), "int32")
    made, launch = Prefill(adapter).run("run_prefill_new_tokens", query_tokens=50, tokens=50, return_softmax_lse=lse,
                                        metadata=types.SimpleNamespace(query_start_loc=starts, max_query_len=40))
    given, output = launch["arguments"], made[0] if lse else made
    assert given["q_offsets"] == given["context_lengths"] == starts.data and (given["batch"], given["o"]) == (3, output.data)
    assert output.shape == (50, HEADS, 128) and "full_" not in launch["kernel"] and (given["lse"] != 0) == lse
    assert not lse or made[1].shape == (HEADS, 50)


@pytest.mark.parametrize("given_out", [False, True])
def test_what_is_before_them_is_seen_whole_in_chunks(adapter, given_out):
    starts, ends = Tensor((4,), "int32"), Tensor((2, 4), "int32")
    metadata = types.SimpleNamespace(query_start_loc=starts, max_query_len=40, chunked_context=types.SimpleNamespace(cu_seq_lens=ends))
    out = Tensor((50, HEADS, 128))
    if adapter.__name__.endswith("v026"):
        before, more, where = (1,), {}, ends.data + 4 * 4
    else:
        chunk = types.SimpleNamespace(query_start_loc=starts, cu_seq_lens=ends[1], max_query_len=40)
        before, more, where = (chunk,), {"out": out} if given_out else {}, ends.data + 4 * 4
    (output, lse), launch = Prefill(adapter).run("run_prefill_context_chunk", *before, query_tokens=50, tokens=300, metadata=metadata, **more)
    given = launch["arguments"]
    assert (given["q_offsets"], given["context_lengths"], given["o"]) == (starts.data, where, output.data) and "full_" in launch["kernel"]
    assert lse.shape == (HEADS, 50) and (not more or output.data == out.data)


def test_a_prompt_that_is_longer_than_a_launch_takes_is_refused(adapter):
    metadata = types.SimpleNamespace(query_start_loc=Tensor((2,), "int32"), max_query_len=131073)
    with pytest.raises(ValueError, match="131073 query tokens.*--max-num-batched-tokens"):
        Prefill(adapter).run("run_prefill_new_tokens", query_tokens=50, tokens=50, return_softmax_lse=False, metadata=metadata)


def test_prefill_takes_what_its_kernels_are_made_for(adapter, monkeypatch):
    import vllm.envs
    from vllm.v1.attention.backends.mla.prefill.base import MLADimensions

    prefill = adapter.LatentPrefill
    assert all(prefill.supports_mla_dimensions(MLADimensions(*sizes)) for sizes in ((128, 64, 128), (192, 64, 256), (256, 0, 256)))
    assert not any(prefill.supports_mla_dimensions(MLADimensions(*sizes)) for sizes in ((96, 48, 128), (256, 64, 256)))
    assert prefill.is_available()
    monkeypatch.setattr(vllm.envs, "VLLM_BATCH_INVARIANT", True)
    assert not prefill.is_available()
    monkeypatch.setattr(stand_in.Platform, "family", 100)
    assert not prefill.supports_mla_dimensions(MLADimensions(128, 64, 128))


def test_a_decode_step_arrives_as_vllm_has_it(adapter):
    model, common = Model(adapter), step([1, 1, 1])
    metadata = model.builder.build(0, common)
    q, output, (launch,) = model.forward(metadata, 3)
    given = launch["arguments"]
    assert (given["q"], given["o"], given["k"], given["v"]) == (q.data, output.data, model.cache.data, model.cache.data)
    assert (given["context_lengths"], given["page_table"]) == (common.seq_lens.data, common.block_table_tensor.data)
    assert (given["k_stride_batch"], given["k_stride_token"]) == (PAGE * ROW, ROW)
    assert (given["batch"], given["pool_pages"], given["kv_heads"]) == (3, PAGES, 1)
    rows = metadata.decode.rows
    assert (rows.tokens, rows.shape.batch, rows.shape.longest_context, rows.offsets) == (3, 4, LONGEST, None)


def test_queries_in_two_parts_are_joined(adapter, monkeypatch):
    """vLLM has what the projections made and what was rotated apart."""
    model, joined = Model(adapter), Tensor((2, HEADS, ROW))
    parts = Tensor((2, HEADS, LATENT)), Tensor((2, HEADS, ROPE))
    seen = []
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cat=lambda tensors, dim: seen.append((tensors, dim)) or joined))
    model.impl.forward_mqa(parts, model.cache, model.builder.build(0, step([1, 1])), model.layer)
    assert seen == [(parts, -1)] and fake.launches()[-1]["arguments"]["q"] == joined.data


def test_only_the_front_of_a_mixed_step_is_decoded(adapter):
    model = Model(adapter)
    metadata = model.builder.build(0, step([1, 1, 40]))
    assert (metadata.num_decodes, metadata.num_decode_tokens, metadata.num_prefills) == (2, 2, 1)
    rows = metadata.decode.rows
    assert (rows.tokens, rows.lengths.shape, rows.page_table.shape) == (2, (2,), (2, WIDTH))
    assert model.builder.build(0, step([40])).decode is None


def test_contexts_of_prefill_count_wherever_they_stand(engines):
    """vLLM 0.26 would merge the tokens of as many first requests as have a context, and its order of requests does not put these first."""
    with stand_in.installed(next(version for version in stand_in.VERSIONS if version.startswith("0.26."))) as adapter:
        model = Model(adapter)
        lengths, common = [90, 17, 500], step([1, 17, 60])  # of the prompts, the second has a context
        common.seq_lens_cpu_upper_bound = lengths
        assert model.builder.build(0, common).prefill.chunked_context.prefill_tokens_with_context is None
        common.seq_lens_cpu_upper_bound = [90, 17, 60]
        assert model.builder.build(0, common).prefill.chunked_context is None
        assert model.builder.build(0, step([1, 1])).prefill is None
        # Selected tokens have the same prefill while contexts are short.
        assert adapter.ContextsAnywhere in adapter.SelectedBackend.get_builder_cls().__mro__


def test_speculation_is_ragged_and_padding_has_no_tokens(adapter):
    model, common = Model(adapter, speculative=2), step([3, 2, 3, 0])
    metadata = model.builder.build(0, common)
    rows = metadata.decode.rows
    assert (rows.tokens, rows.most_tokens, rows.lengths.shape) == (8, 3, (4,))
    _, _, (launch,) = model.forward(metadata, 8)
    assert (launch["arguments"]["q_offsets"], launch["arguments"]["batch"]) == (common.query_start_loc.data, 4)
    assert model.builder.build(0, step([1, 1])).decode.rows.offsets is None


def test_padding_without_speculation_is_left_out(adapter):
    rows = Model(adapter).builder.build(0, step([1, 1, 0])).decode.rows
    assert (rows.tokens, rows.lengths.shape, rows.offsets) == (2, (2,), None)


def test_steps_need_nothing_that_was_not_made_at_start_up(adapter):
    """Neither a kernel nor a plan, so that any step can be captured right away. forward() checks it."""
    model = Model(adapter, speculative=2)
    stream = fake.make_stream()
    Tensor.current_stream = stream
    try:
        for tokens in ([1], [1, 1, 1], [3, 3], [3, 1, 2, 3]):
            metadata = model.builder.build(0, step(tokens))
            fake.begin_capture(stream)
            model.forward(metadata, sum(tokens))
            graph = fake.end_capture(stream)
            fake.replay(graph, stream)
            fake.destroy_graph(graph)
    finally:
        Tensor.current_stream = 0


def test_ranks_have_their_part_of_every_context(adapter):
    model, common = Model(adapter, ranks=4), step([1, 1, 1], **local(3))
    assert model.impl.need_to_return_lse_for_decode and model.impl.lse_base_on_e
    metadata = model.builder.build(0, common)
    rows = metadata.decode.rows
    assert (rows.tokens, rows.shape.batch, rows.shape.longest_context, rows.offsets) == (3, 4, LONGEST // 4, None)
    assert metadata.decode.seq_lens.data == common.dcp_local_seq_lens.data  # by which vLLM masks ranks without tokens
    assert metadata.decode.dcp_tot_seq_lens.data == common.seq_lens.data
    q, output, (launch,) = model.forward(metadata, 3)
    given = launch["arguments"]
    assert (given["q"], given["o"], given["context_lengths"]) == (q.data, output.data, common.dcp_local_seq_lens.data)


def test_over_ranks_only_single_tokens_are_decoded(adapter):
    """What is causal in the positions of a context is not so in those of a rank."""
    model = Model(adapter, speculative=2, ranks=2)
    assert model.builder.reorder_batch_threshold == 1
    metadata = model.builder.build(0, step([1, 1, 3], **local(3)))
    assert (metadata.num_decodes, metadata.num_prefills, metadata.decode.rows.offsets) == (2, 1, None)


def test_drafts_have_graphs_only_where_they_are_decoded(adapter):
    """vLLM's builder refuses to capture others, and an engine would not start."""
    for given, support in (({}, "UNIFORM_BATCH"), ({"speculative": 2}, "UNIFORM_BATCH"), ({"speculative": 15}, "UNIFORM_BATCH"),
                           ({"speculative": 16}, "UNIFORM_SINGLE_TOKEN_DECODE"), ({"ranks": 2}, "UNIFORM_BATCH"),
                           ({"speculative": 2, "ranks": 2}, "UNIFORM_SINGLE_TOKEN_DECODE")):
        model = Model(adapter, **given)
        assert model.builder.get_cudagraph_support(model.builder.vllm_config, None).name == support, given
        assert support != "UNIFORM_BATCH" or model.builder.reorder_batch_threshold == 1 + given.get("speculative", 0)


def test_ranks_of_both_kinds_are_refused_by_name(adapter):
    stand_in.group.prefill_ranks = 2
    with pytest.raises(ValueError, match="prefill context parallelism.*--attention-backend"):
        Model(adapter, ranks=2)
    assert Model(adapter).impl.pcp_world_size == 2


def test_an_fp8_cache_has_vllms_scale_and_queries_stay(adapter):
    model = Model(adapter, kv_cache_dtype="fp8")
    assert not model.impl.supports_quant_query_input
    _, _, (launch,) = model.forward(model.builder.build(0, step([1, 1])), 2)
    assert launch["arguments"]["k_scale"] == model.layer._k_scale.data


def test_more_draft_tokens_than_the_kernels_take_are_prefill(adapter):
    model = Model(adapter, speculative=16)
    assert model.builder.reorder_batch_threshold == 1
    assert model.builder.build(0, step([17, 17])).decode is None


def test_more_heads_than_the_kernels_take_are_refused_by_name(adapter):
    for ranks, heads in ((1, 256), (4, 64)):  # of all ranks together
        with pytest.raises(ValueError, match="256 query heads.*--attention-backend"):
            Model(adapter, heads=heads, ranks=ranks)


def test_batch_invariance_is_vllms_own_setting(adapter, monkeypatch):
    import vllm.envs

    monkeypatch.setattr(vllm.envs, "VLLM_BATCH_INVARIANT", True)
    model = Model(adapter)
    metadata = model.builder.build(0, step([1, 1]))
    assert metadata.decode.rows.shape.longest_context >= LONGEST and len(model.forward(metadata, 2)[2]) == 1
    assert adapter.LatentBackend.supports_batch_invariance()
