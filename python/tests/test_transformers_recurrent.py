"""Transformers' layers with a recurrent state on the CPU: which steps go to leanattn, that they agree, and where states lie. A reference stands for the
kernel; everything else is Transformers' own code."""
import functools
import inspect
import types

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers = pytest.importorskip("transformers", reason="Transformers is not installed")

import leanattn.transformers  # noqa: E402
import models  # noqa: E402
import reference  # noqa: E402
from leanattn import _recurrent_layers  # noqa: E402

NEW_TOKENS = 12


@pytest.fixture
def calls(monkeypatch):
    """Registers, lets CPU tensors through, and notes what arrives: (kind, requests, whether the state is that of the call before in this place)."""
    made = []

    def recurrent(q, k, v, state, slots, **options):
        assert state.is_contiguous() and q.stride()[1:] == (q.shape[-1], 1) and all(options[name].dtype == torch.float32 for name in "ab")
        made.append(types.SimpleNamespace(kind=options["kind"], requests=len(q), place=state.data_ptr()))
        return reference.recurrent(q, k, v, state, slots, **options)

    monkeypatch.setattr(_recurrent_layers, "takes", lambda device, dtype: True)
    monkeypatch.setattr(_recurrent_layers, "_recurrent", recurrent)
    leanattn.transformers.register_recurrent()
    return made


@pytest.fixture(params=models.RECURRENT)
def make(request):
    if not hasattr(transformers, models.RECURRENT[request.param][0]):
        pytest.skip(f"this Transformers has no {request.param}")
    return functools.partial(models.make_recurrent, request.param, "cpu", torch.float32)


def expect_the_same(model, monkeypatch, inputs, **more):
    """Compares with what the model computes by itself, and returns the number of leanattn's layers."""
    tokens, logits = models.generate(model, inputs, NEW_TOKENS, **more)
    with monkeypatch.context() as patch:
        patch.setattr(_recurrent_layers, "takes", lambda device, dtype: False)
        expected_tokens, expected_logits = models.generate(model, inputs, NEW_TOKENS, **more)
    torch.testing.assert_close(logits, expected_logits, rtol=1e-4, atol=1e-4)
    assert torch.equal(tokens, expected_tokens)
    return sum(kind == "linear_attention" for kind in model.config.layer_types)


@pytest.mark.parametrize("padding", [(), (4, 0)])
def test_steps_go_to_leanattn_and_agree(calls, make, monkeypatch, padding):
    model = make()
    layers = expect_the_same(model, monkeypatch, models.prompt(2, 10, "cpu", padding))
    assert len(calls) == layers * (NEW_TOKENS - 1)
    assert {call.kind for call in calls} == {models.RECURRENT[model.made_of][2]} and {call.requests for call in calls} == {2}


def test_states_are_changed_where_they_lie(calls, make, monkeypatch):
    layers = expect_the_same(make(), monkeypatch, models.prompt(2, 10, "cpu"))
    assert len({call.place for call in calls}) == layers


def test_beams_agree(calls, make, monkeypatch):
    """A reordered cache lies as Transformers makes it: a step brings states into place and back."""
    expect_the_same(make(), monkeypatch, models.prompt(2, 10, "cpu"), num_beams=3)
    assert {call.requests for call in calls} == {6}


def test_a_chunk_after_steps_agrees(calls, make, monkeypatch):
    """A prompt goes on from a state that leanattn's steps have changed."""
    model, logits = make(), {}
    ids = models.prompt(2, 30, "cpu")["input_ids"]
    for ours in (True, False):
        monkeypatch.setattr(_recurrent_layers, "takes", lambda device, dtype, ours=ours: ours)
        cache, made = None, []
        for begin, end in ((0, 9), (9, 10), (10, 11), (11, 29), (29, 30)):
            with torch.no_grad():
                step = model(ids[:, begin:end], past_key_values=cache, use_cache=True)
            cache, made = step.past_key_values, [*made, step.logits]
        logits[ours] = torch.cat(made, 1)
    torch.testing.assert_close(*logits.values(), rtol=1e-4, atol=1e-4)
    assert len(calls) == 3 * sum(kind == "linear_attention" for kind in model.config.layer_types)


def test_training_stays_with_transformers(calls, make):
    model = make()
    model(models.prompt(1, 20, "cpu")["input_ids"]).logits.sum().backward()
    assert calls == []


def test_a_second_call_changes_nothing(calls):
    module = __import__("transformers.models.qwen3_next.modeling_qwen3_next", fromlist=["x"])
    before = module.torch_recurrent_gated_delta_rule
    leanattn.transformers.register_recurrent()
    assert module.torch_recurrent_gated_delta_rule is before and not hasattr(before.leanattn_replaces, "leanattn_replaces")


def test_the_functions_have_the_arguments_that_leanattn_knows():
    """Of the pinned Transformers: what a step is given by name."""
    leanattn.transformers.register_recurrent()
    for name, (step, prompt, _) in _recurrent_layers.MODELS.items():
        module = __import__(f"transformers.models.{name}.modeling_{name}", fromlist=["x"])
        for function in (step, prompt):
            own = inspect.signature(getattr(module, function).leanattn_replaces).parameters
            assert list(own)[:3] == ["query", "key", "value"]
            assert {"g", "beta", "initial_state", "output_final_state", "use_qk_l2norm_in_kernel"} <= set(own)


def test_packed_sequences_and_what_does_not_fit_stay(calls):
    own = []
    step = functools.partial(_recurrent_layers._step, "gated_delta", lambda *given, **named: own.append(named) or "own")
    rows, state = torch.zeros(1, 1, 2, 32), torch.zeros(1, 2, 32, 32)
    gates = {"g": torch.zeros(1, 1, 2), "beta": torch.zeros(1, 1, 2)}
    odd = torch.zeros(1, 1, 2, 24)
    assert step(rows, rows, rows, **gates, initial_state=state, cu_seqlens=torch.tensor([0, 1])) == "own"
    assert step(odd, odd, odd, **gates, initial_state=torch.zeros(1, 2, 24, 24)) == "own"
    assert step(rows, rows, rows, **gates) == "own"
    with_gradient = state.clone().requires_grad_()
    assert step(rows, rows, rows, **gates, initial_state=with_gradient) == "own"
    assert calls == [] and len(own) == 4
    assert step(rows, rows, rows, **gates, initial_state=state)[1] is None and len(calls) == 1


def test_a_transformers_without_these_layers_is_refused(monkeypatch):
    monkeypatch.setattr(_recurrent_layers, "MODELS", {"llama": ("torch_recurrent_gated_delta_rule", "torch_chunk_gated_delta_rule", "gated_delta")})
    with pytest.raises(ImportError, match="5.17 to 5.24"):
        leanattn.transformers.register_recurrent()
