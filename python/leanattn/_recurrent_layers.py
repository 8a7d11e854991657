"""Layers of Transformers that keep a recurrent state instead of KV: what register_recurrent() of leanattn.transformers puts in the place of their functions."""
import functools
import importlib

import torch

from ._leanattn import recurrent as _recurrent

# Of each model: the functions of a decode step and of a prompt, and the kind of their updates. Both have the arguments of flash-linear-attention's.
_DELTA_RULE = ("torch_recurrent_gated_delta_rule", "torch_chunk_gated_delta_rule", "gated_delta")
MODELS = {
    "qwen3_next": _DELTA_RULE,
    "qwen3_5": _DELTA_RULE,
    "qwen3_5_moe": _DELTA_RULE,
    "olmo_hybrid": _DELTA_RULE,
    "kimi_linear": ("recurrent_kimi_delta_attention", "chunk_kimi_delta_attention", "kda"),
}


def register_recurrent():
    """Lets layers with a recurrent state decode on leanattn, for all models of this process: those of Qwen3-Next, Qwen3.5, OLMo Hybrid and Kimi Linear.

    It puts functions in the place of the modeling modules' own ones. Steps with one token of each request go to leanattn.recurrent, which changes the
    cached states in place. Prompts, training and compiled models stay with the functions that were there, and so does all that leanattn does not take. A
    prompt's states are stored as leanattn reads them, in memory [batch, heads, value_dim, key_dim]; their shape stays that of Transformers. A second
    call changes nothing. Call it from one thread, before models run.

    Raises ImportError where this Transformers has none of these functions.
    """
    known = {name: module for name in MODELS if all(hasattr(module := _module(name), function) for function in MODELS[name][:2])}
    if not known:
        import transformers

        raise ImportError(f"leanattn knows no layers with a recurrent state of Transformers {transformers.__version__}. It is written for those of "
                          "versions 5.17 to 5.24; install one of these")
    for name, module in known.items():
        step, prompt, kind = MODELS[name]
        for function, wrapper in ((step, functools.partial(_step, kind)), (prompt, _prompt)):
            own = getattr(module, function)
            if not hasattr(own, "leanattn_replaces"):
                made = functools.wraps(own)(functools.partial(wrapper, own))
                made.leanattn_replaces = own
                setattr(module, function, made)


def _module(name):
    """The modeling module of a model, or None where this Transformers has none."""
    try:
        return importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    except ModuleNotFoundError as missing:
        if missing.name and missing.name.startswith("transformers"):
            return None
        raise


def takes(device, dtype):
    """Whether leanattn supports tensors of this device and dtype."""
    return torch.device(device).type == "cuda" and dtype in (torch.bfloat16, torch.float16)


def _step(kind, own, query, key, value, g, beta, initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=False, **kwargs):
    """query, key [batch, 1, qk_heads, K], value [batch, 1, v_heads, V], g the logarithms of the factors, [batch, 1, v_heads] or, for KDA, [batch, 1,
    v_heads, K], beta [batch, 1, v_heads], initial_state [batch, v_heads, K, V]. Returns the output, [batch, 1, v_heads, V], and the state, which is
    initial_state where that lies in memory as leanattn reads it."""
    if not _fits(query, key, value, g, beta, initial_state, kwargs):
        return own(query, key, value, g=g, beta=beta, initial_state=initial_state, output_final_state=output_final_state,
                   use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel, **kwargs)
    state = initial_state.transpose(-1, -2)
    in_place = state.is_contiguous()
    if not in_place:
        state = state.contiguous()
    q, k, v = (_rows(tensor[:, 0]) for tensor in (query, key, value))
    o = _recurrent(q, k, v, state, _slots(len(q), q.device), kind=kind, gates="given", a=g[:, 0].float().contiguous(), b=beta[:, 0].float().contiguous(),
                   normalise=use_qk_l2norm_in_kernel)
    final = (initial_state if in_place else state.transpose(-1, -2)) if output_final_state else None
    return o.unsqueeze(1), final


def _prompt(own, *args, **kwargs):
    """The model's own function. The state that it returns lies in memory as leanattn reads it, where a step may follow."""
    o, state = own(*args, **kwargs)
    if state is not None and takes(o.device, o.dtype) and not torch.compiler.is_compiling() and not state.requires_grad:
        state = state.transpose(-1, -2).contiguous().transpose(-1, -2)
    return o, state


def _fits(query, key, value, g, beta, state, kwargs):
    if torch.compiler.is_compiling() or state is None or query.shape[1] != 1 or kwargs.get("cu_seqlens") is not None:
        return False
    tensors = (query, key, value, g, beta, state)
    return (takes(query.device, query.dtype) and key.dtype == value.dtype == query.dtype and state.dtype in (torch.float32, torch.bfloat16)
            and not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors))
            and all(dim % 32 == 0 and dim <= 256 for dim in state.shape[-2:]))


@functools.lru_cache(maxsize=None)
def _slots(batch, device):
    """The slot of each request, which stays for graphs."""
    return torch.arange(batch, dtype=torch.int32, device=device)


def _rows(tensor):
    """[batch, heads, columns] with adjacent heads and aligned rows: the tensor itself, or a copy."""
    aligned = tensor.data_ptr() % 16 == 0 and (len(tensor) == 1 or tensor.stride(0) * tensor.element_size() % 16 == 0)
    return tensor if aligned and tensor.stride()[1:] == (tensor.shape[-1], 1) else tensor.contiguous()
