"""oracle.py -- attention in FP64, and what counts as agreeing with it.

The tolerance is per element: ROW_TOLERANCE of the root mean square of the element's row (one query head of one request) plus
RELATIVE_TOLERANCE of its own value. Rounding the softmax weights to bf16 costs a row about 0.0011 of its root mean square, at most 0.006
over millions of elements, and rounding the output at most 2^-9 of the value. Rounding q times the scale to bf16 as well, as some kernels do,
costs up to three times that. So a sound kernel of this precision stays below half the tolerance.
"""
import math

import torch

from . import shapes

ROW_TOLERANCE = 0.04
RELATIVE_TOLERANCE = 0.01
CHUNK_ELEMENTS = 1 << 28  # of K, and as many of V, in FP64 at a time


def attention(q, k, v, lengths):
    """softmax(q k^T / sqrt(head_dim)) v in FP64. q: [batch, q_heads, head_dim]; k, v: [batch, kv_heads, capacity, head_dim]; lengths: [batch]
    host integers. Returns [batch, q_heads, head_dim] of float64; zeros for an empty request."""
    batch, q_heads, head_dim = q.shape
    kv_heads = k.shape[1]
    grouped = q.view(batch, kv_heads, q_heads // kv_heads, head_dim)
    result = torch.zeros(grouped.shape, dtype=torch.float64, device=q.device)
    for length, requests in shapes.by_length(lengths, lambda length: CHUNK_ELEMENTS // max(1, length * kv_heads * head_dim)):
        heads = max(1, min(kv_heads, CHUNK_ELEMENTS // max(1, length * head_dim)))
        for head in range(0, kv_heads if length else 0, heads):
            part = (requests, slice(head, head + heads))
            seen = (*part, slice(0, length))
            logits = grouped[part].double() @ k[seen].double().transpose(-1, -2) / math.sqrt(head_dim)
            result[part] = logits.softmax(-1) @ v[seen].double()
    return result.view(batch, q_heads, head_dim)


def error(output, reference):
    """The largest error over its tolerance: at most 1 is agreement, infinity where something is not finite. `output` has the shape of
    `reference`, or several such results in front: [..., batch, q_heads, head_dim]."""
    if output.shape[-3:] != reference.shape:
        raise ValueError(f"an output of shape {tuple(output.shape)} for {tuple(reference.shape)}")
    row = reference.square().mean(-1, keepdim=True).sqrt()
    tolerance = ROW_TOLERANCE * row + RELATIVE_TOLERANCE * reference.abs()
    distance = (output.double() - reference).abs()
    # An empty request's row has tolerance zero: it must be zero exactly.
    ratio = torch.where(distance == 0, torch.zeros_like(distance), distance / tolerance)
    worst = ratio.max().item()
    return worst if math.isfinite(worst) else math.inf
