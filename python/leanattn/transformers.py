"""Hugging Face Transformers: importing this module registers the attention implementation "leanattn".

    import leanattn.transformers
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="leanattn", dtype="bfloat16", device_map="cuda")

Prefill and decode steps under the causal mask go to leanattn. Training and all that leanattn does not support go to PyTorch's SDPA. Soft caps and
sink logits work in both. Dynamic and static caches, sliding windows, padded batches, assisted decoding and the compiled static cache of generate()
work as with "sdpa".

A model calls the mask interface once in each step. For a step of leanattn's it returns, instead of a mask, what leanattn needs: an int32 tensor
[batch, 1, 1, 1 + n] with the context length of each request and, where a batch is padded, the indices of the n cache slots, those that hold
tokens first and in the order of the tokens. It has four dimensions, so that models pass it on as any prepared mask.

register_continuous_batching() is for model.generate_batch, whose cache has pages, and register_recurrent() for layers that keep a recurrent state.
"""
import functools
import inspect

import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, and_masks, causal_mask_function, sdpa_mask, sliding_window_overlay

from . import torch as _operators  # noqa: F401  (defines torch.ops.leanattn)
from ._leanattn import decode as _decode
from ._recurrent_layers import register_recurrent, takes  # noqa: F401  (both are of this module)

NAME = "leanattn"
MOST_QUERY_TOKENS = 16  # of kernels for which all requests have as many
MOST_PREFILL_TOKENS = 131072  # of kernels that have query offsets
FLASH_NAMES = ("flash_attention_2", "flash_attention_3")  # those for which continuous batching makes block tables
PREFILL_ROWS = 256  # query rows at a time where SDPA does not work, which bounds the memory of the scores


def step_mask(batch_size, q_length=None, kv_length=0, q_offset=0, kv_offset=0, mask_function=causal_mask_function, attention_mask=None,
                local_size=None, dtype=torch.float32, device="cpu", config=None, cache_position=None, **kwargs):
    """The mask interface: returns context lengths for a step of leanattn's, and SDPA's mask for everything else."""
    if cache_position is not None:  # Transformers before 5.0 gives the positions of the queries this way
        q_length, q_offset = cache_position.shape[0], cache_position[0]
        device, kwargs["cache_position"] = cache_position.device, cache_position
    else:
        kwargs.update(q_length=q_length, q_offset=q_offset, device=device)
    window = _window_of(mask_function)
    # With a dynamic cache, only models that go on computing with the causal mask ask for one in any case. Static caches always ask, but have
    # offsets on the GPU, or windows. Training is faster where SDPA needs no mask.
    computed_with = window == 0 and isinstance(q_offset, int) and kwargs.get("allow_is_causal_skip") is False
    padded = attention_mask is not None and attention_mask.ndim == 2 and _is_padded(attention_mask)
    # A window over a padded batch counts the padding between tokens, which only a mask can express.
    prefill = q_length > MOST_QUERY_TOKENS
    training = prefill and torch.is_grad_enabled()
    elsewhere = prefill and not _has_prefill_kernels(torch.device(device))
    if (computed_with or training or elsewhere or q_length > MOST_PREFILL_TOKENS or not takes(device, dtype) or window is None or (padded and window)
            or (padded and q_length > 1 and _new_tokens_end_early(attention_mask, q_offset, q_length))):
        return sdpa_mask(batch_size=batch_size, kv_length=kv_length, kv_offset=kv_offset, mask_function=mask_function,
                         attention_mask=attention_mask, local_size=local_size, dtype=dtype, config=config, **kwargs)
    end = q_offset + q_length - kv_offset  # cache slots that hold tokens, the new ones included
    if not padded:
        if isinstance(end, int):
            return torch.full((batch_size, 1, 1, 1), end, dtype=torch.int32, device=device)
        return end.to(device=device, dtype=torch.int32).reshape(1, 1, 1, 1).expand(batch_size, 1, 1, 1).contiguous()
    seen = attention_mask[:, kv_offset:kv_offset + kv_length].to(device=device, dtype=torch.bool)
    seen = torch.nn.functional.pad(seen, (0, kv_length - seen.shape[1]))
    seen = seen & (torch.arange(kv_length, device=device) < end)
    order = torch.argsort(seen, dim=-1, descending=True, stable=True)  # slots with tokens come first, in their order
    return torch.cat((seen.sum(-1, keepdim=True), order), dim=-1).to(torch.int32)[:, None, None]


