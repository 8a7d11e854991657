"""data.py -- the tensors of one decode step, in several copies, so that a launch never finds its K and V in L2.

Every copy has the same values, so that one result is right for all of them. A copy has K and V dense, [batch, kv_heads, capacity, head_dim], and
on request also in pages of PAGE_SIZE tokens. The pages lie in the order of the requests, which is the best case for a system that reads pages.
Use one GPU stream at a time.
"""
import torch

from .shapes import PAGE_SIZE

LAYOUTS = ("HND", "NHD")  # of a page: [kv_heads, PAGE_SIZE, head_dim] or [PAGE_SIZE, kv_heads, head_dim]

# The standard deviation of the step's logits. With it, softmax is sharp enough that a lost tile of a long context shows in the result.
LOGIT_DEVIATION = 2.0
MAX_COPIES = 256


def copies_for(kv_bytes, l2_bytes):
    """Copies of K and V whose bytes together are at least four times the L2; two or more."""
    return max(2, min(MAX_COPIES, -(-4 * l2_bytes // kv_bytes)))


def scattered_pages(counts, generator):
    """[requests, most pages] int32 on the generator's device: the pages of each request, counts[i] of them, of a pool in random order; 0 behind them."""
    order = torch.randperm(sum(counts), generator=generator, device=generator.device).to(torch.int32)
    table = torch.zeros(len(counts), max(counts), dtype=torch.int32, device=generator.device)
    for request, pages in enumerate(order.split(counts)):
        table[request, :len(pages)] = pages
    return table


class CaseData:
    """q: [batch, q_heads, head_dim]. k[copy], v[copy]: [batch, kv_heads, capacity, head_dim]. lengths: [batch] int32 on the GPU."""

    def __init__(self, case, copies, seed):
        self.case, self.copies = case, copies
        device = torch.device("cuda")
        generator = torch.Generator(device).manual_seed(seed)
        self.q = torch.empty(case.batch, case.q_heads, case.head_dim, dtype=torch.bfloat16, device=device)
        self.q.normal_(0, LOGIT_DEVIATION, generator=generator)
        dense = (case.batch, case.kv_heads, case.capacity, case.head_dim)
        self.k = [torch.empty(dense, dtype=torch.bfloat16, device=device) for _ in range(copies)]
        self.v = [torch.empty(dense, dtype=torch.bfloat16, device=device) for _ in range(copies)]
        for first, *others in (self.k, self.v):
            first.normal_(generator=generator)
            for other in others:
                other.copy_(first)
        self.lengths = torch.tensor(case.lengths, dtype=torch.int32, device=device)
        self.pages_of = [-(-length // PAGE_SIZE) for length in case.lengths]
        self._paged = {}

    def output(self):
        """A fresh output, full of NaN."""
        return torch.full_like(self.q, float("nan"))

    def paged(self, layout):
        """(k_pages, v_pages) of each copy, [pages, *page of the layout]; request i has the pages after those of request i-1."""
        if layout not in self._paged:
            first = tuple(paged(dense, self.case.kv_heads, self.pages_of, layout) for dense in (self.k[0], self.v[0]))
            self._paged[layout] = [first] + [tuple(pages.clone() for pages in first) for _ in range(self.copies - 1)]
        return self._paged[layout]


def paged(dense, kv_heads, pages_of, layout):
    """The first pages_of[i] pages of each request of a dense tensor, [batch, kv_heads, capacity, head_dim], one request after the other."""
    batch, _, capacity, head_dim = dense.shape
    # [batch, page, kv_heads, token, head_dim] or [batch, page, token, kv_heads, head_dim]
    order = (0, 2, 1, 3, 4) if layout == "HND" else (0, 2, 3, 1, 4)
    in_pages = dense.view(batch, kv_heads, capacity // PAGE_SIZE, PAGE_SIZE, head_dim).permute(order)
    pages = torch.empty((sum(pages_of), *in_pages.shape[2:]), dtype=dense.dtype, device=dense.device)
    if all(count == capacity // PAGE_SIZE for count in pages_of):
        pages.view(in_pages.shape).copy_(in_pages)
        return pages
    first = 0
    for request, count in enumerate(pages_of):
        pages[first:first + count].copy_(in_pages[request, :count])
        first += count
    return pages
