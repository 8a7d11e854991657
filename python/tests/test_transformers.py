"""Transformers on the CPU: which steps go to leanattn, and that what they are given means what the mask meant. A reference stands for the kernel."""
import copy
import inspect
import itertools

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers = pytest.importorskip("transformers", reason="Transformers is not installed")

import leanattn.transformers  # noqa: E402
import models  # noqa: E402
import reference  # noqa: E402

NEW_TOKENS = 40  # past Gemma-2's window of 24
BATCHED_TOKENS = 16


@pytest.fixture
def calls(monkeypatch):
    """Lets CPU tensors through, and counts what arrives: (query tokens of each request, paged)."""
    made = []

    def decode(q, k_cache, v_cache, context_lengths, page_table=None, **options):
        assert q.ndim == 3 or q.shape[1] <= 16, "a kernel without query offsets has no more query tokens"
        made.append((q.shape[:-2].numel() // len(context_lengths), page_table is not None))
        return reference.decode(q, k_cache, v_cache, context_lengths, page_table, **options)

    monkeypatch.setattr(leanattn.transformers, "takes", lambda device, dtype: True)
    monkeypatch.setattr(leanattn.transformers, "_decode", decode)
    return made


def expect_the_same(name, inputs, new_tokens=NEW_TOKENS, **more):
    other = "eager" if name == "gemma2" else "sdpa"  # SDPA leaves the soft cap out
    tokens, logits = models.generate(models.make(name, "leanattn", "cpu", torch.float32), inputs, new_tokens, **more)
    expected_tokens, expected_logits = models.generate(models.make(name, other, "cpu", torch.float32), inputs, new_tokens, **more)
    torch.testing.assert_close(logits, expected_logits, rtol=1e-4, atol=1e-4)
    assert torch.equal(tokens, expected_tokens)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", models.CONFIGS)
def test_every_step_goes_to_leanattn_and_agrees(calls, name, cache):
    more = {"disable_compile": True, "cache_implementation": "static"} if cache == "static" else {}
    expect_the_same(name, models.prompt(2, 10 if name != "gemma2" else 20, "cpu"), **more)
    layers, tokens = 2, 10 if name != "gemma2" else 20
    if name == "opt" and transformers.__version__ < "5":
        assert calls == []  # it makes its mask by itself there, and stays with SDPA
    else:
        assert calls == [(tokens, False)] * layers + [(1, False)] * layers * (NEW_TOKENS - 1)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_padding_in_front_becomes_a_page_table(calls, cache):
    more = {"disable_compile": True, "cache_implementation": "static"} if cache == "static" else {}
    expect_the_same("llama", models.prompt(3, 10, "cpu", padding=(4, 0, 7)), **more)
    assert calls == [(10, True)] * 2 + [(1, True)] * (2 * (NEW_TOKENS - 1))


def test_a_padded_batch_with_windows_agrees(calls):
    expect_the_same("gemma2", models.prompt(2, 20, "cpu", padding=(5, 0)))


@pytest.mark.parametrize("padding", [(), (0, 19)])
@pytest.mark.parametrize("name, chunks", [("llama", (21, 9)), ("llama", (40, 50, 33)), ("gemma2", (70, 33)), ("qwen2", (17, 16, 17))])
def test_prompts_and_chunks_agree(calls, name, chunks, padding):
    """A prompt, and chunks of any length over a cache, such as the few tokens of assisted decoding."""
    inputs = models.prompt(2, sum(chunks), "cpu", padding)
    logits = {}
    for implementation in ("leanattn", "eager" if name == "gemma2" else "sdpa"):
        model, cache, made = models.make(name, implementation, "cpu", torch.float32), None, []
        for begin, end in zip([0, *itertools.accumulate(chunks)], itertools.accumulate(chunks)):
            mask = inputs["attention_mask"][:, :end]
            positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, begin:]
            with torch.no_grad():
                step = model(inputs["input_ids"][:, begin:end], attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True)
            cache, made = step.past_key_values, [*made, step.logits]
        logits[implementation] = torch.cat(made, 1)[inputs["attention_mask"].bool()]
    torch.testing.assert_close(*logits.values(), rtol=1e-4, atol=1e-4)
    whole = 1 if padding and name == "gemma2" else 2  # layers: a window over a padded batch is SDPA's
    assert calls == [(chunk, bool(padding)) for chunk in chunks for _ in range(whole)]


def test_training_stays_with_sdpa(calls, monkeypatch):
    """A prompt needs no mask there, and a step over a cache has one."""
    masks, sdpa = [], leanattn.transformers.sdpa_attention_forward
    monkeypatch.setattr(leanattn.transformers, "sdpa_attention_forward", lambda *given, **named: masks.append(given[4]) or sdpa(*given, **named))
    model = models.make("llama", "leanattn", "cpu", torch.float32)
    ids = models.prompt(1, 40, "cpu")["input_ids"]
    model(ids[:, :20]).logits.sum().backward()
    assert masks == [None] * 2
    with torch.no_grad():
        cache = model(ids[:, :20], use_cache=True).past_key_values
    assert calls == [(20, False)] * 2
    for end in (21, 40):
        model(ids[:, 20:end], past_key_values=copy.deepcopy(cache)).logits.sum().backward()
    assert calls == [(20, False)] * 2


def test_more_tokens_than_a_launch_takes_are_left_to_sdpa(monkeypatch):
    """SDPA needs no mask for a prompt, which would have 137 GB."""
    monkeypatch.setattr(leanattn.transformers, "takes", lambda device, dtype: True)
    where = {"batch_size": 1, "kv_offset": 0, "allow_is_causal_skip": True}
    if "q_length" not in inspect.signature(leanattn.transformers.sdpa_mask).parameters:
        pytest.skip("older versions of Transformers give the positions of the queries")
    with torch.no_grad():
        made = [leanattn.transformers.step_mask(q_length=tokens, q_offset=0, kv_length=tokens, **where) for tokens in (131072, 131073)]
    assert made[0].tolist() == [[[[131072]]]] and made[1] is None


def test_cpu_tensors_take_the_way_of_sdpa():
    """Without the fixture nothing fits, and no kernel is asked for."""
    expect_the_same("llama", models.prompt(2, 10, "cpu", padding=(3, 0)), new_tokens=4)


@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize("padding", [(0, 0), (2, 4)])
def test_a_step_mask_and_its_bool_mask_say_the_same(window, padding, monkeypatch):
    monkeypatch.setattr(leanattn.transformers, "takes", lambda device, dtype: True)
    from transformers.masking_utils import causal_mask_function, sdpa_mask, sliding_window_causal_mask_function

    function = sliding_window_causal_mask_function(window) if window else causal_mask_function
    attention_mask = models.prompt(2, 9, "cpu", padding)["attention_mask"].bool()
    where = {"batch_size": 2, "kv_length": 12, "kv_offset": 0, "mask_function": function, "attention_mask": attention_mask, "allow_is_causal_skip": False}
    where |= {"q_length": 3, "q_offset": 6} if "q_length" in inspect.signature(sdpa_mask).parameters else {"cache_position": torch.arange(6, 9)}
    mask = leanattn.transformers.step_mask(**where | {"allow_is_causal_skip": True}, local_size=window or None)
    if window and any(padding):
        assert mask.dtype == torch.bool  # left to SDPA
    else:
        mask = leanattn.transformers._bool_mask(mask, 3, 12, window)
    assert torch.equal(mask.expand(2, 1, 3, 12), sdpa_mask(**where))


def expect_sdpa_mask(monkeypatch, attention_mask, q_length=3, **more):
    """step_mask() leaves this step, over a cache of 6 tokens, to SDPA."""
    monkeypatch.setattr(leanattn.transformers, "takes", lambda device, dtype: True)
    from transformers.masking_utils import causal_mask_function, sdpa_mask

    where = {"batch_size": 2, "kv_length": 6 + q_length, "kv_offset": 0, "mask_function": causal_mask_function, "attention_mask": attention_mask}
    if "q_length" not in inspect.signature(sdpa_mask).parameters:
        pytest.skip("older versions of Transformers give the positions of the queries")
    where |= {"q_length": q_length, "q_offset": 6}
    mask = leanattn.transformers.step_mask(**where, **more)
    assert mask.dtype == torch.bool
    assert torch.equal(mask, sdpa_mask(**where, allow_is_causal_skip=False))


def test_padding_behind_new_tokens_is_left_to_sdpa(monkeypatch):
    attention_mask = torch.ones(2, 9, dtype=torch.bool)
    attention_mask[0, 8:] = False
    expect_sdpa_mask(monkeypatch, attention_mask)


def test_padding_before_new_tokens_is_in_order(monkeypatch):
    monkeypatch.setattr(leanattn.transformers, "takes", lambda device, dtype: True)
    attention_mask = torch.ones(2, 9, dtype=torch.bool)
    attention_mask[0, 6:8] = False
    assert not leanattn.transformers._new_tokens_end_early(attention_mask, 6, 3)
    attention_mask[0, 6], attention_mask[0, 7] = True, False
    assert leanattn.transformers._new_tokens_end_early(attention_mask, 6, 3), "padding between new tokens"


def test_models_that_compute_with_the_mask_get_sdpas(monkeypatch):
    expect_sdpa_mask(monkeypatch, torch.ones(2, 7, dtype=torch.bool), q_length=1, allow_is_causal_skip=False)


def decode_step(mask=None, **options):
    """One decode step of attention() over a cache of 7 tokens, all of which are seen."""
    torch.manual_seed(5)
    q, k, v = torch.randn(2, 4, 1, 16), torch.randn(2, 2, 7, 16), torch.randn(2, 2, 7, 16)
    module = torch.nn.Module()
    module.num_key_value_groups = 2
    mask = torch.full((2, 1, 1, 1), 7, dtype=torch.int32) if mask is None else mask
    return leanattn.transformers.attention(module, q, k, v, mask, **options)[0], (module, q, k, v)


def test_a_position_bias_is_added_to_the_scores(calls):
    bias = torch.randn(1, 4, 1, 7)
    o, (_, q, k, v) = decode_step(position_bias=bias)
    scores = torch.einsum("bhtd,bhsd->bhts", q, k.repeat_interleave(2, 1)) / 4 + bias
    expected = torch.einsum("bhts,bhsd->bthd", scores.softmax(-1), v.repeat_interleave(2, 1))
    torch.testing.assert_close(o, expected)
    assert calls == []


@pytest.mark.parametrize("options", [{"indices": torch.zeros(2, 1, 3)}, {"block_indices": torch.zeros(2, 1, 3)},
                                     {"position_bias": torch.zeros(1, 4, 1, 7), "softcap": 30.0}, {"mask": torch.zeros(2, 1, 1, 5, dtype=torch.int32)}])
def test_what_it_would_compute_wrongly_is_refused(options):
    with pytest.raises(NotImplementedError, match="choose attn_implementation"):
        decode_step(**options)


@pytest.mark.parametrize("sinks", [False, True])
def test_prefill_with_a_soft_cap_agrees_whatever_the_block(sinks, monkeypatch):
    monkeypatch.setattr(leanattn.transformers, "PREFILL_ROWS", 4)
    torch.manual_seed(3)
    q, k, v = torch.randn(2, 4, 11, 16), torch.randn(2, 2, 11, 16), torch.randn(2, 2, 11, 16)
    logits = torch.randn(4) if sinks else None
    o = leanattn.transformers._in_blocks(q, k, v, None, 0.0, None, True, 1.5, logits)
    expected = reference.decode(q.transpose(1, 2), k, v, torch.tensor([11, 11]), soft_cap=1.5, sink_logits=logits)
    torch.testing.assert_close(o, expected)


class Flash:
    """What stands for FlashAttention, which is not installed here; it counts the calls."""

    def __init__(self):
        self.calls = 0

    def varlen(self, q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q=None, max_seqlen_k=None, causal=False, softmax_scale=None, window_size=(-1, -1),
               softcap=0.0):
        """Packed sequences: q [tokens, q_heads, head_dim], k and v [tokens, kv_heads, head_dim]."""
        assert causal
        self.calls += 1
        out = torch.zeros_like(q)
        for request in range(len(cu_seqlens_q) - 1):
            rows, keys = (slice(int(ends[request]), int(ends[request + 1])) for ends in (cu_seqlens_q, cu_seqlens_k))
            length = keys.stop - keys.start
            out[rows] = reference.decode(q[None, rows], k[keys].transpose(0, 1)[None], v[keys].transpose(0, 1)[None], [length], scale=softmax_scale,
                                         soft_cap=softcap)[0]
        return out

    def with_kvcache(self, q, k_cache, v_cache, k=None, v=None, cache_seqlens=None, block_table=None, causal=False, softmax_scale=None):
        raise AssertionError("this step is leanattn's")


@pytest.fixture
def flash(monkeypatch):
    """Continuous batching that takes FlashAttention 2 and its block tables to be there. Returns what stands for it."""
    import transformers.modeling_flash_attention_utils as utils
    import transformers.modeling_utils as modeling

    batching = pytest.importorskip("transformers.generation.continuous_batching.initialization", reason="this Transformers has none")
    made = Flash()
    monkeypatch.setattr(utils, "_lazy_imports", lambda *_, **__: (None, made.varlen, made.with_kvcache, utils._pad_input, utils._unpad_input))
    monkeypatch.setattr(utils, "_loaded_implementation", None)
    monkeypatch.setattr(modeling.PreTrainedModel, "_flash_attn_can_dispatch", lambda self, *_, **__: True)
    monkeypatch.setattr(batching, "ensure_decode_fast_path_is_available", lambda *_: None)
    mapping = modeling.AttentionInterface._global_mapping
    for name in leanattn.transformers.FLASH_NAMES:
        monkeypatch.setitem(mapping, name, mapping[name])
    return made


@pytest.fixture
def appends(monkeypatch):
    """Lets CPU tensors through to a reference that writes new keys and values first, as the kernel does. Counts the requests that arrive, of packed
    rows as -1."""
    made = []

    def decode(q, k_cache, v_cache, context_lengths, page_table=None, *, k_new=None, v_new=None, typical_batch, **options):
        if page_table is None:
            assert typical_batch >= len(options["kv_offsets"]) - 1 and context_lengths is k_new is v_new is None
            made.append(-1)
            return reference.decode(q, k_cache, v_cache, None, **options)
        assert typical_batch >= len(q) == len(page_table)
        made.append(len(q))
        for request, length in enumerate(context_lengths.tolist()):
            if length > 0:
                page, place = int(page_table[request, (length - 1) // k_cache.shape[2]]), (length - 1) % k_cache.shape[2]
                k_cache[page, :, place], v_cache[page, :, place] = k_new[request], v_new[request]
        return reference.decode(q, k_cache, v_cache, context_lengths, page_table, **options)

    monkeypatch.setattr(leanattn.transformers, "takes", lambda device, dtype: True)
    monkeypatch.setattr(leanattn.transformers, "_decode", decode)
    return made


def generate_batch(model, prompts, new_tokens, **more):
    from transformers.generation.configuration_utils import ContinuousBatchingConfig

    made = model.generate_batch(
        prompts, generation_config=transformers.GenerationConfig(max_new_tokens=new_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0),
        continuous_batching_config=ContinuousBatchingConfig(page_size=16, num_blocks=64, max_batch_tokens=64, max_blocks_per_request=8, **more))
    assert not any(output.error for output in made.values())
    return [made[name].generated_tokens for name in sorted(made)]


def one_by_one(model, prompts, new_tokens):
    return [model.generate(torch.tensor([prompt]), max_new_tokens=new_tokens, min_new_tokens=new_tokens, do_sample=False)[0, len(prompt):].tolist()
            for prompt in prompts]


@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_steps_of_continuous_batching_go_to_leanattn_and_agree(flash, appends, name):
    """Against each prompt alone. Prompts have different lengths, and one is longer than a batch, so that its pieces run beside others' decode steps."""
    ids = models.prompt(4, 90, "cpu")["input_ids"]
    prompts = [ids[row, :length].tolist() for row, length in enumerate((20, 7, 90, 16))]
    for _ in range(2):  # a second call changes nothing
        leanattn.transformers.register_continuous_batching()
    model = models.make(name, "flash_attention_2", "cpu", torch.float32)
    assert generate_batch(model, prompts, BATCHED_TOKENS) == one_by_one(models.make(name, "sdpa", "cpu", torch.float32), prompts, BATCHED_TOKENS)
    layers = 2
    steps, packed = (len(appends) + flash.calls) // layers, appends.count(-1)
    assert appends.count(4) > layers and steps < 4 * BATCHED_TOKENS
    # Before 5.24 it is the attention that asks the cache.
    asked = "cache" in inspect.signature(transformers.models.llama.modeling_llama.LlamaAttention.forward).parameters
    assert (packed if asked else flash.calls) >= 3 * layers and (flash.calls if asked else packed) == 0


@pytest.mark.parametrize("asked", [False, True])
def test_requests_of_a_graph_that_are_nobodys_have_no_tokens(flash, appends, asked):
    """Lengths and rows as Transformers pads them: the sums stay as they are, and the rows of the block table are -1. The cache gives the layer's part
    of them when it is asked, or the model has asked it already."""
    cache = type("Cache", (), {"update": lambda self, key_states, value_states, layer_idx, kwargs: kwargs.update(
        cu_seq_lens_k=kwargs["cu_seq_lens_k"]["full"], block_table=kwargs["block_table"][0], k_cache=pool[0], v_cache=pool[1])})()
    torch.manual_seed(5)
    pool = torch.randn(2, 6, 16, 2, 64)
    q, k, v = torch.randn(1, 4, 3, 64), torch.randn(1, 2, 3, 64), torch.randn(1, 2, 3, 64)
    table = torch.tensor([[[4, 1], [-1, -1], [-1, -1]]], dtype=torch.int32)
    before = pool.clone()
    given = {"block_table": table, "cu_seq_lens_k": {"full": torch.tensor([0, 19, 19, 19], dtype=torch.int32)}}
    if asked:
        cache.update(k, v, 0, given)
    else:
        given["cache"] = cache
    o, _ = leanattn.transformers.paged_attention(None, type("Module", (), {"layer_idx": 0}), q, k, v, None, scaling=0.2, **given)
    assert o.shape == (1, 3, 4, 64) and not o[0, 1:].any()
    before[0, 1, 2], before[1, 1, 2] = k[0, :, 0], v[0, :, 0]
    assert torch.equal(pool, before)
    whole = [part[[4, 1]].flatten(0, 1)[:19].transpose(0, 1)[None] for part in before]
    torch.testing.assert_close(o[0, :1], reference.decode(q[0, :, :1].transpose(0, 1), *whole, torch.tensor([19]), scale=0.2))


@pytest.mark.parametrize("more", [{}, {"is_causal": False}, {"sliding_window": 5}, {"softcap": 3.0, "s_aux": torch.tensor([0.5, -1.0, 2.0, 0.0])}])
def test_packed_rows_mean_what_they_mean_to_flash_attention(appends, more):
    torch.manual_seed(5)
    q, k, v = torch.randn(1, 4, 9, 64), torch.randn(1, 2, 30, 64), torch.randn(1, 2, 30, 64)
    new, ends = (torch.tensor(numbers, dtype=torch.int32) for numbers in ([0, 7, 8, 8], [0, 7, 26, 26]))
    module = type("Module", (), {"is_causal": True})
    o, _ = leanattn.transformers.paged_attention(None, module, q, k, v, None, scaling=0.2, cu_seq_lens_q=new, cu_seq_lens_k=ends, max_length_q=7, **more)
    assert o.shape == (1, 9, 4, 64) and appends == [-1]
    for rows, keys in ((slice(0, 7), slice(0, 7)), (slice(7, 8), slice(7, 26))):
        expected = reference.decode(q[:, :, rows].transpose(1, 2), k[:, :, keys], v[:, :, keys], torch.tensor([keys.stop - keys.start]), scale=0.2,
                                    window=more.get("sliding_window", 0), soft_cap=more.get("softcap", 0.0), sink_logits=more.get("s_aux"),
                                    mask="causal" if more.get("is_causal", True) else "full")
        torch.testing.assert_close(o[:, rows], expected)


def test_what_is_not_packed_stays_with_flash_attention(appends):
    seen = []

    def flash(*given, **named):
        seen.append((given, named))
        return "of FlashAttention"

    tensors, ends = [torch.zeros(1, 4, 3, 64)] * 3, torch.tensor([0, 3], dtype=torch.int32)
    packed = {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": 3}
    for more in ({}, {"cache": object()}, {"cache": object(), "block_table": None}, {"cache": object(), "block_table": 1, "dropout": 0.1},
                 {**packed, "cache": object()}, {**packed, "cu_seq_lens_k": {"full": ends}}, {**packed, "max_length_q": 131073}, {**packed, "dropout": 0.1},
                 {**packed, "max_length_q": None}, {**packed, "cu_seq_lens_q": ends.long()}):
        assert leanattn.transformers.paged_attention(flash, "module", *tensors, None, scaling=0.2, **more) == "of FlashAttention"
        assert seen[-1] == (("module", *tensors, None), {"scaling": 0.2, **more})
    assert appends == []


def test_another_interface_of_continuous_batching_is_refused_with_what_to_do(monkeypatch):
    batching = pytest.importorskip("transformers.generation.continuous_batching", reason="this Transformers has none")
    monkeypatch.setattr(batching, "PagedAttentionCache", type("PagedAttentionCache", (), {"update": lambda self, key_states, read_index: None}))
    with pytest.raises(ImportError, match="5.20 to 5.24; install one"):
        leanattn.transformers.register_continuous_batching()