def attention(module, query, key, value, attention_mask, dropout=0.0, scaling=None, is_causal=None, sliding_window=None, softcap=None,
              s_aux=None, **kwargs):
    """The attention interface: query [batch, q_heads, tokens, head_dim], key and value [batch, kv_heads, slots, head_dim].

    Raises NotImplementedError for models of which it would compute something else: those that select tokens, that add a bias to scores with a soft
    cap or sink logits, or that change the mask of such a step.
    """
    window, softcap, biased = sliding_window or 0, softcap or 0.0, kwargs.get("position_bias") is not None
    if kwargs.get("indices") is not None or kwargs.get("block_indices") is not None:
        raise NotImplementedError(f'this model selects the tokens that a query sees, which "{NAME}" does not do; choose attn_implementation="sdpa"')
    if biased and (softcap or s_aux is not None):
        raise NotImplementedError(f'"{NAME}" has no position bias together with a soft cap or sink logits; choose attn_implementation="eager"')
    if not _is_step_mask(attention_mask):
        if not softcap and s_aux is None:
            return sdpa_attention_forward(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, is_causal=is_causal, **kwargs)
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        return _in_blocks(query, key, value, attention_mask, dropout, scaling, causal and query.shape[2] > 1, softcap, s_aux), None
    if attention_mask.shape[-1] not in (1, 1 + key.shape[2]):
        raise NotImplementedError(f'this model changes the mask of a step, which "{NAME}" does not understand; choose attn_implementation="sdpa"')
    if biased or not _fits(query, key, value, dropout):
        seen = _bool_mask(attention_mask, query.shape[2], key.shape[2], window)
        return attention(module, query, key, value, seen, dropout, scaling, False, None, softcap, s_aux, **kwargs)
    return _launch(query, key, value, attention_mask, scaling, window, softcap, s_aux), None


def register_continuous_batching():
    """Lets continuous batching (model.generate_batch) run on leanattn, for all models of this process.

    It registers the attention implementations "flash_attention_2" and "flash_attention_3" of Transformers anew. Steps in which every request has
    one query token, and for which Transformers makes a block table, go to leanattn, and on Hopper, from Transformers 5.24 on, so do steps with
    prefill, whose keys and values come packed; everything else goes to FlashAttention as before, which has to be installed. A second call changes
    nothing. Call it from one thread, before models run.

    Raises ImportError where the continuous batching of this Transformers has another interface.
    """
    try:
        from transformers.generation.continuous_batching import PagedAttentionCache

        known = "kwargs" in inspect.signature(PagedAttentionCache.update).parameters
    except ImportError:
        known = False
    if not known:
        import transformers

        raise ImportError(f"leanattn knows no continuous batching of Transformers {transformers.__version__}. It is written for that of versions 5.20 "
                          "to 5.24; install one of these")
    for name in FLASH_NAMES:
        flash = AttentionInterface()[name]
        if getattr(flash, "func", None) is not paged_attention:
            AttentionInterface.register(name, functools.partial(paged_attention, flash))


def paged_attention(flash, module, query, key, value, attention_mask, **kwargs):
    """The attention interface for continuous batching. In a step with a block table every request has one query token: query
    [1, q_heads, requests, head_dim], key and value [1, kv_heads, requests, head_dim], which the kernel writes into the cache. In other steps query
    tokens are packed, and so are all keys and values of their contexts, once the model has asked the cache for them. `flash` has the rest."""
    cache, given = kwargs.get("cache"), dict(kwargs)
    # From Transformers 5.24 on, the model has asked the cache already, and gives the layer's own part of everything.
    asked = given.get("k_cache") is not None
    if not _fits(query, key, value, kwargs.get("dropout") or 0.0):
        return flash(module, query, key, value, attention_mask, **kwargs)
    if cache is None and given.get("block_table") is None and _are_packed(query, attention_mask, given):
        return _launch_packed(module, query, key, value, given), None
    if (cache is None and not asked) or given.get("block_table") is None:
        return flash(module, query, key, value, attention_mask, **kwargs)
    if not asked:
        cache.update(key_states=key, value_states=value, layer_idx=module.layer_idx, kwargs=given)  # gives the layer's part of `given`; writes nothing
    requests, ends, table = query.shape[2], given["cu_seq_lens_k"], given["block_table"]
    if ends.shape[0] != requests + 1 or table.shape[0] != requests:
        return flash(module, query, key, value, attention_mask, **kwargs)
    options = _options(given, requests)
    q, k_new, v_new = (_rows(tensor[0].transpose(0, 1)) for tensor in (query, key, value))  # [requests, heads, head_dim]
    pages = [given[name].transpose(1, 2) for name in ("k_cache", "v_cache")]  # [pages, kv_heads, page_size, head_dim]
    # A request of a graph that is nobody's has no tokens, and the kernel writes none for it.
    lengths = (ends[1:] - ends[:-1]).to(torch.int32)
    if torch.compiler.is_compiling():
        return torch.ops.leanattn.decode_append(q, *pages, k_new, v_new, lengths, table, **options)[None], None
    return _decode(q, *pages, lengths, table, k_new=k_new, v_new=v_new, **options)[None], None


