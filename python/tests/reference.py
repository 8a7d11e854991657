"""reference.py -- attention over a KV cache in plain PyTorch, FP64, one request at a time: what decode() must agree with."""
import itertools
import math

import torch


def decode(q, k_cache, v_cache, context_lengths, page_table=None, *, scale=None, window=0, sink_tokens=0, soft_cap=0.0, sink_logits=None,
           alibi_slopes=None, mask="causal", q_offsets=None, kv_offsets=None, max_q_len=None, out=None, return_lse=False):
    """leanattn.decode() for caches [batch, kv_heads, context, head_dim] or pools of pages, or packed rows, and q of 3 or 4 dimensions, packed or not."""
    rows = q.flatten(0, -3)
    q_heads, head_dim = rows.shape[1:]
    o = torch.zeros(len(rows), q_heads, v_cache.shape[-1], dtype=torch.float64, device=q.device)
    lse = torch.full((len(rows), q_heads), -math.inf, dtype=torch.float64, device=q.device)
    uniform = q.shape[1] if q.ndim == 4 else 1
    starts = range(0, len(rows) + 1, uniform) if q_offsets is None else q_offsets.tolist()
    if kv_offsets is not None:
        context_lengths = kv_offsets[1:] - kv_offsets[:-1]
    for request, (begin, end) in enumerate(itertools.pairwise(starts)):
        length, tokens = int(context_lengths[request]), end - begin
        assert max_q_len is None or tokens <= max_q_len
        if length == 0:
            continue
        k, v = (_tokens(cache, request, length, page_table, kv_offsets).double() for cache in (k_cache, v_cache))
        group = q_heads // k.shape[0]
        k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)  # [q_heads, length, head_dim]
        scores = torch.einsum("thd,hjd->htj", rows[begin:end].double(), k) * (head_dim**-0.5 if scale is None else scale)
        if soft_cap:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        position = length - tokens + torch.arange(tokens, device=q.device)[:, None]
        token = torch.arange(length, device=q.device)
        if alibi_slopes is not None:
            scores = scores + alibi_slopes.double()[:, None, None] * (token - position)
        seen = token <= position if mask == "causal" else torch.ones_like(token <= position)
        if window:
            seen &= ((token > position - window) & (token < position + window)) | (token < sink_tokens)
        scores = scores.masked_fill(~seen, -math.inf)
        if sink_logits is not None:
            scores = torch.cat((scores, sink_logits.double()[:, None, None].expand(-1, tokens, 1)), -1)
        total = torch.logsumexp(scores, -1, keepdim=True)
        weights = torch.exp(scores - total).nan_to_num(0.0)[..., :length]
        o[begin:end] = torch.einsum("htj,hjd->thd", weights, v)
        lse[begin:end] = total[..., 0].T
    o = o.reshape(*q.shape[:-1], -1).to(q.dtype)
    if out is not None:
        o = out.copy_(o)
    return (o, lse.reshape(q.shape[:-1]).float()) if return_lse else o


def _tokens(cache, request, length, page_table, kv_offsets):
    """[kv_heads, length, head_dim] of one request."""
    if kv_offsets is not None:
        return cache[kv_offsets[request]:kv_offsets[request + 1]].transpose(0, 1)
    if page_table is None:
        return cache[request, :, :length]
    page_size = cache.shape[2]
    pages = cache[page_table[request, :-(-length // page_size)].long()]  # [pages, kv_heads, page_size, head_dim]
    return pages.transpose(0, 1).flatten(1, 2)[:, :length]
