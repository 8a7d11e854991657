"""Generation on a GPU with attn_implementation="leanattn": SDPA's tokens, logits within the type's error."""
import pytest
import torch

transformers = pytest.importorskip("transformers")
import leanattn.transformers  # noqa: E402
import models  # noqa: E402
from leanattn import _recurrent_layers  # noqa: E402

NEW_TOKENS = 64


def reference_of(name):
    return "eager" if name == "gemma2" else "sdpa"  # SDPA leaves the soft cap out


def expect_the_same(name, inputs, cache, dtype):
    """All models are shown the same tokens. The error is that of SDPA in this type against itself in fp32; an argmax may only differ where SDPA's
    two best are closer than that error of the same step can turn."""
    theirs = models.make(name, reference_of(name), "cuda", dtype)
    tokens, _ = models.generate(theirs, inputs, NEW_TOKENS)
    exact = models.make(name, reference_of(name), "cuda", torch.float32)
    ours = models.make(name, "leanattn", "cuda", dtype)
    expected, true, found = (models.logits_of(model, inputs, tokens, cache) for model in (theirs, exact, ours))
    error = (expected - true).abs().amax(-1)  # [batch, step]
    assert (found - true).abs().amax() <= 2 * error.amax()
    best = expected.topk(2, -1).values
    decided = best[..., 0] - best[..., 1] > 2 * error.amax()
    share = decided.float().mean().item()
    assert share > 0.5, f"only {share:.0%} of the steps can tell"
    assert torch.equal(found.argmax(-1)[decided], expected.argmax(-1)[decided])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", models.CONFIGS)
def test_64_steps_match(name, cache, dtype):
    expect_the_same(name, models.prompt(2, 40, "cuda"), cache, dtype)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_64_steps_of_a_padded_batch_match(cache):
    expect_the_same("llama", models.prompt(3, 40, "cuda", padding=(0, 9, 31)), cache, torch.float16)


@pytest.mark.parametrize("padding", [(), (0, 90)])
@pytest.mark.parametrize("name", models.CONFIGS)
def test_prompts_and_chunks_match(name, padding):
    """Logits of every token of a prompt and of the chunks after it, as far from fp32 as SDPA's in the same type."""
    chunks, logits = (300, 90, 12), {}
    inputs = models.prompt(2, sum(chunks), "cuda", padding)
    for key, implementation, dtype in (("ours", "leanattn", torch.float16), ("theirs", reference_of(name), torch.float16),
                                       ("exact", reference_of(name), torch.float32)):
        model, cache, made, begin = models.make(name, implementation, "cuda", dtype), None, [], 0
        for chunk in chunks:
            mask = inputs["attention_mask"][:, :begin + chunk]
            positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, begin:]
            with torch.no_grad():
                step = model(inputs["input_ids"][:, begin:begin + chunk], attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True)
            cache, begin = step.past_key_values, begin + chunk
            made.append(step.logits.float())
        logits[key] = torch.cat(made, 1)[inputs["attention_mask"].bool()]
    assert (logits["ours"] - logits["exact"]).abs().amax() <= 2 * (logits["theirs"] - logits["exact"]).abs().amax()


@pytest.mark.parametrize("name", models.CONFIGS)
def test_generate_gives_the_same_64_tokens(name):
    inputs = models.prompt(2, 40, "cuda")
    tokens = [models.generate(models.make(name, implementation, "cuda", torch.float16), inputs, NEW_TOKENS)[0]
              for implementation in (reference_of(name), "leanattn")]
    assert torch.equal(*tokens)


def test_generate_with_a_compiled_static_cache():
    inputs = models.prompt(2, 40, "cuda", padding=(0, 9))
    tokens = [models.generate(models.make("llama", implementation, "cuda", torch.float16), inputs, NEW_TOKENS, cache_implementation="static")[0]
              for implementation in ("sdpa", "leanattn")]
    assert torch.equal(*tokens)


def test_all_steps_run_leanattns_kernel():
    """By the profiler: no step of generate() is left to SDPA without anyone noticing."""
    model = models.make("llama", "leanattn", "cuda", torch.float16)
    inputs = models.prompt(1, 40, "cuda")
    models.generate(model, inputs, 4)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        models.generate(model, inputs, 9)
        torch.cuda.synchronize()
    launches = sum(event.count for event in profile.key_averages() if event.key.startswith("lean"))
    assert launches == model.config.num_hidden_layers * 9


@pytest.fixture(params=models.RECURRENT)
def recurrent(request):
    """Makes models of one kind of layers with a recurrent state."""
    if not hasattr(transformers, models.RECURRENT[request.param][0]):
        pytest.skip(f"this Transformers has no {request.param}")
    leanattn.transformers.register_recurrent()
    return lambda dtype: models.make_recurrent(request.param, "cuda", dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_steps_of_layers_with_a_recurrent_state_match(recurrent, dtype, monkeypatch):
    """As expect_the_same, beside what Transformers computes by itself."""
    inputs, model = models.prompt(2, 40, "cuda", padding=(0, 9)), recurrent(dtype)
    with monkeypatch.context() as patch:
        patch.setattr(_recurrent_layers, "takes", lambda device, dtype: False)
        tokens, _ = models.generate(model, inputs, NEW_TOKENS)
        expected, true = (models.logits_of(each, inputs, tokens, "dynamic") for each in (model, recurrent(torch.float32)))
    found = models.logits_of(model, inputs, tokens, "dynamic")
    error = (expected - true).abs().amax()
    assert (found - true).abs().amax() <= 2 * error
    best = expected.topk(2, -1).values
    decided = best[..., 0] - best[..., 1] > 2 * error
    assert torch.equal(found.argmax(-1)[decided], expected.argmax(-1)[decided])


def test_steps_of_layers_with_a_recurrent_state_are_leanattns(recurrent):
    inputs, model = models.prompt(2, 40, "cuda"), recurrent(torch.bfloat16)
    models.generate(model, inputs, 4)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        models.generate(model, inputs, 9)
        torch.cuda.synchronize()
    launches = sum(event.count for event in profile.key_averages() if event.key.startswith("lean"))
    assert launches == 8 * sum(kind == "linear_attention" for kind in model.config.layer_types)
