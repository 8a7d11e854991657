"""Encoders and cross attention in the backend of vLLM, on a GPU that is not there: what their launches get."""
import pytest

fake = pytest.importorskip("_fake_gpu", reason="built with the tests only")
np = pytest.importorskip("numpy")

import leanattn  # noqa: E402
from test_vllm_backend import (ENCODER_LONGEST, HEAD_DIM, KV_HEADS, LONGEST, MOST_TOKENS, Q_HEADS, Model, adapter, batch_invariant,  # noqa: E402, F401
                               needs_no_other, on_another_gpu, step, version)
from vllm_stand_in import Tensor  # noqa: E402


def encoder_step(tokens, **more):
    """As vLLM gives it to the builders of encoders and of cross attention, whatever the model's runner says."""
    return step(tokens, **{"causal": False, **more})


@pytest.mark.parametrize("attn_type, causal", [("encoder_only", False), ("encoder", True)])
@pytest.mark.parametrize("tokens, padded", [([40, 17], 0), ([1, 1], 0), ([9, 1, 0], 3), ([1, 1], 2)])
def test_an_encoder_reads_keys_and_values_of_the_step(adapter, attn_type, causal, tokens, padded):  # noqa: F811
    """They begin where the query tokens of each request begin, and there is no cache."""
    model, common = Model(adapter, attn_type=attn_type), encoder_step(tokens, causal=causal, padded=padded)
    total = sum(tokens) + padded
    Tensor.operations = 0
    metadata = model.builder.build(0, common)
    assert Tensor.operations == 0 and metadata.rest is None
    model.cache = Tensor((0,))
    q, output, (launch,) = model.forward(metadata, total)
    given, (k, v) = launch["arguments"], model.kv
    assert (given["q"], given["k"], given["v"], given["o"]) == (q.data, k.data, v.data, output.data)
    assert given["q_offsets"] == given["context_lengths"] == common.query_start_loc.data and given["page_table"] == 0
    assert (given["batch"], given["query_tokens"], given["context_capacity"]) == (len(tokens), total, total)
    assert (given["k_stride_token"], given["k_stride_head"]) == k.strides[:2] and "full_" in launch["kernel"] and needs_no_other(model)


def test_a_window_of_an_encoder_reaches_both_ways(adapter):  # noqa: F811
    model = Model(adapter, attn_type="encoder_only", sliding_window=24, logits_soft_cap=30.0, sinks=Tensor((Q_HEADS,), "bf16"))
    (launch,) = model.forward(model.builder.build(0, encoder_step([40])), 40)[2]
    assert (model.impl._constant["window"], model.impl._constant["mask"]) == (24, "full") and launch["arguments"]["sink_logits"] != 0


@pytest.mark.parametrize("cache", ["fp8", "int8_per_token_head"])
def test_the_type_of_a_cache_does_not_matter_to_an_encoder(adapter, cache):  # noqa: F811
    model = Model(adapter, attn_type="encoder_only", kv_cache_dtype=cache)
    (launch,) = model.forward(model.builder.build(0, encoder_step([40])), 40)[2]
    assert launch["arguments"]["k"] == model.kv[0].data and launch["arguments"]["k_scale"] == 0 and needs_no_other(model)


@pytest.mark.parametrize("setting", [on_another_gpu, batch_invariant])
def test_where_prefill_has_no_kernels_encoders_are_flash_attentions(adapter, setting, monkeypatch):  # noqa: F811
    setting(monkeypatch)
    model = Model(adapter, attn_type="encoder_only")
    assert model.forward(model.builder.build(0, encoder_step([40])), 40)[2] == [] and len(model.impl.other.seen) == 1


@pytest.mark.parametrize("cache", ["auto", "int8_per_token_head"])
@pytest.mark.parametrize("tokens", [[1, 1, 1], [40, 1], [4]])
def test_cross_attention_reads_all_of_an_encoders_cache(adapter, tokens, cache):  # noqa: F811
    """Whose lengths vLLM gives as those of the requests. How many query tokens there are says nothing of what they see."""
    model, common = Model(adapter, attn_type="encoder_decoder", kv_cache_dtype=cache), encoder_step(tokens)
    metadata = model.builder.build(0, common)
    assert metadata.rest is None and metadata.rows.shape.longest_context == ENCODER_LONGEST > LONGEST
    q, output, (launch,) = model.forward(metadata, sum(tokens))
    given = launch["arguments"]
    assert (given["q"], given["o"], given["context_lengths"]) == (q.data, output.data, common.seq_lens.data)
    assert (given["page_table"], given["k"]) == (common.block_table_tensor.data, model.cache.data)
    assert given["q_offsets"] == (0 if max(tokens) == 1 else common.query_start_loc.data) and model.impl._constant["mask"] == "full"
    assert max(tokens) == 1 or "full_" in launch["kernel"]


def test_cross_attention_is_split_where_prefill_has_no_kernels(adapter, monkeypatch):  # noqa: F811
    on_another_gpu(monkeypatch)
    model = Model(adapter, attn_type="encoder_decoder")
    metadata = model.builder.build(0, encoder_step([1, 1, 4]))
    assert (metadata.rows.tokens, metadata.rest.num_actual_tokens) == (2, 4) and len(model.forward(metadata, 6)[2]) == 1


def test_images_of_a_prompt_are_not_seen_both_ways_by_cross_attention(adapter):  # noqa: F811
    for attn_type in ("encoder_only", "encoder_decoder"):
        model = Model(adapter, images=True, attn_type=attn_type)
        metadata = model.builder.build(0, encoder_step([9], mm_req_doc_ranges={0: [(2, 6)]}, seq_lens_cpu_upper_bound=np.array([9])))
        assert metadata.mm_prefix_range_tensor is None and len(model.forward(metadata, 9)[2]) == 1


def test_encoders_are_planned_as_full_as_the_scheduler_makes_steps(adapter):  # noqa: F811
    shape = Model(adapter, attn_type="encoder_only").builder.build(0, encoder_step([1, 30])).rows.shape
    assert shape == leanattn.Shape(2, LONGEST, query_tokens=MOST_TOKENS)
