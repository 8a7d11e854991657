"""reference.py -- what decode() and recurrent() must agree with: attention over a KV cache, and layers with a recurrent state, in plain PyTorch, FP64, one
request at a time."""
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


def recurrent(q, k, v, state, slots, *, kind="gated_delta", gates=None, a=None, b=None, a_log=None, dt_bias=None, skip=None, z=None, norm_weight=None,
              output_gate="silu", out=None, out_slots=None, accepted=None, token_offsets=None, max_tokens=None, normalise=None, snapshots=False,
              first_slot=0, scale=None, norm_eps=1e-6, output_eps=1e-6, lower_bound=-5.0, dtype=torch.float64):
    """leanattn.recurrent() of gated_delta, kda and mamba2, computed in `dtype`."""
    delta = kind in ("gated_delta", "kda")
    requests, (tokens, v_heads, value_dim) = len(slots), v.shape
    uniform = tokens // max(requests, 1)
    starts = range(0, tokens + 1, max(uniform, 1)) if token_offsets is None else token_offsets.tolist()
    targets = (slots if out_slots is None else out_slots).view(requests, -1)
    o = torch.zeros(tokens, v_heads, value_dim, dtype=dtype, device=q.device)
    repeat = v_heads // q.shape[1]
    scale = scale or (1 if kind == "mamba2" else q.shape[-1] ** -0.5)

    def real(slot):
        return first_slot <= slot < len(state)

    def rows(tensor, token):
        x = tensor[token].to(dtype)
        if delta if normalise is None else normalise:
            x = x / torch.sqrt(x.square().sum(-1, keepdim=True) + norm_eps)
        return x.repeat_interleave(repeat, 0)

    for request, (begin, end) in enumerate(itertools.pairwise(starts)):
        assert max_tokens is None or end - begin <= max_tokens
        of_request = slots.view(requests, -1)[request]
        first = int(of_request[0 if accepted is None else int(accepted[request]) - 1])
        if not real(first):
            continue
        s = state[first].to(dtype)
        for token in range(begin, end):
            query, key, value = rows(q, token) * scale, rows(k, token), v[token].to(dtype)
            decay, weight = _gates(gates or "softplus", kind, a[token].to(dtype), None if b is None else b[token].to(dtype), a_log, dt_bias, lower_bound, dtype)
            s = s * (decay[:, None, :] if decay.ndim == 2 else decay[:, None, None])
            u = weight[:, None] * (value - torch.einsum("hvk,hk->hv", s, key) if delta else value)
            s = s + u[:, :, None] * key[:, None, :]
            o[token] = torch.einsum("hvk,hk->hv", s, query)
            if skip is not None:
                o[token] += skip.to(dtype)[:, None] * value
            target = int(targets[request][token - begin]) if snapshots else int(targets[request][0])
            if (snapshots or token == end - 1) and real(target):
                state[target] = s.to(state.dtype)
    if z is not None:
        gate = z.to(dtype).sigmoid() * (z.to(dtype) if output_gate == "silu" else 1)
        o = o / torch.sqrt(o.square().mean(-1, keepdim=True) + output_eps) * norm_weight.to(dtype) * gate
    o = o.to(q.dtype)
    return o if out is None else out.copy_(o)


def _gates(form, kind, a, b, a_log, dt_bias, lower_bound, dtype):
    """The factors of a token's decay, and the weights of its updates."""
    if form == "given":
        return a.exp(), b
    x = a if dt_bias is None else a + dt_bias.to(dtype).view(a.shape)
    head = a_log.to(dtype).exp().view(-1, *[1] * (a.ndim - 1))
    weight = torch.nn.functional.softplus(x) if kind == "mamba2" else b.sigmoid()
    return (lower_bound * (head * x).sigmoid() if form == "bounded" else -head * torch.nn.functional.softplus(x)).exp(), weight
