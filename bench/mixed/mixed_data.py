"""mixed_data.py -- the tensors of one step, in several copies of K and V, and attention in FP64 for a sample of its query tokens."""
import copy as copies_of
import itertools
import random

import torch

from peers import data as case_data
import mixed_steps

KV_SCALE = 1 / 16  # of one-byte K and V: element * KV_SCALE is the value
SAMPLED = 30  # query tokens of a request that are drawn for the comparison, beside the first and the last
LONG_FLOPS = 6e11  # of a step of about a millisecond, to whose time a cold L2 adds nothing


def copies_for(step, l2_bytes):
    """Copies of K and V; two where launches are long."""
    return 2 if step.flops > LONG_FLOPS else case_data.copies_for(step.kv_bytes, l2_bytes)


class StepData:
    """q: [query tokens, q_heads, head_dim]. k[copy], v[copy]: [pages, PAGE_SIZE, kv_heads, head_dim], in memory as `layout` says (NHD, or HND with the
    heads outside the tokens), or dense [batch, context, kv_heads, head_dim]. page_table: [batch, pages of the longest request], or None; lengths:
    [batch]; q_offsets: [batch + 1]: int32. `rows` are those of this data in an output of the whole step."""

    def __init__(self, step, copies, seed, layout="NHD", device="cuda"):
        self.case, self.copies, self.layout, self.device = step, copies, layout if step.paged else "NHD", device
        generator = torch.Generator(device).manual_seed(seed)
        self.q = torch.empty(step.query_tokens, step.q_heads, step.head_dim, dtype=torch.bfloat16, device=device)
        self.q.normal_(0, case_data.LOGIT_DEVIATION, generator=generator)
        pages = [-(-length // mixed_steps.PAGE_SIZE) for length in step.lengths]
        size = (sum(pages), mixed_steps.PAGE_SIZE) if step.paged else (step.batch, step.longest)
        self.page_table = case_data.scattered_pages(pages, generator) if step.paged else None
        if step.fp8:  # kernels that multiply fp8 elements take q so, too
            self.q = self.q.to(torch.float8_e4m3fn).to(torch.bfloat16)
            self.scale = torch.full((1,), KV_SCALE, dtype=torch.float32, device=device)
        self.k, self.v = (self.pool(size, width, generator) for width in (step.head_dim, step.values))
        self.set_requests(seed)

    def pool(self, size, width, generator):
        """Copies of random keys or values."""
        outer, tokens = size
        heads = self.case.kv_heads
        made = torch.empty((outer, heads, tokens, width) if self.layout == "HND" else (outer, tokens, heads, width), dtype=torch.bfloat16, device=self.device)
        made.normal_(generator=generator)
        if self.case.fp8:
            made = made.div_(KV_SCALE).to(torch.float8_e4m3fn)
        made = made.transpose(1, 2) if self.layout == "HND" else made
        return [made] + [made.clone() for _ in range(self.copies - 1)]

    def set_requests(self, seed):
        step = self.case
        self.starts = [0, *itertools.accumulate(query for query, _ in step.requests)]
        self.lengths = torch.tensor(step.lengths, dtype=torch.int32, device=self.device)
        self.q_offsets = torch.tensor(self.starts, dtype=torch.int32, device=self.device)
        self.rows, self.seed = slice(0, step.query_tokens), seed

    def part(self, first, last):
        """The requests first to last - 1 as data of their own, on the same q, k and v."""
        part = copies_of.copy(self)
        part.case = self.case.part(first, last)
        part.set_requests(self.seed)
        part.rows = slice(self.starts[first], self.starts[last])
        part.q, part.page_table = self.q[part.rows], self.page_table[first:last].contiguous()
        return part

    def output(self):
        """A fresh output [query tokens, q_heads, head_dim of v], full of NaN."""
        return torch.full((*self.q.shape[:2], self.case.values), float("nan"), dtype=self.q.dtype, device=self.device)

    def dense(self, tensor):
        """K or V as [batch, context, kv_heads, head_dim]; all contexts are equal."""
        if not self.case.paged:
            return tensor
        return torch.stack([self.gathered(tensor, request) for request in range(self.case.batch)])

    def gathered(self, tensor, request):
        """K or V of one request, [context, kv_heads, head_dim]."""
        if not self.case.paged:
            return tensor[request]
        context = self.case.lengths[request]
        pages = self.page_table[request, :-(-context // mixed_steps.PAGE_SIZE)].long()
        elements = tensor.view(torch.uint8) if self.case.fp8 else tensor
        return elements[pages].flatten(0, 1)[:context].contiguous().view(tensor.dtype)

    def sampled(self):
        """Query tokens to compare, of each request a list: its first and last one, and some between."""
        generator = random.Random(self.seed)
        return [sorted({0, query - 1, *generator.sample(range(query), min(query, SAMPLED))}) for query, _ in self.case.requests]

    def reference(self):
        """(rows, softmax(q K^T / sqrt(head_dim)) V in FP64 under the mask): the sampled rows of an output, and [rows, q_heads, head_dim of v]."""
        step, rows, results = self.case, [], []
        group = step.q_heads // step.kv_heads
        scale = KV_SCALE if step.fp8 else 1.0
        for request, ((query, context), tokens) in enumerate(zip(step.requests, self.sampled(), strict=True)):
            of_request = [self.starts[request] + token for token in tokens]
            q = self.q[of_request].double().view(len(tokens), step.kv_heads, group, step.head_dim)
            k, v = (self.gathered(tensor[0], request) for tensor in (self.k, self.v))
            position = torch.tensor([context - query + token for token in tokens], device=self.device).view(-1, 1, 1)
            index = torch.arange(context, device=self.device)
            hidden = (index > position) | (index <= position - step.window if step.window else index < 0)
            result = torch.empty(len(tokens), step.kv_heads, group, step.values, dtype=torch.float64, device=self.device)
            for head in range(step.kv_heads):  # one at a time, for the sake of memory
                logits = q[:, head] @ (k[:, head].double().T * (scale / step.head_dim ** 0.5))
                result[:, head] = logits.masked_fill_(hidden, float("-inf")).softmax(-1) @ (v[:, head].double() * scale)
            rows += of_request
            results.append(result.flatten(1, 2))
        return torch.tensor(rows, device=self.device), torch.cat(results)
