"""steps.py -- the decode steps with a latent cache that are measured. This module needs neither torch nor a GPU.

A step has `heads` query heads and one KV head: rows of WIDTH columns, of which the first VALUES are values. There is a list of fixed steps, and
one drawn at random with a seed.
"""
import dataclasses
import random

from peers import shapes

WIDTH, VALUES = 576, 512
PAGE_SIZE = 64  # tokens; FlashMLA takes no other
SCALE = 192 ** -0.5  # of DeepSeek V3 before its projections are absorbed

# A row as vLLM's and SGLang's kv_cache_dtype fp8_ds_mla has it: VALUES fp8 e4m3 bytes, an fp32 scale for each GROUP of them, and the other columns
# in bf16.
GROUP, ROW_BYTES = 128, 656

# DeepSeek V4's rows as vLLM has them: SPLIT fp8 bytes and the other columns in bf16, and behind the rows of a page, for each, the exponents of
# seven groups' scales and a pad. Pages are padded. Each query token also sees WINDOW tokens of a second cache.
SPLIT_WIDTH, SPLIT, SPLIT_GROUP, SPLIT_DATA, SPLIT_SCALES = 512, 448, 64, 576, 8
SPLIT_PAGE_BYTES = (PAGE_SIZE + 1) * SPLIT_DATA
WINDOW = 128

DRAWN_COUNT = 24
DRAWN_BYTES = (1 << 20, 1 << 30)


@dataclasses.dataclass(frozen=True)
class Step:
    """One decode step: q is [batch, q_len, heads, WIDTH] in bf16, and request i has lengths[i] tokens, the last q_len of them the query's own."""

    group: str  # the list it belongs to: "fixed", "selected", "rows", "split", "drawn"
    name: str
    heads: int
    q_len: int
    lengths: tuple[int, ...]  # [batch] tokens
    selected: int = 0  # tokens that each query token sees of its context; 0: all
    rows: bool = False  # rows of ROW_BYTES instead of bf16
    split: bool = False  # DeepSeek V4's, and a second cache

    q_heads = property(lambda self: self.heads)
    kv_heads = property(lambda self: 1)
    head_dim = property(lambda self: SPLIT_WIDTH if self.split else WIDTH)
    kv_format = property(lambda self: "fp8_ds_mla" if self.rows else "fp8_ds_v4" if self.split else "")
    batch = property(lambda self: len(self.lengths))
    # With a selection, what leanattn calls a context is what a query token sees of it.
    longest = property(lambda self: self.selected or max(self.lengths))
    tokens = property(lambda self: self.selected * self.batch or sum(self.lengths))
    ragged = property(lambda self: min(self.lengths) != max(self.lengths))
    pages = property(lambda self: sum(-(-length // PAGE_SIZE) for length in self.lengths))

    @property
    def kv_bytes(self):
        """Bytes of the rows that the step must read."""
        if self.split:
            return (self.selected + WINDOW) * self.batch * self.q_len * (SPLIT_DATA + SPLIT_SCALES)
        if self.rows:
            return (self.selected * self.batch * self.q_len or sum(self.lengths)) * ROW_BYTES
        if self.selected:
            return shapes.kv_bytes((self.selected,) * (self.batch * self.q_len), 1, WIDTH, latent=True)
        return shapes.kv_bytes(self.lengths, 1, WIDTH, latent=True)

    @property
    def flops(self):
        """Multiplications and additions of the two matrix products over all tokens, masked ones included."""
        tokens = self.tokens + self.batch * WINDOW if self.split else self.tokens
        return 2 * tokens * self.q_len * self.heads * (self.head_dim + VALUES)


def uniform(group, batch, heads, q_len, context):
    return Step(group, f"{batch}, {heads}, {q_len}, {context}", heads, q_len, (context,) * batch)


def fixed():
    """Steps of DeepSeek V3 and of its tensor-parallel shares, from small batches to large ones, and uneven batches."""
    uniforms = [(128, 128, 1, 4096), (128, 128, 1, 8192), (64, 128, 1, 16384), (32, 128, 2, 8192), (8, 128, 1, 131072), (16, 128, 1, 4096),
                (1, 128, 1, 1024), (1, 128, 1, 8192), (1, 128, 1, 65536), (64, 64, 1, 8192), (64, 32, 1, 8192), (128, 16, 1, 4096),
                (128, 16, 1, 1024), (128, 8, 1, 4096), (32, 16, 1, 32768), (16, 16, 1, 4096), (16, 16, 4, 8192), (1, 16, 1, 1024),
                (1, 16, 1, 8192), (1, 16, 1, 65536)]
    generator = random.Random(1)
    normal = tuple(max(1, round(generator.gauss(4096, 2048))) for _ in range(128))
    one_long = (131072,) + (1024,) * 63
    return [uniform("fixed", *each) for each in uniforms] + [
        Step("fixed", "128 ragged, N(4096, 2048), 128 heads", 128, 1, normal),
        Step("fixed", "131072 + 63 x 1024, 128 heads", 128, 1, one_long),
        Step("fixed", "131072 + 63 x 1024, 16 heads", 16, 1, one_long)]


def selected():
    """Steps of sparse-attention models: each query token sees the 2048 tokens that an indexer chose of its context."""
    uniforms = [(128, 128, 1, 16384), (1, 128, 1, 65536), (128, 16, 1, 16384), (16, 128, 1, 32768), (16, 16, 2, 32768)]
    return [Step("selected", f"{batch}, {heads}, {q_len}, 2048 of {context}", heads, q_len, (context,) * batch, 2048)
            for batch, heads, q_len, context in uniforms]


def rows():
    """The same over rows of ROW_BYTES, which such models have in engines."""
    return [dataclasses.replace(step, group="rows", name=f"{step.name}, fp8_ds_mla", rows=True) for step in selected()]


def split():
    """Steps of DeepSeek V4: the 512 compressed tokens that an indexer chose, and a window."""
    return [Step("split", f"{batch}, 64, 1, 512 of {context} + {WINDOW}, fp8_ds_v4", 64, 1, (context,) * batch, 512, split=True)
            for batch, context in [(1, 16384), (16, 16384), (128, 8192)]]


def drawn(seed):
    """DRAWN_COUNT uniform steps: batch (1 to 128) and context (256 to 128k) are log-uniform, heads and query tokens are of what models have. A
    step outside DRAWN_BYTES is drawn again."""
    generator = random.Random(seed)
    steps = []
    while len(steps) < DRAWN_COUNT:
        step = uniform("drawn", round(2 ** generator.uniform(0, 7)), generator.choice((8, 16, 32, 64, 128)), generator.choice((1, 1, 1, 2, 4)),
                       round(2 ** generator.uniform(8, 17)))
        if DRAWN_BYTES[0] <= step.kv_bytes <= DRAWN_BYTES[1]:
            steps.append(step)
    return steps
