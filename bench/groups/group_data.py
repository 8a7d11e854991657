"""group_data.py -- the tensors of one step on one rank: the whole contexts, and this rank's part of them, in several copies. One GPU stream."""
import torch

import group_steps
from peers import data as case_data
from peers import oracle


class StepData:
    """q: [batch, q_heads, head_dim], on every rank the same. `whole` and `part` are Caches of all tokens and of this rank's."""

    def __init__(self, step, rank, ranks, copies, seed):
        self.step, self.copies = step, copies
        device = torch.device("cuda")
        generator = torch.Generator(device).manual_seed(seed)
        self.q = torch.empty(step.batch, step.q_heads, step.head_dim, dtype=torch.bfloat16, device=device)
        self.q.normal_(0, case_data.LOGIT_DEVIATION, generator=generator)
        k, v = (torch.empty(step.batch, step.kv_heads, capacity_of(step.longest), step.head_dim, dtype=torch.bfloat16, device=device).normal_(generator=generator)
                for _ in range(2))
        self._dense = k, v
        held = step.part(rank, ranks)
        self.whole = Caches(step, [range(length) for length in step.lengths], k, v, copies)
        self.part = Caches(step, held, k, v, copies)

    def reference(self):
        """Attention over the whole contexts in FP64: [batch, q_heads, head_dim]."""
        return oracle.attention(self.q, *self._dense, self.step.lengths)


class Caches:
    """K and V of some tokens of each request. copies[i]: (k, v), dense [batch, kv_heads, capacity, head_dim], or pools of pages in random order
    [pages, kv_heads, page_size, head_dim] with page_table [batch, pages of a request] int32. lengths: [batch] int32 on the GPU, `counts` on the host."""

    def __init__(self, step, tokens, k, v, copies):
        self.counts = [len(of_request) for of_request in tokens]
        self.longest = max(self.counts)
        self.lengths = torch.tensor(self.counts, dtype=torch.int32, device=k.device)
        capacity = capacity_of(self.longest)
        everything = capacity == k.shape[2] and all(isinstance(held, range) and held.start == 0 for held in tokens)
        first = (k, v) if everything else tuple(dealt(cache, tokens, capacity) for cache in (k, v))
        self.page_table = None
        if step.page_size:
            pages = step.batch * capacity // step.page_size
            # Of the CPU, so that all ranks and copies agree.
            order = torch.randperm(pages, generator=torch.Generator().manual_seed(pages)).to(k.device)
            first = tuple(in_pages(cache, step.page_size, order) for cache in first)
            self.page_table = order.to(torch.int32).view(step.batch, -1)
        self.copies = [first] + [tuple(cache.clone() for cache in first) for _ in range(copies - 1)]

    def heads(self, begin, end):
        """Views of some KV heads: (k, v) of every copy."""
        return [(k[:, begin:end], v[:, begin:end]) for k, v in self.copies]


def capacity_of(longest):
    """Tokens for which a request has room: whole pages, and at least one."""
    return max(-(-longest // group_steps.PAGE_SIZE), 1) * group_steps.PAGE_SIZE


def dealt(cache, tokens, capacity):
    """Some tokens of each request, [batch, kv_heads, capacity, head_dim]."""
    batch, heads, _, dim = cache.shape
    made = torch.zeros(batch, heads, capacity, dim, dtype=cache.dtype, device=cache.device)
    for request, held in enumerate(tokens):
        if isinstance(held, range):
            made[request, :, :len(held)] = cache[request, :, held.start:held.stop]
        else:
            made[request, :, :len(held)] = cache[request].index_select(1, torch.tensor(held, dtype=torch.int64, device=cache.device))
    return made


def in_pages(cache, page_size, order):
    """A dense cache as a pool [pages, kv_heads, page_size, head_dim]: page i of the requests, one request after the other, is at order[i]."""
    batch, heads, capacity, dim = cache.shape
    pages = cache.view(batch, heads, capacity // page_size, page_size, dim).transpose(1, 2).reshape(-1, heads, page_size, dim)
    pool = torch.empty_like(pages)
    pool[order] = pages
    return pool
