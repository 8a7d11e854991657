"""Latent attention over selected tokens in vLLM, on a GPU that is not there, in a vLLM that is not there: what arrives at the driver, and what stays."""
import sys
import types

import pytest

fake = pytest.importorskip("_fake_gpu", reason="built with the tests only")

import leanattn  # noqa: E402
import vllm_stand_in as stand_in  # noqa: E402
from test_vllm_backend import GRAPHS, INTERLEAVE, LONGEST, MOST_REQUESTS  # noqa: E402
from vllm_stand_in import Tensor  # noqa: E402

HEADS, LATENT, ROPE, PAGE, PAGES, ENTRIES, ROWS = 16, 512, 64, 64, 32, 256, 3
ROW, PACKED_ROW = LATENT + ROPE, 656


@pytest.fixture(params=stand_in.VERSIONS)
def adapter(request, engines, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(uint8="uint8"))
    with stand_in.installed(request.param) as module:
        yield module


class Model:
    """A model of latent attention whose query tokens see what an indexer chose, as vLLM knows it after loading."""

    def __init__(self, adapter, kv_cache_dtype="fp8_ds_mla", heads=HEADS, speculative=0, ranks=1, hisparse=False):
        backend = adapter.SelectedBackend
        stand_in.group.world_size = ranks
        self.impl = backend.get_impl_cls()(heads, ROW, 0.13, 1, None, None, kv_cache_dtype, None, "decoder", None, q_lora_rank=1536, kv_lora_rank=LATENT,
                                           qk_nope_head_dim=128, qk_rope_head_dim=ROPE, qk_head_dim=192, v_head_dim=128, kv_b_proj=None)
        self.impl.seen.clear()
        layer = types.SimpleNamespace(impl=self.impl)
        config = types.SimpleNamespace(
            model_config=types.SimpleNamespace(max_model_len=LONGEST, dtype="torch.bfloat16", hf_config=types.SimpleNamespace(index_topk=ENTRIES)),
            scheduler_config=types.SimpleNamespace(max_num_seqs=MOST_REQUESTS), hisparse=hisparse,
            parallel_config=types.SimpleNamespace(decode_context_parallel_size=ranks, cp_kv_cache_interleave_size=INTERLEAVE),
            speculative_config=types.SimpleNamespace(num_speculative_tokens=speculative) if speculative else None,
            compilation_config=types.SimpleNamespace(static_forward_context={"layer": layer}, cudagraph_capture_sizes=list(GRAPHS)))
        try:
            backend.get_builder_cls()(types.SimpleNamespace(block_size=PAGE), ["layer"], config, types.SimpleNamespace(type="cuda", index=0))
        except leanattn.Error as error:
            if error.code == "nvrtc_missing":
                pytest.skip(error.message)
            raise
        self.packed = kv_cache_dtype == "fp8_ds_mla"
        self.cache = Tensor((PAGES, PAGE, PACKED_ROW), "fp8_e4m3") if self.packed else Tensor((PAGES, PAGE, ROW))

    def decode(self, requests, tokens=1):
        """A step's rows, as vLLM gives them to its kernel for packed rows. Returns q, the lists, what came back and the launches."""
        q, chosen = Tensor((requests, tokens, self.impl.num_heads, ROW)), Tensor((requests, tokens, ENTRIES), "int32")
        before, loaded = len(fake.launches()), fake.calls("cuLibraryLoadData")
        made = self.impl._fp8_flash_mla_kernel(q=q, kv_c_and_k_pe_cache=self.cache, topk_indices=chosen, kernel_metadata=None)
        assert fake.calls("cuLibraryLoadData") == loaded
        return q, chosen, made, fake.launches()[before:]


def test_a_decode_step_over_packed_rows_arrives_as_vllm_has_it(adapter):
    model = Model(adapter)
    q, chosen, (output, lse), (launch,) = model.decode(3)
    given = launch["arguments"]
    assert output.shape == (3, 1, HEADS, LATENT) and lse is None and model.impl.seen == []
    assert (given["q"], given["o"], given["k"], given["selection"]) == (q.data, output.data, model.cache.data, chosen.data)
    assert (given["batch"], given["pool_pages"], given["page_table"], given["lse"]) == (3, PAGES, 0, 0)
    counts = model.impl.plans.arguments(3, None)["selected_counts"]
    assert (given["context_lengths"], counts.shape, counts.value) == (counts.data, (3,), ENTRIES)
    assert (given["k_stride_batch"], given["k_stride_token"]) == (PAGE * PACKED_ROW, PACKED_ROW)