def _options(given, requests):
    """What a launch for packed requests gets of an attention interface's arguments."""
    options = {"scale": given.get("scaling"), "window": given.get("sliding_window") or 0, "soft_cap": given.get("softcap") or 0.0,
               "typical_batch": 1 << (requests - 1).bit_length()}
    if given.get("s_aux") is not None:
        options["sink_logits"] = given["s_aux"].detach().float().contiguous()
    return options


def _are_packed(query, attention_mask, given):
    """Whether the rows of all requests follow each other, in numbers that kernels made for it take."""
    ends = [given.get(name) for name in ("cu_seq_lens_q", "cu_seq_lens_k")]
    return (all(isinstance(tensor, torch.Tensor) and tensor.dtype == torch.int32 for tensor in ends) and ends[0].shape == ends[1].shape
            and query.shape[0] == 1 and attention_mask is None and (given.get("max_length_q") or MOST_PREFILL_TOKENS + 1) <= MOST_PREFILL_TOKENS
            and _has_prefill_kernels(query.device))


def _launch_packed(module, query, key, value, given):
    """query [1, q_heads, query tokens, head_dim], key and value [1, kv_heads, tokens, head_dim]."""
    causal = module.is_causal if given.get("is_causal") is None else given["is_causal"]
    options = _options(given, given["cu_seq_lens_q"].shape[0] - 1)
    options.update(q_offsets=given["cu_seq_lens_q"], kv_offsets=given["cu_seq_lens_k"], max_q_len=MOST_PREFILL_TOKENS, mask="causal" if causal else "full")
    run = torch.ops.leanattn.decode if torch.compiler.is_compiling() else _decode
    return run(*(_rows(tensor[0].transpose(0, 1)) for tensor in (query, key, value)), None, **options)[None]


def _launch(query, key, value, mask, scaling, window, softcap, s_aux):
    batch, _, tokens, _ = query.shape
    lengths, table = mask[:, 0, 0, 0].contiguous(), None
    if mask.shape[-1] > 1 and batch:
        # Every cache slot becomes a page of one token, [pages, kv_heads, 1, head_dim] over the same memory: slot j of request b is
        # page b * kv_heads * slots + j, and its next head lies `slots` rows further on.
        _, kv_heads, slots, _ = key.shape
        first = torch.arange(batch, device=mask.device, dtype=torch.int32)[:, None] * (kv_heads * slots)
        table = mask[:, 0, 0, 1:] + first
        key, value = (_as_pages(tensor.contiguous()) for tensor in (key, value))
    options = {"scale": scaling, "window": window, "soft_cap": softcap}
    if s_aux is not None:
        options["sink_logits"] = s_aux.float().contiguous()
    q = query[:, :, 0] if tokens == 1 else query.transpose(1, 2)
    if tokens > MOST_QUERY_TOKENS:
        q = q.flatten(0, 1)
        options["max_q_len"] = MOST_PREFILL_TOKENS
        options["q_offsets"] = torch.arange(0, (batch + 1) * tokens, tokens, dtype=torch.int32, device=q.device)
    run = torch.ops.leanattn.decode if torch.compiler.is_compiling() else _decode
    o = run(_rows(q), _rows(key), _rows(value), lengths, table, **options)
    return o.view(batch, tokens, *o.shape[-2:])


def _as_pages(tensor):
    batch, heads, slots, head_dim = tensor.shape
    pages = (batch - 1) * heads * slots + slots  # the heads of the last page end at the end of the memory
    return tensor.as_strided((pages, heads, 1, head_dim), (head_dim, slots * head_dim, head_dim, 1))


def _rows(tensor):
    """The tensor, or a copy whose elements are adjacent in the last dimension."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _fits(query, key, value, dropout):
    needs_gradient = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value))
    return (takes(query.device, query.dtype) and key.dtype == value.dtype == query.dtype and not needs_gradient and not dropout
            and all(tensor.shape[-1] % 16 == 0 and tensor.shape[-1] <= 512 for tensor in (query, value))
            and query.shape[1] % key.shape[1] == 0 and query.shape[1] // key.shape[1] <= 128)


def _has_prefill_kernels(device):
    """The kernels that are made for prefill are Hopper's. Elsewhere other libraries are faster."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device)[0] == 9


