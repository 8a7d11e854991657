"""group_steps.py -- the decode steps that are measured, and which tokens of a context each rank holds. Needs neither torch nor a GPU."""
import dataclasses
import json
import random

from peers import shapes

PAGE_SIZE = 16
RAGGED_SEED = 20260101


@dataclasses.dataclass(frozen=True)
class Step(shapes.Case):
    """A case whose lengths are those of whole contexts."""

    page_size: int = 0  # tokens a page; 0: dense
    interleave: int = 0  # ranks hold units of so many tokens in turn; 0: contiguous parts

    def part(self, rank, ranks):
        """The tokens that a rank holds of each request: [batch] of sequences of token numbers in rising order."""
        return [self._part_of(length, rank, ranks) for length in self.lengths]

    def _part_of(self, length, rank, ranks):
        if self.interleave:
            return [token for token in range(length) if token // self.interleave % ranks == rank]
        unit = max(self.page_size, 1)  # a page lies on one rank
        units = -(-length // unit)
        return range(min(units * rank // ranks * unit, length), min(units * (rank + 1) // ranks * unit, length))

    def part_bytes(self, rank, ranks):
        """Bytes of K and V that a rank reads."""
        return shapes.kv_bytes([len(tokens) for tokens in self.part(rank, ranks)], self.kv_heads, self.head_dim)

    def exchanged_bytes(self, ranks):
        """Bytes of partial results that a rank gets from the others in a launch of a group: 24 for every four values of O (docs/groups.md)."""
        return self.batch * self.q_heads * self.head_dim * 6 * (ranks - 1) // ranks


def ragged(requests=64, shortest=128, longest=32768):
    """Contexts whose logarithms are uniform; the same at every call."""
    generator = random.Random(RAGGED_SEED)
    return tuple(round(shortest * (longest / shortest) ** generator.random()) for _ in range(requests))


def llama(name, lengths, **how):
    return Step("groups", name, 32, 8, 128, tuple(lengths), **how)


def steps():
    """All steps by key: the heads of Llama-3-8B, and the heads and batch of the paper's several-GPU figure."""
    thousand = 1024
    return {
        "1x32k": llama("1 x 32k", [32 * thousand]),
        "1x128k": llama("1 x 128k", [128 * thousand]),
        "1x512k": llama("1 x 512k", [512 * thousand]),
        "ragged": llama("64, ragged 128..32k", ragged()),
        "ragged-interleaved": llama("64, ragged 128..32k, interleaved by 16", ragged(), interleave=16),
        "64x4k": llama("64 x 4096", [4096] * 64),
        "16x16k": llama("16 x 16k", [16 * thousand] * 16),
        "1x128k-paged": llama("1 x 128k, pages of 16", [128 * thousand], page_size=PAGE_SIZE),
        "paper-4k": Step("groups", "192 heads: 4 x 4k", 192, 192, 64, (4 * thousand,) * 4),
        "paper-32k": Step("groups", "192 heads: 4 x 32k", 192, 192, 64, (32 * thousand,) * 4),
    }


def captured_groups(steps, ranks):
    """What the groups of the steps look up, as lines of a call capture (docs/tuning.md): one for each problem and shape of a rank."""
    lines = {}
    for step in steps:
        features = {"context_parallel": ranks, **({"context_interleave": step.interleave} if step.interleave else {}),
                    **({"page_size": step.page_size} if step.page_size else {})}
        problem = {"q_heads": step.q_heads, "kv_heads": step.kv_heads, "head_dim": step.head_dim, "dtype": "bf16", "layout": "contiguous", "lse": False,
                   "features": features}
        for rank in range(ranks):
            counts = [len(tokens) for tokens in step.part(rank, ranks)]
            shape = {"batch": step.batch, "max_batch": 0, "longest_context": max(max(counts), 1), "total_context": max(sum(counts), 1)}
            lines[json.dumps([problem, shape])] = {"leanattn_capture": 1, "problem": problem, "shape": shape, "calls": 1, "answer": "fallback"}
    return list(lines.values())
