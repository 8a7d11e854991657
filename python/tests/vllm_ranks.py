"""vllm_ranks.py -- decode context parallelism for vllm_steps.py: ranks that are threads, what each has of a context, and plain PyTorch in place of
the kernels of vLLM that join what ranks computed.
"""
import dataclasses

import torch

import rank_threads


class Group(rank_threads.Ranks):
    """vLLM's coordinator of a group, as far as attention uses it. Of each thread it is that rank's own."""

    @property
    def world_size(self):
        return self.size

    @property
    def device_group(self):
        """What torch.distributed takes, whose place all_gather_into() has."""
        return self

    @property
    def rank_in_group(self):
        return self.mine.rank

    def _of_all(self, tensor):
        assert tensor.is_contiguous()
        self.values[self.mine.rank] = tensor.clone()  # which its rank may write over, once it goes on
        self.meeting.wait()
        found = list(self.values)
        self.meeting.wait()
        return found

    def all_gather(self, tensor, dim=-1):
        return torch.cat(self._of_all(tensor), dim)

    def reduce_scatter(self, tensor, dim=-1):
        return sum(part.float() for part in self._of_all(tensor)).to(tensor.dtype).chunk(self.size, dim)[self.mine.rank]


def all_gather_into(gathered, tensor, group):
    """torch.distributed.all_gather_into_tensor."""
    gathered.copy_(group.all_gather(tensor, 0))


@dataclasses.dataclass(frozen=True)
class Part:
    """What a rank has of every context: units of `interleave` tokens in turn. With one rank that is all."""

    rank: int = 0
    ranks: int = 1
    interleave: int = 1
    page: int = 16

    def pages(self, context):
        return -(-context // (self.page * self.ranks))

    def slot(self, pages, token):
        """Where the token is in the cache, or -1 on another rank."""
        index, offset = divmod(token, self.page * self.ranks)
        unit, within = divmod(offset, self.interleave)
        if unit % self.ranks != self.rank:
            return -1
        return int(pages[index]) * self.page + unit // self.ranks * self.interleave + within


def correct_attn_out(out, lses, cp_rank, ctx, is_lse_base_on_e=True):
    """vLLM's kernel behind cp_lse_ag_out_rs. out: [tokens, heads, d] of this rank, which it scales; lses: [ranks, tokens, heads]."""
    assert lses.dtype == torch.float32
    to_e = 1.0 if is_lse_base_on_e else torch.log(torch.tensor(2.0)).item()
    total = torch.logsumexp(lses * to_e, 0)
    factor = torch.exp(lses[cp_rank] * to_e - total).nan_to_num(0.0)[..., None]
    out.copy_(torch.where(factor == 0, 0.0, out.float() * factor))
    return out, total / to_e


def merge_attn_states(output, prefix_output, prefix_lse, suffix_output, suffix_lse, output_lse=None, prefill_tokens_with_context=None):
    """vLLM's kernel that joins a prefill's context with its own tokens. Outputs: [tokens, heads, d]; log-sum-exps: [heads, tokens]. Tokens behind the
    first prefill_tokens_with_context are taken from the suffix alone."""
    lses = torch.stack((prefix_lse, suffix_lse))
    if prefill_tokens_with_context is not None:
        lses[0, :, prefill_tokens_with_context:] = float("-inf")
    weights = torch.softmax(lses, 0).nan_to_num(0.0).transpose(1, 2)[..., None]  # of tokens without any, zero
    made = [torch.where(weight == 0, 0.0, part.float() * weight) for weight, part in zip(weights, (prefix_output, suffix_output))]
    output.copy_(made[0] + made[1])
    if output_lse is not None:
        output_lse.copy_(torch.logsumexp(lses, 0))
