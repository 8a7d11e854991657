"""Transformers on the CPU: which steps go to leanattn, and that what they are given means what the mask meant. A reference stands for the kernel."""
import inspect

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers = pytest.importorskip("transformers", reason="Transformers is not installed")

import leanattn.transformers  # noqa: E402
import models  # noqa: E402
import reference  # noqa: E402

NEW_TOKENS = 40  # past Gemma-2's window of 24


@pytest.fixture
def calls(monkeypatch):
    """Lets CPU tensors through, and counts what arrives: (query tokens, paged)."""
    made = []

    def decode(q, k_cache, v_cache, context_lengths, page_table=None, **options):
        made.append((1 if q.ndim == 3 else q.shape[1], page_table is not None))
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
def test_every_decode_step_goes_to_leanattn_and_agrees(calls, name, cache):
    more = {"disable_compile": True, "cache_implementation": "static"} if cache == "static" else {}
    expect_the_same(name, models.prompt(2, 10 if name != "gemma2" else 20, "cpu"), **more)
    layers = 2
    steps = [call for call in calls if call[0] == 1]
    if name == "opt" and transformers.__version__ < "5":
        assert steps == []  # it makes its mask by itself there, and stays with SDPA
    else:
        assert len(steps) == layers * (NEW_TOKENS - 1)
    assert not any(paged for _, paged in calls)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_padding_in_front_becomes_a_page_table(calls, cache):
    more = {"disable_compile": True, "cache_implementation": "static"} if cache == "static" else {}
    expect_the_same("llama", models.prompt(3, 10, "cpu", padding=(4, 0, 7)), **more)
    assert [call for call in calls if call[0] == 1] == [(1, True)] * (2 * (NEW_TOKENS - 1))


def test_a_padded_batch_with_windows_agrees(calls):
    expect_the_same("gemma2", models.prompt(2, 20, "cpu", padding=(5, 0)))


def test_several_new_tokens_at_once_agree(calls):
    """What assisted decoding does: a step of a few tokens over a cache."""
    inputs = models.prompt(2, 30, "cpu")["input_ids"]
    logits = {}
    for name in ("leanattn", "sdpa"):
        model = models.make("llama", name, "cpu", torch.float32)
        with torch.no_grad():
            cache = model(inputs[:, :21], use_cache=True).past_key_values
            logits[name] = model(inputs[:, 21:30], past_key_values=cache).logits
    torch.testing.assert_close(logits["leanattn"], logits["sdpa"], rtol=1e-4, atol=1e-4)
    assert calls == [(9, False)] * 2


def test_long_steps_and_gradients_stay_with_sdpa(calls):
    model = models.make("llama", "leanattn", "cpu", torch.float32)
    ids = models.prompt(1, 40, "cpu")["input_ids"]
    with torch.no_grad():
        cache = model(ids[:, :20], use_cache=True).past_key_values
        model(ids[:, 20:40], past_key_values=cache)
    assert calls == []
    with torch.no_grad():
        cache = model(ids[:, :20], use_cache=True).past_key_values
    model(ids[:, 20:21], past_key_values=cache).logits.sum().backward()
    assert calls == []


def test_cpu_tensors_take_the_way_of_sdpa():
    """Without the fixture nothing fits, and no kernel is asked for."""
    expect_the_same("llama", models.prompt(2, 10, "cpu", padding=(3, 0)), new_tokens=4)


@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize("padding", [(0, 0), (2, 4)])
def test_a_decode_mask_and_its_bool_mask_say_the_same(window, padding, monkeypatch):
    monkeypatch.setattr(leanattn.transformers, "takes", lambda device, dtype: True)
    from transformers.masking_utils import causal_mask_function, sdpa_mask, sliding_window_causal_mask_function

    function = sliding_window_causal_mask_function(window) if window else causal_mask_function
    attention_mask = models.prompt(2, 9, "cpu", padding)["attention_mask"].bool()
    where = {"batch_size": 2, "kv_length": 12, "kv_offset": 0, "mask_function": function, "attention_mask": attention_mask, "allow_is_causal_skip": False}
    where |= {"q_length": 3, "q_offset": 6} if "q_length" in inspect.signature(sdpa_mask).parameters else {"cache_position": torch.arange(6, 9)}
    mask = leanattn.transformers.decode_mask(**where, local_size=window or None)
    if window and any(padding):
        assert mask.dtype == torch.bool  # left to SDPA
    else:
        mask = leanattn.transformers._bool_mask(mask, 3, 12, window)
    assert torch.equal(mask.expand(2, 1, 3, 12), sdpa_mask(**where))


@pytest.mark.parametrize("sinks", [False, True])
def test_prefill_with_a_soft_cap_agrees_whatever_the_block(sinks, monkeypatch):
    monkeypatch.setattr(leanattn.transformers, "PREFILL_ROWS", 4)
    torch.manual_seed(3)
    q, k, v = torch.randn(2, 4, 11, 16), torch.randn(2, 2, 11, 16), torch.randn(2, 2, 11, 16)
    logits = torch.randn(4) if sinks else None
    o = leanattn.transformers._in_blocks(q, k, v, None, 0.0, None, True, 1.5, logits)
    expected = reference.decode(q.transpose(1, 2), k, v, torch.tensor([11, 11]), soft_cap=1.5, sink_logits=logits)
    torch.testing.assert_close(o, expected)
