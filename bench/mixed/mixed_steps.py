"""mixed_steps.py -- the steps that are measured: decodes beside chunks of prompts, chunks, and whole prompts. This module needs neither torch nor a GPU."""
import dataclasses
import math
import random

from peers import shapes

PAGE_SIZE = shapes.PAGE_SIZE
DRAWN_COUNT = 24
DRAWN_GROUPS = ("mixed", "mixed", "chunks", "uniform")  # of the drawn steps, in turn
DRAWN_HEADS = ((32, 8), (64, 8), (28, 4), (16, 2), (8, 1))
DRAWN_KV_BYTES = (4 << 20, 4 << 30)
DRAWN_FLOPS = 4e12
MOST_DECODE_TOKENS = 16  # of a request, in a problem without prefill
FAST_OF_GROUP = 2  # steps of each group that --fast keeps


@dataclasses.dataclass(frozen=True)
class Step:
    """One step: q is [query tokens, q_heads, head_dim], the tokens of all requests one after the other. Request i has requests[i] = (query tokens,
    context): its query tokens are the last ones of its context and see what is before them and themselves. Requests with one query token come first,
    as in engines."""

    group: str  # a key of mixed_report.GROUPS
    name: str
    requests: tuple[tuple[int, int], ...]
    q_heads: int
    kv_heads: int
    head_dim: int = 128
    v_head_dim: int = 0  # 0: head_dim
    fp8: bool = False  # e4m3 elements of K and V
    window: int = 0  # tokens that a query token sees, itself the last of them; 0: all
    paged: bool = True  # else K and V are dense, and all contexts are equal

    batch = property(lambda self: len(self.requests))
    lengths = property(lambda self: tuple(context for _, context in self.requests))
    longest = property(lambda self: max(self.lengths))
    tokens = property(lambda self: sum(self.lengths))
    ragged = property(lambda self: min(self.lengths) != self.longest)
    q_len = property(lambda self: max(query for query, _ in self.requests))
    query_tokens = property(lambda self: sum(query for query, _ in self.requests))
    decodes = property(lambda self: sum(query == 1 for query, _ in self.requests))
    values = property(lambda self: self.v_head_dim or self.head_dim)
    prompts = property(lambda self: all(query == context for query, context in self.requests))  # nothing is in the cache yet

    @property
    def kv_bytes(self):
        """Bytes of K and V that the step must read."""
        element_bytes = 1 if self.fp8 else shapes.ELEMENT_BYTES
        return sum(shapes.kv_bytes((context,), self.kv_heads, self.head_dim, v_head_dim=self.v_head_dim, element_bytes=element_bytes, q_len=query,
                                   window=self.window) for query, context in self.requests)

    @property
    def flops(self):
        """Multiplications and additions of both matrix products, without what masks hide."""
        pairs = sum(min(seen, self.window or seen) for query, context in self.requests for seen in range(context - query + 1, context + 1))
        return 2 * pairs * self.q_heads * (self.head_dim + self.values)

    @property
    def mix(self):
        """What the shape of a step with prefill says of its query tokens (leanattn_shape); empty for others."""
        chunks = [(query, context) for query, context in self.requests if query > 1]
        if self.q_len <= MOST_DECODE_TOKENS:
            return {}
        return {"query_tokens": self.query_tokens, "chunks": len(chunks), "chunk_context": sum(context for _, context in chunks),
                "chunk_pairs": sum(query * (context - query) + query * (query + 1) // 2 for query, context in chunks)}

    @property
    def features(self):
        """The problem's features, as a call capture names them."""
        several = self.q_len > 1
        named = {"page_size": self.paged and PAGE_SIZE, "q_len": several and self.q_len, "ragged_q": several, "v_head_dim": self.v_head_dim,
                 "kv_format": self.fp8 and "fp8_e4m3", "window": self.window}
        return {name: value for name, value in named.items() if value}

    def part(self, first, last):
        """The step of requests first to last - 1 alone."""
        return dataclasses.replace(self, requests=self.requests[first:last])

    def parts(self):
        """The requests of a launch for the decodes and of one for the others, each as (first, last); none where the step has only one of both kinds."""
        return [(0, self.decodes), (self.decodes, self.batch)] if 0 < self.decodes < self.batch else []


def step(group, name, requests, q_heads, kv_heads, **more):
    width = "".join(f", d {more['head_dim']}{'/' + str(more['v_head_dim']) if more.get('v_head_dim') else ''}" if "head_dim" in more else "")
    window = f", window {more['window']}" if more.get("window") else ""
    name = f"{name}, {q_heads}/{kv_heads}{width}{window}{', fp8' if more.get('fp8') else ''}"
    return Step(group, name, tuple(sorted(requests, key=lambda request: request[0] > 1)), q_heads, kv_heads, **more)


def decodes(count, context):
    return [(1, context)] * count


def fixed():
    """Steps of engines with chunked prefill, chunks of one prompt, several query tokens of each request, and whole prompts."""
    generator = random.Random(3)
    long_decode = decodes(1, 131072) + decodes(63, 2048) + [(2048, 8192)]
    uneven = [(1, generator.randint(1000, 60000)) for _ in range(20)] + [(1024, 40000)]
    prompts = [(tokens, tokens) for tokens in (generator.randint(64, 4096) for _ in range(16))]
    mixed = [("64 decodes at 4k + chunk 2048 of 8k", decodes(64, 4096) + [(2048, 8192)], 32, 8),
             ("1 decode at 128k + 63 at 2k + chunk 2048 of 8k", long_decode, 8, 1),
             ("1 decode at 128k + 63 at 2k + chunk 2048 of 8k", long_decode, 32, 8),
             ("128 decodes at 8k + 4096 of 8192", decodes(128, 8192) + [(4096, 8192)], 32, 8),
             ("128 decodes at 2k + 2048 of 2048", decodes(128, 2048) + [(2048, 2048)], 32, 8),
             ("q257 + 7 x q1 s1057 + 3 x q4 s2051 + 2 x q129 s4093", [(257, 257)] + decodes(7, 1057) + [(4, 2051)] * 3 + [(129, 4093)] * 2, 32, 8),
             ("q769 + 3 x q1 s6143 + 2 x q8 s3073 + q257 s8191", [(769, 769)] + decodes(3, 6143) + [(8, 3073)] * 2 + [(257, 8191)], 32, 8),
             ("122 decodes at 600 + 8 x q17 of 10k", decodes(122, 600) + [(17, 10000)] * 8, 32, 8),
             ("20 decodes U[1k, 60k] + chunk 1024 of 40k", uneven, 32, 8)]
    chunks = [("chunk 512 of 32k", [(512, 32768)], 8, 1), ("chunk 512 of 128k", [(512, 131072)], 8, 1), ("chunk 2304 of 64k", [(2304, 65536)], 8, 1),
              ("chunk 2048 of 128k", [(2048, 131072)], 16, 2), ("32 x q8 of 8k", [(8, 8192)] * 32, 32, 8), ("8 x q64 of 16k", [(64, 16384)] * 8, 32, 8)]
    uniform = [("2 x 8192", [(8192, 8192)] * 2, 64, 8), ("16 prompts of U[64, 4096]", prompts, 32, 8), ("1 x 16384", [(16384, 16384)], 64, 8),
               ("1 x 32768", [(32768, 32768)], 8, 1)]
    return ([step("mixed", *each) for each in mixed] + [step("chunks", *each) for each in chunks] + [step("uniform", *each) for each in uniform]
            + [step("uniform", "1 x 16384", [(16384, 16384)], 32, 2, head_dim=256)])


def special():
    """The same kinds of steps with one-byte caches, latent prompts before their projections are absorbed, other head sizes, and windows."""
    mixed = "64 decodes at 4k + chunk 2048 of 8k", decodes(64, 4096) + [(2048, 8192)]
    return [step("fp8", *mixed, 32, 8, fp8=True), step("fp8", "chunk 512 of 128k", [(512, 131072)], 8, 1, fp8=True),
            step("fp8", "2 x 8192", [(8192, 8192)] * 2, 32, 8, fp8=True),
            step("latent", "1 x 8192", [(8192, 8192)], 16, 16, head_dim=192, v_head_dim=128, paged=False),
            step("latent", "4 x 2048", [(2048, 2048)] * 4, 128, 128, head_dim=192, v_head_dim=128, paged=False),
            step("head sizes", *mixed, 32, 8, head_dim=64), step("head sizes", *mixed, 16, 2, head_dim=256),
            step("head sizes", "4 x 4096", [(4096, 4096)] * 4, 32, 8, head_dim=64),
            step("head sizes", "chunk 1024 of 32k", [(1024, 32768)], 8, 1, head_dim=256),
            step("windows", "64 decodes at 8k + chunk 2048 of 16k", decodes(64, 8192) + [(2048, 16384)], 32, 8, window=4096),
            step("windows", "1 x 16384", [(16384, 16384)], 32, 8, window=1024)]


def drawn(seed, count=DRAWN_COUNT):
    """`count` steps whose sizes are log-uniform; the same seed gives the same list. A step outside DRAWN_KV_BYTES or with more than DRAWN_FLOPS is
    drawn again."""
    generator = random.Random(seed)
    made = []
    while len(made) < count:
        group = DRAWN_GROUPS[len(made) % len(DRAWN_GROUPS)]
        name, requests = draw(generator, group)
        each = step(f"drawn {group}", f"{len(made)}: {name}", requests, *generator.choice(DRAWN_HEADS))
        if DRAWN_KV_BYTES[0] <= each.kv_bytes <= DRAWN_KV_BYTES[1] and each.flops <= DRAWN_FLOPS:
            made.append(each)
    return made


def draw(generator, group):
    """The name and the requests of a step."""
    def size(low, high):
        return round(2 ** generator.uniform(math.log2(low), math.log2(high)))

    def many(noun, sizes):
        return f"{len(sizes)} {noun}s of {min(sizes)} to {max(sizes)}" if len(sizes) > 1 else f"{noun} of {sizes[0]}"

    if group == "uniform":
        prompts = [size(128, 16384) for _ in range(size(1, 16))]
        return many("prompt", prompts), [(tokens, tokens) for tokens in prompts]
    if group == "chunks":
        query = size(8, 4096)
        count, context = size(1, 8), size(query, 131072)
        return f"{count} x q{query} of {context}", [(query, context)] * count
    longest, query = size(512, 131072), size(32, 8192)
    contexts = [size(max(1, longest // 16), longest) for _ in range(size(1, 256))]
    context = size(query, 131072)
    return f"{many('decode', contexts)} + chunk {query} of {context}", [(1, tokens) for tokens in contexts] + [(query, context)]


def fast(chosen):
    """The first FAST_OF_GROUP steps of each group."""
    return [each for i, each in enumerate(chosen) if sum(other.group == each.group for other in chosen[:i]) < FAST_OF_GROUP]
