"""shapes.py -- the decode steps that are measured, and how many bytes of K and V a step reads.

There are published shapes, which are tuned, and shapes that nobody tuned: ragged batches, a list of unusual steps, one drawn at random with a
fixed seed, and one drawn anew in each run. This module needs neither torch nor a GPU.
"""
import dataclasses
import random

import shape_table

PAGE_SIZE = 16  # tokens a page of the systems that read a paged KV cache
ELEMENT_BYTES = 2  # bf16

DRAWN_SEED = 20260101
DRAWN_COUNT = 36
FRESH_COUNT = 24
# Below 1 MB of K and V, a cold L2 takes more than 256 copies of them, and the time of every system is little more than that of a launch.
DRAWN_KV_BYTES = (1 << 20, 8 << 30)
DRAWN_HEAD_DIMS = (64, 96, 128, 256)


def kv_bytes(lengths, kv_heads, head_dim, *, v_head_dim=None, element_bytes=ELEMENT_BYTES, q_len=1, window=0, sink_tokens=0, latent=False):
    """Bytes of K and V that a decode step must read. Everything in bench/ counts them with this function, which agrees with the library's.

    `lengths` are the tokens of each request; `v_head_dim` is the width of V where it is not that of K; with `latent` V is a part of K. `element_bytes` is 1 for one-byte caches.
    A query token sees `window` tokens (all for 0) and the first `sink_tokens`. Of `q_len` query tokens the first one looks back furthest.
    """
    visible = window + q_len - 1 + sink_tokens if window else max(lengths, default=0)
    columns = head_dim if latent else head_dim + (v_head_dim or head_dim)
    return sum(min(length, visible) for length in lengths) * kv_heads * columns * element_bytes


def by_length(lengths, most_of):
    """Yields (length, requests) of all requests, where `requests`, an index, have this length: as many as most_of(length), and at least one. It is
    a slice where they are neighbours, else a list; a batch of thousands of requests has far fewer lengths."""
    order = sorted(range(len(lengths)), key=lambda request: lengths[request])
    first = 0
    while first < len(order):
        length, last = lengths[order[first]], first + 1
        most = max(1, most_of(length))
        while last < len(order) and lengths[order[last]] == length and last - first < most:
            last += 1
        requests = order[first:last]
        neighbours = requests[-1] - requests[0] == last - first - 1  # sorted() keeps the order of equal ones
        yield length, slice(requests[0], requests[-1] + 1) if neighbours else requests
        first = last


@dataclasses.dataclass(frozen=True)
class Case:
    """One decode step in bf16: q is [batch, q_heads, head_dim], and request i attends to lengths[i] tokens of kv_heads heads of head_dim."""

    group: str  # the list it belongs to, a key of LISTS
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
        return kv_bytes(self.lengths, self.kv_heads, self.head_dim)

    @property
    def dense_bytes(self):
        """Bytes of K and V in a dense cache, unused capacity included."""
        return kv_bytes((self.capacity,) * self.batch, self.kv_heads, self.head_dim)


def uniform_case(group, batch, q_heads, kv_heads, head_dim, context):
    name = f"{batch}, {q_heads}/{kv_heads}, {head_dim}, {context}"
    return Case(group, name, q_heads, kv_heads, head_dim, (context,) * batch)


def published():
    """The 25 dense shapes that bench/shape_table.py tunes for."""
    return [uniform_case("published", *shape) for shape in shape_table.SHAPES]


def ragged():
    """The two ragged batches of bench/shape_table.py, 32/8 heads of 128."""
    return [Case("ragged", name, 32, 8, 128, tuple(lengths)) for name, lengths in shape_table.RAGGED]


def unusual():
    """Steps that look-ups find hard: many short requests, many query heads on one KV head, head sizes and groups that few models have."""
    steps = [(4096, 32, 8, 128, 100), (1024, 32, 8, 128, 200), (96, 16, 16, 128, 1500), (200, 8, 1, 128, 300), (64, 64, 8, 64, 200), (1, 71, 1, 64, 20000),
             (1, 64, 4, 128, 200000), (1, 96, 8, 192, 16384), (1, 28, 4, 128, 10000), (5, 12, 2, 256, 51200)]
    return [uniform_case("unusual", *step) for step in steps]


def fresh(seed):
    """As drawn(), by the seed of this run."""
    return [dataclasses.replace(case, group="fresh") for case in drawn(seed, FRESH_COUNT)]


def drawn(seed=DRAWN_SEED, count=DRAWN_COUNT):
    """`count` shapes that nothing was tuned for; the same seed gives the same list.

    Query heads per KV head (1 to 16), KV heads, batch (1 to 256) and context (64 to 1M) are log-uniform; head_dim is uniform. A shape with more
    than 128 query heads or with K and V outside DRAWN_KV_BYTES is drawn again.
    """
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


# What makes the cases of a list, from the seed of the run.
LISTS = {"published": lambda seed: published(), "ragged": lambda seed: ragged(), "unusual": lambda seed: unusual(), "drawn": lambda seed: drawn(), "fresh": fresh}
