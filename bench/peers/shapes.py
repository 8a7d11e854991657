"""shapes.py -- the decode steps that are measured: published ones, ragged batches, and a list drawn at random with a fixed seed.

Needs neither torch nor a GPU.
"""
import dataclasses
import random

import shape_table

PAGE_SIZE = 16  # tokens a page of the systems that read a paged KV cache
ELEMENT_BYTES = 2  # bf16

DRAWN_SEED = 20260101
DRAWN_COUNT = 36
# Below 1 MB a cold L2 takes more than 256 copies of K and V, and every system costs a launch and little else.
DRAWN_KV_BYTES = (1 << 20, 8 << 30)
DRAWN_HEAD_DIMS = (64, 96, 128, 256)


@dataclasses.dataclass(frozen=True)
class Case:
    """One decode step: q is [batch, q_heads, head_dim], request i attends to lengths[i] tokens of kv_heads x head_dim, bf16."""

    group: str  # the list it belongs to: "published", "ragged", "drawn"
    name: str
    q_heads: int
    kv_heads: int
    head_dim: int
    lengths: tuple[int, ...]  # [batch] tokens

    @property
    def batch(self):
        return len(self.lengths)

    @property
    def longest(self):
        return max(self.lengths)

    @property
    def tokens(self):
        return sum(self.lengths)

    @property
    def ragged(self):
        return min(self.lengths) != max(self.lengths)

    @property
    def capacity(self):
        """Tokens a request has room for in the dense cache: the longest context, rounded up to whole pages."""
        return -(-self.longest // PAGE_SIZE) * PAGE_SIZE

    @property
    def kv_bytes(self):
        """Bytes of K and V together that a step must read."""
        return 2 * self.tokens * self.kv_heads * self.head_dim * ELEMENT_BYTES

    @property
    def dense_bytes(self):
        """Bytes of K and V together in a dense cache, unused capacity included."""
        return 2 * self.batch * self.capacity * self.kv_heads * self.head_dim * ELEMENT_BYTES


def uniform_case(group, batch, q_heads, kv_heads, head_dim, context):
    name = f"{batch}, {q_heads}/{kv_heads}, {head_dim}, {context}"
    return Case(group, name, q_heads, kv_heads, head_dim, (context,) * batch)


def published():
    """The 25 dense shapes that bench/shape_table.py tunes for."""
    return [uniform_case("published", *shape) for shape in shape_table.SHAPES]


def ragged():
    """The two ragged batches of bench/shape_table.py, 32/8 heads of 128."""
    return [Case("ragged", name, 32, 8, 128, tuple(lengths)) for name, lengths in shape_table.RAGGED]


def drawn(seed=DRAWN_SEED, count=DRAWN_COUNT):
    """`count` shapes that nothing was tuned for. Query heads per KV head 1..16, KV heads, batch 1..256 and context 64..1M are log-uniform,
    head_dim uniform; at most 128 query heads; shapes outside DRAWN_KV_BYTES are drawn again. The same seed gives the same list."""
    generator = random.Random(seed)
    cases = []
    while len(cases) < count:
        group_size = round(2 ** generator.uniform(0, 4))
        kv_heads = round(2 ** generator.uniform(0, 7))
        head_dim = generator.choice(DRAWN_HEAD_DIMS)
        batch = round(2 ** generator.uniform(0, 8))
        context = round(2 ** generator.uniform(6, 20))
        case = uniform_case("drawn", batch, group_size * kv_heads, kv_heads, head_dim, context)
        low, high = DRAWN_KV_BYTES
        if case.q_heads <= 128 and low <= case.kv_bytes <= high:
            cases.append(case)
    return cases


LISTS = {"published": published, "ragged": ragged, "drawn": drawn}
