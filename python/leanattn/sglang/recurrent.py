"""recurrent.py -- layers of SGLang that keep a recurrent state instead of KV: the gated delta rule, and KDA.

Hooks of SGLang's plugins stand around the methods of its Triton kernels that compute decode steps, one token of each request. What leanattn does not take
goes on to SGLang. States lie in SGLang's pool, [slots, heads, V, K]; a slot below 0 is its null slot.
"""
import functools
import importlib

import torch

from .. import recurrent as _recurrent

_KERNELS = "sglang.srt.layers.attention.linear.kernels"
_RING = ("replayssm_d", "replayssm_k", "replayssm_g", "replayssm_write_pos")  # recent tokens that are replayed


def register():
    """Registers the hooks, which SGLang applies once all plugins are loaded. Raises ImportError where SGLang has none."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for name, kernel, kind in (("gdn_triton", "TritonGDNKernel", "gated_delta"), ("kda_triton", "TritonKDAKernel", "kda")):
        module = importlib.import_module(f"{_KERNELS}.{name}")
        for hook in (packed_decode, decode):
            if hasattr(getattr(module, kernel), hook.__name__):  # in 0.5.12, KDA has no packed rows
                HookRegistry.register(f"{module.__name__}.{kernel}.{hook.__name__}", functools.partial(hook, kind), HookType.AROUND)


def packed_decode(kind, own, kernel, mixed_qkv, a, b, *, A_log, dt_bias, scale, ssm_states, cache_indices, num_v_heads, head_v_dim, lower_bound=None, **more):
    """mixed_qkv [requests, 2 qk_heads K + v_heads V], the packed output of the convolution. Returns [1, requests, v_heads, V]."""
    if not _fits(mixed_qkv, ssm_states) or any(more.get(name) is not None for name in _RING):
        bounds = {} if lower_bound is None else {"lower_bound": lower_bound}
        return own(kernel, mixed_qkv, a, b, A_log=A_log, dt_bias=dt_bias, scale=scale, ssm_states=ssm_states, cache_indices=cache_indices,
                   num_v_heads=num_v_heads, head_v_dim=head_v_dim, **bounds, **more)
    key_dim, values = ssm_states.shape[-1], num_v_heads * head_v_dim
    keys = (mixed_qkv.shape[1] - values) // 2
    q, k, v = mixed_qkv.split((keys, keys, values), -1)
    rows = q.unflatten(1, (-1, key_dim)), k.unflatten(1, (-1, key_dim)), v.unflatten(1, (num_v_heads, head_v_dim))
    return _launch(kind, *rows, a, b, A_log, dt_bias, ssm_states, cache_indices, lower_bound, scale)


def decode(kind, own, kernel, q, k, v, a, b, *, A_log, dt_bias, ssm_states, cache_indices, query_start_loc, lower_bound=None, **more):
    """q, k [1, requests, qk_heads, K], v [1, requests, v_heads, V]. Returns [1, requests, v_heads, V]."""
    if not _fits(q, ssm_states) or q.shape[1] != len(cache_indices):
        bounds = {} if lower_bound is None else {"lower_bound": lower_bound}
        return own(kernel, q, k, v, a, b, A_log=A_log, dt_bias=dt_bias, ssm_states=ssm_states, cache_indices=cache_indices,
                   query_start_loc=query_start_loc, **bounds, **more)
    return _launch(kind, *(_rows(rows[0]) for rows in (q, k, v)), a, b, A_log, dt_bias, ssm_states, cache_indices, lower_bound, None)


def _launch(kind, q, k, v, a, b, a_log, dt_bias, state, slots, lower_bound, scale):
    requests, v_heads = v.shape[:2]
    gates = (requests, v_heads, state.shape[-1]) if kind == "kda" else (requests, v_heads)
    bounded = {} if lower_bound is None else {"gates": "bounded", "lower_bound": lower_bound}
    o = _recurrent(q, k, v, state, slots.int(), kind=kind, a=a.reshape(gates), b=b.reshape(requests, v_heads), a_log=_in_fp32(a_log), dt_bias=_in_fp32(dt_bias),
                   scale=scale, **bounded)
    return o.unsqueeze(0)


def _fits(rows, state):
    return (rows.dtype in (torch.bfloat16, torch.float16) and state.dtype in (torch.float32, torch.bfloat16) and state.ndim == 4
            and all(dim % 32 == 0 and dim <= 256 for dim in state.shape[2:]) and state[0].is_contiguous())


def _rows(tensor):
    """[requests, heads, columns] with adjacent heads: the tensor itself, or a copy."""
    return tensor if tensor.stride()[1:] == (tensor.shape[-1], 1) else tensor.contiguous()


def _in_fp32(parameter):
    """The parameter in the type that kernels read it in, which it has from its first use on. Nothing is computed while a graph is captured, so that use
    comes before."""
    if parameter.dtype != torch.float32 and not (parameter.is_cuda and torch.cuda.is_current_stream_capturing()):
        parameter.data = parameter.data.float()
    return parameter.float().detach()
