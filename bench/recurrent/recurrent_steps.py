"""recurrent_steps.py -- the decode steps of layers with a recurrent state that are measured, and their bytes. No GPU, no PyTorch."""
import dataclasses

KEY_DIM = VALUE_DIM = 128
STATE_BYTES = {"fp32": 4, "bf16": 2}
KINDS = ("gated_delta", "kda")
# Heads of q and k, and of v and the state: Qwen3.5 35B and 9B, 27B, 122B and 397B, and the last one's slice over eight GPUs; Kimi Linear, GLM-5.3-Flash, K3.
HEADS = {"gated_delta": ((16, 32), (16, 48), (16, 64), (2, 8)), "kda": ((32, 32), (64, 64), (96, 96))}
BATCHES = (1, 4, 16, 32, 64, 128, 256, 1024)
TOKENS = (1, 2, 4, 8)
QUICK_BATCHES, QUICK_DRAFT_BATCHES = (1, 4, 16, 64, 128), (1, 8, 32)


@dataclasses.dataclass(frozen=True)
class Step:
    """One launch of one layer. With `snapshots` the state after each token is stored in a slot of its own."""

    kind: str
    qk_heads: int
    v_heads: int
    batch: int
    tokens: int = 1
    snapshots: bool = False
    state: str = "fp32"

    @property
    def group(self):
        """What a table of the report has: all but the batch."""
        drafts = "" if self.tokens == 1 else f", {self.tokens} tokens" + (" with snapshots" if self.snapshots else "")
        return f"{self.kind}, {self.qk_heads}/{self.v_heads} heads, {self.state}{drafts}"

    @property
    def name(self):
        return f"{self.group}, batch {self.batch}"

    @property
    def slots_of_request(self):
        return self.tokens if self.snapshots else 1

    @property
    def state_bytes(self):
        """Of one state of every request: what a copy reads, and writes."""
        return self.batch * self.v_heads * KEY_DIM * VALUE_DIM * STATE_BYTES[self.state]

    @property
    def traffic_bytes(self):
        """States are read once, and written once for each slot."""
        return self.state_bytes * (1 + self.slots_of_request)

    def copies(self, l2_bytes):
        """Sets of states that launches take turns over: what they read is at least four times the L2."""
        return -(-4 * l2_bytes // self.state_bytes)

    def held_bytes(self, copies):
        """About what a process of one system allocates: the sets, a peer's results that are not in place, and the states that sets begin with."""
        return self.state_bytes * (copies * (self.slots_of_request + 1) + self.slots_of_request)


def steps(kinds=KINDS, batches=BATCHES, tokens=TOKENS, states=("fp32",), snapshots=(True, False), heads=None):
    """Those of all models; `heads` are (qk_heads, v_heads) that are taken in their place. One token has no snapshots."""
    return [Step(kind, *of, batch, count, stored, state) for kind in kinds for of in (heads or HEADS[kind]) for state in states for count in tokens
            for stored in ((False,) if count == 1 else snapshots) for batch in batches]


def quick():
    """A sample that takes less than 100 seconds."""
    one = [Step(kind, *heads, batch) for kind, heads in (("gated_delta", (16, 32)), ("kda", (32, 32))) for batch in QUICK_BATCHES]
    return one + [Step("gated_delta", 16, 32, batch, 4, True) for batch in QUICK_DRAFT_BATCHES]
