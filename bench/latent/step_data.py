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


def split_pages_of(columns):
    """[pages, PAGE_SIZE, 1, SPLIT_WIDTH] bf16 as padded pages of the format fp8_ds_v4: [pages, SPLIT_PAGE_BYTES] uint8. A scale is the least power
    of two with which no byte of its group is larger than 448."""
    latent = columns[..., 0, :steps.SPLIT].float().unflatten(-1, (-1, steps.SPLIT_GROUP))
    exponents = (latent.abs().amax(-1, keepdim=True).clamp(min=1e-4) / 448).log2().ceil()
    quantised = (latent * torch.exp2(-exponents)).to(torch.float8_e4m3fn).flatten(-2)
    data = torch.cat([quantised.view(torch.uint8), columns[..., 0, steps.SPLIT:].contiguous().view(torch.uint8)], -1)
    scales = torch.nn.functional.pad((exponents.squeeze(-1) + 127).to(torch.uint8), (0, 1))
    pages = torch.zeros(len(columns), steps.SPLIT_PAGE_BYTES, dtype=torch.uint8, device=columns.device)
    pages[:, :data[0].numel()] = data.flatten(1)
    pages[:, data[0].numel():data[0].numel() + scales[0].numel()] = scales.flatten(1)
    return pages


def split_values_of(pages):
    """The columns of padded pages [pages, SPLIT_PAGE_BYTES] as fp32: [pages, PAGE_SIZE, SPLIT_WIDTH]."""
    behind = steps.PAGE_SIZE * steps.SPLIT_DATA
    data = pages[:, :behind].unflatten(1, (steps.PAGE_SIZE, steps.SPLIT_DATA))
    scales = pages[:, behind:behind + steps.PAGE_SIZE * steps.SPLIT_SCALES].unflatten(1, (steps.PAGE_SIZE, steps.SPLIT_SCALES))
    latent = data[..., :steps.SPLIT].contiguous().view(torch.float8_e4m3fn).float()
    groups = torch.exp2(scales[..., :steps.SPLIT // steps.SPLIT_GROUP].float() - 127)
    return torch.cat([latent * groups.repeat_interleave(steps.SPLIT_GROUP, -1), data[..., steps.SPLIT:].contiguous().view(torch.bfloat16).float()], -1)


def split_view(pages):
    """Such pages as engines view them: [pages, PAGE_SIZE, 1, bytes of a token]."""
    token = steps.SPLIT_DATA + steps.SPLIT_SCALES
    return pages.as_strided((len(pages), steps.PAGE_SIZE, 1, token), (steps.SPLIT_PAGE_BYTES, token, token, 1))


def values_of(rows):
    """The columns of rows [..., ROW_BYTES] as fp32; bf16 columns as they are."""
    if rows.dtype != torch.uint8:
        return rows
    rope = steps.VALUES + steps.VALUES // steps.GROUP * 4
    latent = rows[..., :steps.VALUES].contiguous().view(torch.float8_e4m3fn).float()
    scales = rows[..., steps.VALUES:rope].contiguous().view(torch.float32)
    return torch.cat([latent * scales.repeat_interleave(steps.GROUP, -1), rows[..., rope:].contiguous().view(torch.bfloat16).float()], -1)


class StepData:
    """q: [batch, q_len, heads, WIDTH]. pools[copy]: [pages, PAGE_SIZE, 1, WIDTH], or [..., ROW_BYTES] uint8, or padded pages; of these seconds[copy]
    are a second cache, in which a request has WINDOW tokens. page_table: [batch, pages of the longest request] int32, and
    lengths: [batch] int32, on the GPU. k and v are the halves of a copy, for kernels that only read."""

    def __init__(self, step, copies, seed):
        self.case, self.copies = step, copies
        device = torch.device("cuda")
        generator = torch.Generator(device).manual_seed(seed)
        self.q = torch.empty(step.batch, step.q_len, step.heads, step.head_dim, dtype=torch.bfloat16, device=device)
        # As for other caches (peers.data), softmax is sharp enough that a lost tile of a long context shows in the result.
        self.q.normal_(0, case_data.LOGIT_DEVIATION / (step.head_dim ** 0.5 * steps.SCALE), generator=generator)
        def drawn(pages):
            columns = torch.empty(pages, steps.PAGE_SIZE, 1, step.head_dim, dtype=torch.bfloat16, device=device)
            columns.normal_(generator=generator)
            return rows_of(columns) if step.rows else split_pages_of(columns) if step.split else columns

        def copied(first):
            return [first] + [first.clone() for _ in range(copies - 1)]

        self.pools = copied(drawn(step.pages))
        if step.split:
            of_window = steps.WINDOW // steps.PAGE_SIZE
            self.seconds = copied(drawn(step.batch * of_window))
            self.second_table = case_data.scattered_pages([of_window] * step.batch, generator)
            self.second_lengths = torch.full((step.batch, step.q_len), steps.WINDOW, dtype=torch.int32, device=device)
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
            values = split_values_of if step.split else values_of
            rows = values(self.pools[0][pages]).view(-1, step.head_dim)[:length].double()
            for token in range(step.q_len):
                seen = rows[self.selected_tokens[request, token]] if step.selected else rows[:max(0, length - step.q_len + 1 + token)]
                if step.split:
                    seen = torch.cat([seen, values(self.seconds[0][self.second_table[request].long()]).view(-1, step.head_dim).double()])
                logits = self.q[request, token].double() @ seen.T * steps.SCALE
                result[request, token] = logits.softmax(-1) @ seen[:, :steps.VALUES]
        return result.view(step.batch, -1, steps.VALUES)

    def flat(self, output):
        """An output [batch, q_len, heads, VALUES] in the shape of reference()."""
        return output.view(self.case.batch, -1, steps.VALUES)