def _is_step_mask(mask):
    return isinstance(mask, torch.Tensor) and mask.dtype == torch.int32 and mask.ndim == 4


def _is_padded(attention_mask):
    """Waits for the GPU once in each step, as SDPA's mask does. A compiled model cannot wait, so it takes every batch to be padded."""
    return torch.compiler.is_compiling() or not bool(attention_mask.all())


def _new_tokens_end_early(attention_mask, q_offset, q_length):
    """Whether padding may follow a new token of some request. The last of them is then not at the end of the context, where the kernel takes it to
    be. Padding before all of them is in order. A compiled model cannot look."""
    if torch.compiler.is_compiling():
        return True
    new = attention_mask[:, int(q_offset):int(q_offset) + q_length].bool()
    return new.shape[1] < q_length or bool((new[:, :-1] & ~new[:, 1:]).any())


def _window_of(mask_function):
    """0 for the causal mask, the window of a sliding-window mask, None for any other mask."""
    if mask_function is causal_mask_function:
        return 0
    if torch.compiler.is_compiling() or getattr(mask_function, "__code__", None) is not _AND_MASK:
        return None
    parts = mask_function.__closure__[0].cell_contents
    if len(parts) == 2 and parts[1] is causal_mask_function and getattr(parts[0], "__code__", None) is _OVERLAY:
        return parts[0].__closure__[0].cell_contents
    return None


_AND_MASK = and_masks(causal_mask_function).__code__
_OVERLAY = sliding_window_overlay(1).__code__


def _bool_mask(mask, tokens, slots, window):
    """The mask of a step as one for SDPA: [batch, 1, tokens, slots], True where a query token sees a cache slot."""
    length = mask[..., :1]  # [batch, 1, 1, 1]
    index = torch.arange(slots, device=mask.device).expand(mask.shape[0], 1, 1, slots)  # token index of each slot
    if mask.shape[-1] > 1:
        index = torch.empty_like(mask[..., 1:], dtype=torch.int64).scatter_(-1, mask[..., 1:].long(), index)
    own = length - tokens + torch.arange(tokens, device=mask.device)[:, None]
    return (index <= own) & (index > own - window) if window else index <= own


def _in_blocks(query, key, value, mask, dropout, scaling, causal, softcap, s_aux):
    """Attention with a soft cap or sink logits, some query rows at a time, in the type of the query with scores in fp32."""
    batch, q_heads, tokens, head_dim = query.shape
    kv_heads, slots = key.shape[1], key.shape[2]
    if causal and mask is None and slots > tokens:  # prefill into an empty static cache
        key, value, slots = key[:, :, :tokens], value[:, :, :tokens], tokens
    grouped = query.reshape(batch, kv_heads, q_heads // kv_heads, tokens, head_dim)
    scale = head_dim**-0.5 if scaling is None else scaling
    out = query.new_empty(batch, tokens, q_heads, value.shape[-1])
    for start in range(0, tokens, PREFILL_ROWS):
        end = min(start + PREFILL_ROWS, tokens)
        scores = torch.einsum("bhgtd,bhsd->bhgts", grouped[..., start:end, :], key).float() * scale
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        scores = scores.reshape(batch, q_heads, end - start, slots)
        if mask is not None:
            part = mask[:, :, start:end, :slots]
            scores = scores.masked_fill(~part, float("-inf")) if part.dtype == torch.bool else scores + part
        elif causal:
            hidden = torch.arange(slots, device=query.device) > torch.arange(start, end, device=query.device)[:, None]
            scores = scores.masked_fill(hidden, float("-inf"))
        if s_aux is not None:
            scores = torch.cat((scores, s_aux.float().reshape(1, -1, 1, 1).expand(batch, -1, end - start, 1)), dim=-1)
        weights = torch.softmax(scores, dim=-1)[..., :slots].nan_to_num(0.0).to(value.dtype)  # 0 for a row that sees nothing
        weights = torch.nn.functional.dropout(weights, p=dropout) if dropout else weights
        block = torch.einsum("bhgts,bhsd->bthgd", weights.reshape(batch, kv_heads, -1, end - start, slots), value)
        out[:, start:end] = block.reshape(batch, end - start, q_heads, -1)
    return out


AttentionInterface.register(NAME, attention)
ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, step_mask)
