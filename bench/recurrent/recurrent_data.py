"""recurrent_data.py -- the tensors of one step, in several copies, and the step in FP64 for a sample of its requests.

All copies have the same inputs and begin with the same states, so that one result is right for all of them.
"""
import torch

from recurrent_steps import KEY_DIM, VALUE_DIM

NORM_EPS = 1e-6
SAMPLED = 4  # requests that are compared, the first and the last among them
# Largest differences that are agreement, as shares of a value and of the root mean square of its row. Outputs are bf16; fp32 kernels sum 128 products
# in some order.
OUTPUT_TOLERANCE, STATE_TOLERANCE = (2 ** -7, 2 ** -8), {"fp32": (1e-5, 1e-4), "bf16": (2 ** -7, 2 ** -8)}
STATE_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class StepData:
    """rows[copy]: [tokens, 2 qk_heads K + v_heads V], the packed output of the short convolution; q, k and v are views of it. a[copy], b[copy]: [tokens,
    v_heads], for kda a [tokens, v_heads, K]. All bf16. a_log: [v_heads], dt_bias: one token's a: fp32. pool[copy]: [slots + 1, v_heads, V, K], whose slot
    0 is a null slot. slots: [batch] or, with snapshots, [batch, tokens], int32. Tokens of a request follow each other."""

    def __init__(self, step, copies, seed, device="cuda"):
        self.step, self.copies, self.device = step, copies, device
        generator = torch.Generator(device).manual_seed(seed)
        tokens, self.keys, self.values = step.batch * step.tokens, step.qk_heads * KEY_DIM, step.v_heads * VALUE_DIM
        gates = (step.v_heads, KEY_DIM) if step.kind == "kda" else (step.v_heads,)

        def random(*shape, dtype=torch.bfloat16):
            return torch.randn(shape, generator=generator, device=device).to(dtype)

        self.rows, self.a, self.b = (part.expand(copies, *part.shape).contiguous() for part in (
            random(tokens, 2 * self.keys + self.values), random(tokens, *gates), random(tokens, step.v_heads)))
        # Factors of decays between about 0.3 and 0.9999, as models have them.
        self.a_log = torch.rand(step.v_heads, generator=generator, device=device) * 4 - 4
        self.dt_bias = torch.randn(gates, generator=generator, device=device) - 1
        count = step.batch * step.slots_of_request
        requests = torch.randperm(step.batch, generator=generator, device=device)
        self.slots = (requests[:, None] * step.slots_of_request + torch.arange(step.slots_of_request, device=device) + 1).int()
        if not step.snapshots:
            self.slots = self.slots.view(-1)
        self.initial = random(count + 1, step.v_heads, VALUE_DIM, KEY_DIM, dtype=torch.float32).mul_(0.1).to(STATE_TYPES[step.state])
        self.pool = self.initial.repeat(copies, 1, 1, 1, 1)  # of one copy too, since steps change it

    def parts(self, copy):
        """q, k and v of a copy, views of its packed rows: [tokens, heads, columns]."""
        q, k, v = self.rows[copy].split((self.keys, self.keys, self.values), -1)
        return q.unflatten(-1, (-1, KEY_DIM)), k.unflatten(-1, (-1, KEY_DIM)), v.unflatten(-1, (-1, VALUE_DIM))

    def output(self):
        """A fresh output, full of NaN: [tokens, v_heads, V]."""
        return torch.full((self.step.batch * self.step.tokens, self.step.v_heads, VALUE_DIM), float("nan"), dtype=torch.bfloat16, device=self.device)

    def reset(self):
        """Puts back the states with which all copies begin."""
        self.pool.copy_(self.initial.expand_as(self.pool))

    def sample(self):
        """The requests that are compared."""
        return sorted({0, self.step.batch - 1, *range(0, self.step.batch, max(1, self.step.batch // SAMPLED))})

    def first_slots(self):
        """The slots where requests begin: [batch]."""
        return self.slots[:, 0] if self.step.snapshots else self.slots

    def reference(self, launches, slots=None):
        """(outputs [sampled, tokens, v_heads, V], states [sampled, slots of a request, v_heads, V, K]) in FP64 after so many launches, each of which goes on
        from the state of its first slot. `slots`: where requests begin; default: first_slots(). A state is rounded to its type when it is stored."""
        step = self.step
        sample = torch.tensor(self.sample(), device=self.device)
        tokens = sample[:, None] * step.tokens + torch.arange(step.tokens, device=self.device)
        repeat = step.v_heads // step.qk_heads
        q, k, v = (part[tokens].double() for part in self.parts(0))
        q, k = ((x / (x.square().sum(-1, keepdim=True) + NORM_EPS).sqrt()).repeat_interleave(repeat, 2) for x in (q, k))
        decay = (-self.a_log.double().exp().view(-1, *[1] * (self.dt_bias.dim() - 1))
                 * torch.nn.functional.softplus(self.a[0][tokens].double() + self.dt_bias.double())).exp()
        decay = decay.unsqueeze(-2) if step.kind == "kda" else decay[..., None, None]
        beta = self.b[0][tokens].double().sigmoid()
        start = self.initial[(self.first_slots() if slots is None else slots)[sample].long()].double()
        for _ in range(launches):
            outputs, states, s = [], [], start
            for token in range(step.tokens):
                s = s * decay[:, token]
                u = beta[:, token, :, None] * (v[:, token] - torch.einsum("rhvk,rhk->rhv", s, k[:, token]))
                s = s + u[..., None] * k[:, token, :, None, :]
                outputs.append(torch.einsum("rhvk,rhk->rhv", s, q[:, token] * KEY_DIM ** -0.5))
                states.append(s)
            stored = [state.to(STATE_TYPES[step.state]).double() for state in (states if step.snapshots else states[-1:])]
            start = stored[0]
        return torch.stack(outputs, 1), torch.stack(stored, 1)


def error(found, reference, tolerance):
    """The largest difference over its tolerance: at most 1 is agreement, infinity where something is not finite."""
    of_value, of_row = tolerance
    allowed = of_value * reference.abs() + of_row * reference.square().mean(-1, keepdim=True).sqrt()
    ratio = ((found.double() - reference).abs() / allowed.clamp_min(1e-30)).max().item()
    return ratio if ratio == ratio else float("inf")