def test_every_query_token_is_a_request_of_its_own(adapter):
    """Speculation, and steps in which vLLM has all tokens in one row of its batch."""
    model = Model(adapter, speculative=2)
    for requests, tokens in ((4, 3), (1, 7)):
        q, chosen, (output, _), (launch,) = model.decode(requests, tokens)
        given = launch["arguments"]
        assert output.shape == (requests, tokens, HEADS, LATENT)
        assert (given["batch"], given["q"], given["selection"]) == (requests * tokens, q.data, chosen.data)


def test_more_query_tokens_than_decode_steps_have_stay_with_flash_mla(adapter):
    model = Model(adapter)
    assert model.decode(MOST_REQUESTS)[3]
    *_, made, launches = model.decode(1, MOST_REQUESTS + 1)
    assert made == "of FlashMLA" and launches == [] and len(model.impl.seen) == 1
    assert Model(adapter, speculative=1).decode(1, 2 * MOST_REQUESTS)[3]


def test_a_bf16_cache_is_read_by_vllms_counts(adapter):
    model = Model(adapter, kv_cache_dtype="auto")
    q, chosen, counts = Tensor((ROWS, HEADS, ROW)), Tensor((ROWS, ENTRIES), "int32"), Tensor((ROWS,), "int32")
    made = model.impl._bf16_flash_mla_kernel(q, model.cache, chosen, counts)
    output = made[0] if isinstance(made, tuple) else made
    given = fake.launches()[-1]["arguments"]
    assert output.shape == (ROWS, HEADS, LATENT) and model.impl.seen == []
    # The kernel has the counts in the place of lengths.
    assert (given["q"], given["o"], given["k"], given["selection"], given["context_lengths"]) == (
        q.data, output.data, model.cache.data, chosen.data, counts.data)
    assert (given["batch"], given["pool_pages"], given["k_stride_token"]) == (ROWS, PAGES, ROW)


def test_heads_that_vllm_padded_are_left_out(adapter):
    if adapter.__name__.endswith("v026"):
        pytest.skip("vLLM 0.26 pads inside of its kernel")
    model = Model(adapter, kv_cache_dtype="auto")
    q = Tensor((ROWS, 64, ROW))
    output, lse = model.impl._bf16_flash_mla_kernel(q, model.cache.view(-1, ROW), Tensor((ROWS, ENTRIES), "int32"), Tensor((ROWS,), "int32"), HEADS)
    given = fake.launches()[-1]["arguments"]
    assert output.shape == (ROWS, HEADS, LATENT) and lse is None and (given["q"], given["pool_pages"]) == (q.data, PAGES)


def test_prefill_over_a_workspace_stays_with_flash_mla(adapter):
    """Its rows were converted from packed ones, and its places are those of the workspace."""
    model = Model(adapter)
    given = Tensor((ROWS, HEADS, ROW)), Tensor((PAGES * PAGE, ROW)), Tensor((ROWS, ENTRIES), "int32"), Tensor((ROWS,), "int32")
    before = len(fake.launches())
    assert model.impl._bf16_flash_mla_kernel(*given) == "of FlashMLA"
    assert len(fake.launches()) == before and model.impl.seen[0][0][:4] == given


def test_ranks_and_caches_on_the_host_stay_with_flash_mla(adapter):
    for more in ({"ranks": 2}, {"hisparse": True}):
        *_, made, launches = Model(adapter, **more).decode(3)
        assert made == "of FlashMLA" and launches == []


def test_steps_need_nothing_that_was_not_made_at_start_up(adapter):
    """Neither a kernel nor a plan, so that any step can be captured right away. decode() checks it."""
    model = Model(adapter, speculative=2)
    stream = fake.make_stream()
    Tensor.current_stream = stream
    try:
        for requests, tokens in ((1, 1), (3, 1), (2, 3), (MOST_REQUESTS, 3)):
            fake.begin_capture(stream)
            model.decode(requests, tokens)
            graph = fake.end_capture(stream)
            fake.replay(graph, stream)
            fake.destroy_graph(graph)
    finally:
        Tensor.current_stream = 0


def test_more_heads_than_the_kernels_take_are_refused_by_name(adapter):
    with pytest.raises(ValueError, match="256 query heads.*--attention-backend"):
        Model(adapter, heads=256)


def test_only_what_the_kernels_read_is_offered(adapter):
    backend = adapter.SelectedBackend
    assert backend.supported_kv_cache_dtypes == ["auto", "bfloat16", "fp8_ds_mla"] and backend.get_supported_head_sizes() == [576]
    assert [backend.supports_compute_capability(types.SimpleNamespace(major=major)) for major in (8, 9, 10)] == [False, True, False]
