"""step_data.py -- the tensors of one step: a pool of pages in random order, in several copies, and attention in FP64 on it. One GPU stream."""
import torch

import steps
from peers import data as case_data


def rows_of(columns):
    """[..., WIDTH] bf16 as rows of the format fp8_ds_mla: [..., ROW_BYTES] uint8. A scale is the largest magnitude of its group over 448."""
    latent = columns[..., :steps.VALUES].float().unflatten(-1, (-1, steps.GROUP))
    scales = latent.abs().amax(-1, keepdim=True) / 448
    quantised = (latent / scales).to(torch.float8_e4m3fn).flatten(-2)
    return torch.cat([quantised.view(torch.uint8), scales.squeeze(-1).contiguous().view(torch.uint8),
                      columns[..., steps.VALUES:].contiguous().view(torch.uint8)], -1)


def values_of(rows):
    """The columns of rows [..., ROW_BYTES] as fp32; bf16 columns as they are."""
    if rows.dtype != torch.uint8:
        return rows
    rope = steps.VALUES + steps.VALUES // steps.GROUP * 4
    latent = rows[..., :steps.VALUES].contiguous().view(torch.float8_e4m3fn).float()
    scales = rows[..., steps.VALUES:rope].contiguous().view(torch.float32)
    return torch.cat([latent * scales.repeat_interleave(steps.GROUP, -1), rows[..., rope:].contiguous().view(torch.bfloat16).float()], -1)


class StepData:
    """q: [batch, q_len, heads, WIDTH]. pools[copy]: [pages, PAGE_SIZE, 1, WIDTH], or [..., ROW_BYTES] uint8. page_table: [batch, pages of the longest request] int32, and
    lengths: [batch] int32, on the GPU. k and v are the halves of a copy, for kernels that only read."""

    def __init__(self, step, copies, seed):
        self.case, self.copies = step, copies
        device = torch.device("cuda")
        generator = torch.Generator(device).manual_seed(seed)
        self.q = torch.empty(step.batch, step.q_len, step.heads, steps.WIDTH, dtype=torch.bfloat16, device=device)
        # As for other caches (peers.data), softmax is sharp enough that a lost tile of a long context shows in the result.
        self.q.normal_(0, case_data.LOGIT_DEVIATION / (steps.WIDTH ** 0.5 * steps.SCALE), generator=generator)
        first = torch.empty(step.pages, steps.PAGE_SIZE, 1, steps.WIDTH, dtype=torch.bfloat16, device=device)
        first.normal_(generator=generator)
        if step.rows:
            first = rows_of(first)
        self.pools = [first] + [first.clone() for _ in range(copies - 1)]
        halves = [pool.view(2, -1) for pool in self.pools]
        self.k, self.v = [half[0] for half in halves], [half[1] for half in halves]
        self.lengths = torch.tensor(step.lengths, dtype=torch.int32, device=device)
        self.page_table = case_data.scattered_pages([-(-length // steps.PAGE_SIZE) for length in step.lengths], generator)
        if step.selected:
            self.selection, self.counts = self.select(generator)

    def select(self, generator):
        """What each query token sees, as places in the pool: [batch, q_len, 1, selected] int32, in the order of an indexer's scores, which is none,
        and [batch, q_len] counts. No token comes twice."""
        step, device = self.case, self.q.device
        tokens = torch.stack([torch.randperm(length - step.q_len + 1, generator=generator, device=device)[:step.selected]
                              for length in step.lengths for _ in range(step.q_len)])
        self.selected_tokens = tokens.view(step.batch, step.q_len, -1)
        table = self.page_table.long().repeat_interleave(step.q_len, 0)
        places = table.gather(1, tokens // steps.PAGE_SIZE) * steps.PAGE_SIZE + tokens % steps.PAGE_SIZE
        counts = torch.full((step.batch, step.q_len), step.selected, dtype=torch.int32, device=device)
        return places.view(step.batch, step.q_len, 1, -1).int().contiguous(), counts

    def reference(self):
        """softmax(q K^T * SCALE) V in FP64 under the causal mask: [batch, q_len * heads, VALUES]."""
        step = self.case
        result = torch.zeros(step.batch, step.q_len, step.heads, steps.VALUES, dtype=torch.float64, device=self.q.device)
        for request, length in enumerate(step.lengths):
            pages = self.page_table[request, :-(-length // steps.PAGE_SIZE)].long()
            rows = values_of(self.pools[0][pages]).view(-1, steps.WIDTH)[:length].double()
            for token in range(step.q_len):
                seen = rows[self.selected_tokens[request, token]] if step.selected else rows[:max(0, length - step.q_len + 1 + token)]
                logits = self.q[request, token].double() @ seen.T * steps.SCALE
                result[request, token] = logits.softmax(-1) @ seen[:, :steps.VALUES]
        return result.view(step.batch, -1, steps.VALUES)

    def flat(self, output):
        """An output [batch, q_len, heads, VALUES] in the shape of reference()."""
        return output.view(self.case.batch, -1, steps.VALUES)
