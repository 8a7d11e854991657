"""leanattn.recurrent on a GPU: states after 10,000 steps beside a plain fp32 implementation, read-outs that overflow fp16, bf16 states, and graphs."""
import math

import pytest
import torch

import leanattn
import reference

REQUESTS, KEY_DIM, VALUE_DIM = 3, 64, 128
LOOK = (1, 10, 100, 1000, 10_000)  # steps after which states are compared
TIMES = 2  # the most that leanattn's error may be of the plain implementation's
SCALE = KEY_DIM ** -0.5


class Layer:
    """One step of a kind of layer, which draws its inputs anew, by leanattn or in plain PyTorch. Gates are weak and strong, as models have them: factors
    from 0.3 to 0.99999. `keys` is how much the keys of steps have in common: with keys that are nearly equal, states are hardest to keep exact."""

    def __init__(self, kind, seed=1, keys=0.0, dtype=torch.bfloat16):
        self.kind, self.keys, self.dtype = kind, keys, dtype
        self.qk_heads, self.v_heads = (4, 4) if kind == "kda" else (2, 4)
        self.delta, self.generator = kind in ("gated_delta", "kda"), torch.Generator("cuda").manual_seed(seed)
        self.gates = (self.v_heads, KEY_DIM) if kind == "kda" else (self.v_heads,)
        self.a_log = torch.linspace(-11, 0, self.v_heads, device="cuda")
        self.dt_bias = self.random(*self.gates, dtype=torch.float32)
        self.skip = self.random(self.v_heads, dtype=torch.float32)
        self.common = self.random(self.qk_heads, KEY_DIM, dtype=torch.float32)

    def random(self, *shape, dtype=None):
        return torch.randn(shape, generator=self.generator, device="cuda").to(dtype or self.dtype)

    def state(self, dtype=torch.float32):
        return torch.zeros(REQUESTS, self.v_heads, VALUE_DIM, KEY_DIM, device="cuda", dtype=dtype)

    def inputs(self, tokens=1):
        rows = REQUESTS * tokens
        made = {"q": self.random(rows, self.qk_heads, KEY_DIM), "v": self.random(rows, self.v_heads, VALUE_DIM),
                "k": (self.common * self.keys + self.random(rows, self.qk_heads, KEY_DIM) * (1 - self.keys)).to(self.dtype)}
        if self.kind == "mamba2":
            made["k"], made["q"] = (made[name] / math.sqrt(KEY_DIM) for name in "kq")
        return {**made, "a": self.random(rows, *self.gates), "b": None if self.kind == "mamba2" else self.random(rows, self.v_heads) + 2}

    def options(self):
        return {"kind": self.kind, "a_log": self.a_log, "dt_bias": self.dt_bias, **({"skip": self.skip} if self.kind == "mamba2" else {})}

    def plain(self, state, q, k, v, a, b):
        """(output, state) of one token, in the type of `state`; [requests, heads, ...]."""
        q, k, v, a = (tensor.to(state.dtype) for tensor in (q, k, v, a))
        if self.delta:
            q, k = (x / torch.sqrt(x.square().sum(-1, keepdim=True) + 1e-6) for x in (q, k))
            q = q * SCALE
        q, k = (x.repeat_interleave(self.v_heads // self.qk_heads, 1) for x in (q, k))
        dt = torch.nn.functional.softplus(a + self.dt_bias.to(state.dtype))
        decay = torch.exp(-self.a_log.to(state.dtype).exp().view(-1, *[1] * (len(self.gates) - 1)) * dt)
        state = state * (decay.unsqueeze(-2) if self.kind == "kda" else decay[..., None, None])
        u = b.to(state.dtype).sigmoid()[..., None] * (v - torch.einsum("rhvk,rhk->rhv", state, k)) if self.delta else dt[..., None] * v
        state = state + u[..., None] * k[..., None, :]
        o = torch.einsum("rhvk,rhk->rhv", state, q)
        return o if self.delta else o + self.skip.to(state.dtype)[:, None] * v, state


@pytest.fixture(autouse=True)
def exact_products():
    before, torch.backends.cuda.matmul.allow_tf32 = torch.backends.cuda.matmul.allow_tf32, False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


def rms(tensor):
    return tensor.double().square().mean().sqrt().item()


SLOTS = torch.arange(REQUESTS, dtype=torch.int32, device="cuda")


@pytest.mark.parametrize("state_type", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind, keys", [("gated_delta", 0.0), ("gated_delta", 0.9), ("kda", 0.0), ("kda", 0.9), ("mamba2", 0.0)])
def test_states_drift_no_more_than_those_of_a_plain_implementation(kind, keys, state_type):
    """Both are compared with FP64, which keeps what is lost where a state is stored."""
    layer = Layer(kind, keys=keys)
    ours, plain, exact = layer.state(state_type), layer.state(), layer.state(torch.float64)
    for step in range(1, LOOK[-1] + 1):
        given = layer.inputs()
        o = leanattn.recurrent(state=ours, slots=SLOTS, **given, **layer.options())
        of_plain, plain = layer.plain(plain, **given)
        plain = plain.to(state_type).float()
        of_exact, exact = layer.plain(exact, **given)
        if step in LOOK:
            errors = [rms(found.double() - exact) / rms(exact) for found in (ours, plain)]
            # A first step may be exact.
            assert errors[0] <= TIMES * errors[1] + 1e-7, f"after {step} steps: {errors[0]:.3g}, and {errors[1]:.3g} of the plain implementation"
            outputs = [rms(found.double() - of_exact) / rms(of_exact) for found in (o, of_plain.bfloat16())]
            assert outputs[0] <= TIMES * outputs[1] + 1e-7, f"outputs after {step} steps: {outputs[0]:.3g} and {outputs[1]:.3g}"
    assert torch.isfinite(ours.float()).all() and rms(exact) > 1e-2


@pytest.mark.parametrize("state_type", [torch.float32, torch.bfloat16])
def test_sums_beyond_fp16_give_outputs_within_it(state_type):
    """Without the scale of q, outputs would be beyond fp16, and with it they are right: nothing on the way is in fp16."""
    layer = Layer("gated_delta", dtype=torch.float16)
    state = (torch.randn(REQUESTS, layer.v_heads, VALUE_DIM, KEY_DIM, generator=layer.generator, device="cuda") * 3e4).to(state_type)
    given = layer.inputs()
    expected, _ = layer.plain(state.double(), **given)
    assert (expected / SCALE).abs().amax() > 65504 > expected.abs().amax()
    o = leanattn.recurrent(state=state, slots=SLOTS, **given, **layer.options())
    assert torch.isfinite(o).all()
    torch.testing.assert_close(o.double(), expected, rtol=2 ** -10, atol=rms(expected) * 1e-3)


def test_outputs_beyond_fp16_are_normalised_before_they_are_rounded():
    layer = Layer("gated_delta", dtype=torch.float16)
    state = torch.randn(REQUESTS, layer.v_heads, VALUE_DIM, KEY_DIM, generator=layer.generator, device="cuda") * 1e6
    given, z = layer.inputs(), layer.random(REQUESTS, layer.v_heads, VALUE_DIM)
    expected, _ = layer.plain(state.double(), **given)
    assert expected.abs().amax() > 65504
    weight = torch.rand(VALUE_DIM, device="cuda") + 0.5
    expected = expected / torch.sqrt(expected.square().mean(-1, keepdim=True) + 1e-6) * weight.double() * torch.nn.functional.silu(z.double())
    o = leanattn.recurrent(state=state, slots=SLOTS, z=z, norm_weight=weight, **given, **layer.options())
    torch.testing.assert_close(o.double(), expected, rtol=2 ** -10, atol=2e-3)


def test_outputs_beyond_fp16_are_infinite_and_states_stay_finite():
    layer = Layer("gated_delta", dtype=torch.float16)
    state = torch.randn(REQUESTS, layer.v_heads, VALUE_DIM, KEY_DIM, generator=layer.generator, device="cuda") * 1e7
    given = layer.inputs()
    expected, of_exact = layer.plain(state.double(), **given)
    o = leanattn.recurrent(state=state, slots=SLOTS, **given, **layer.options())
    assert torch.equal(o.isinf(), expected.half().isinf()) and not o.isnan().any()
    torch.testing.assert_close(state.double(), of_exact, rtol=1e-4, atol=rms(of_exact) * 1e-5)


@pytest.mark.parametrize("kind", ["gated_delta", "kda", "mamba2"])
@pytest.mark.parametrize("drafts", [1, 4])
@pytest.mark.parametrize("state_type", [torch.float32, torch.bfloat16])
def test_graphs_give_the_bits_of_launches(kind, drafts, state_type):
    """30 steps, in which slots and accepted tokens change under the graph."""
    layer, pool_slots = Layer(kind), REQUESTS * drafts * 2 + 1
    of_layer = layer.options() | ({"snapshots": True} if drafts > 1 else {})
    pools = [torch.randn(pool_slots, layer.v_heads, VALUE_DIM, KEY_DIM, device="cuda").to(state_type) for _ in range(2)]
    pools[1].copy_(pools[0])
    slots = torch.zeros(REQUESTS, drafts, dtype=torch.int32, device="cuda")
    accepted = torch.ones(REQUESTS, dtype=torch.int32, device="cuda")
    given = layer.inputs(drafts)
    arguments = {**given, "slots": slots, "first_slot": 1, **({"accepted": accepted} if drafts > 1 else {}), **of_layer}
    outs = [torch.empty(REQUESTS * drafts, layer.v_heads, VALUE_DIM, dtype=torch.bfloat16, device="cuda") for _ in range(2)]
    leanattn.recurrent(state=pools[1], out=outs[1], **arguments)  # null slots: compiles, and changes nothing
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        leanattn.recurrent(state=pools[1], out=outs[1], **arguments)
    assert not outs[1].any() and torch.equal(*pools)
    for step in range(30):
        for name, value in layer.inputs(drafts).items():
            if value is not None:
                given[name].copy_(value)
        order = torch.randperm(pool_slots - 1, device="cuda")[:REQUESTS * drafts].view(REQUESTS, drafts) + 1
        slots.copy_(order)
        accepted.random_(1, drafts + 1)
        if step % 5 == 4:
            slots[1] = 0  # a request that pads the batch
        leanattn.recurrent(state=pools[0], out=outs[0], **arguments)
        graph.replay()
        assert torch.equal(*outs) and torch.equal(*pools), f"step {step}"
    assert outs[0].any() and torch.isfinite(outs[0].float()).all()


@pytest.mark.parametrize("kind", ["gated_delta", "kda", "mamba2"])
def test_drafts_agree_with_the_reference(kind):
    layer, drafts = Layer(kind, dtype=torch.float16), 3
    pool = torch.randn(REQUESTS * drafts + 1, layer.v_heads, VALUE_DIM, KEY_DIM, device="cuda")
    slots = torch.randperm(REQUESTS * drafts, device="cuda").view(REQUESTS, drafts).int() + 1
    offsets = torch.tensor([0, 3, 4, 6], dtype=torch.int32, device="cuda")
    given = {name: value[:6] if value is not None else None for name, value in layer.inputs(drafts).items()}
    more = {"slots": slots, "accepted": torch.tensor([3, 1, 2], dtype=torch.int32, device="cuda"), "token_offsets": offsets, "max_tokens": drafts,
            "snapshots": True, "first_slot": 1, **given, **layer.options()}
    of_reference = pool.double()
    expected = reference.recurrent(state=of_reference, **more)
    o = leanattn.recurrent(state=pool, **more)
    torch.testing.assert_close(o.double(), expected.double(), rtol=2 ** -9, atol=rms(expected) * 1e-3)
    torch.testing.assert_close(pool.double(), of_reference, rtol=1e-4, atol=1e-5)
