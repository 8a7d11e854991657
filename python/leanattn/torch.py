"""torch.ops.leanattn: decode(), decode_with_lse() and decode_append() as PyTorch operators, for torch.compile and export.

    import leanattn.torch
    o = torch.ops.leanattn.decode(q, k_cache, v_cache, context_lengths)

The arguments are those of leanattn.decode (help(leanattn.decode)), without outputs, shape, stream, engine, workspace, v_head_dim and those of groups.
v_cache, context_lengths and page_table are tensors. decode and decode_with_lse change none of their arguments. decode_append takes k_new and v_new, and declares that it writes k_cache and v_cache. An operator takes some microseconds
more than leanattn.decode, so use these only in compiled models.
"""
import torch

from ._leanattn import _decode_options
from ._leanattn import decode as _decode

_CACHE = "Tensor? context_lengths, Tensor? page_table=None, *, "
_NO_OPTIONS = {
    "v_head_dim", "out", "return_lse", "out_lse", "k_new", "v_new", "group", "full_context_lengths", "context_starts",
    "context_interleave", "replicate_output", "shape", "stream", "engine", "workspace"}
_SYMBOLIC = {"longest_context", "total_context"}


def _option(name, annotation, default):
    """A parameter of decode() as the schema of an operator has it."""
    kind = "SymInt?" if name in _SYMBOLIC else "Tensor?" if annotation == "typing.Any" else annotation.replace(" | None", "?")
    return f"{kind} {name}=" + (f'"{default}"' if isinstance(default, str) else str(default))


_OPTIONS = ", ".join(_option(*row) for row in _decode_options if row[0] not in _NO_OPTIONS)
_TAGS = (torch.Tag.pt2_compliant_tag, getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order))

_library = torch.library.Library("leanattn", "DEF")


def _define(name, tensors, result, run, fake):
    _library.define(f"{name}({tensors}, {_CACHE}{_OPTIONS}) -> {result}", tags=_TAGS)
    # For tensors of every kind, because decode() says which one is not a CUDA tensor.
    _library.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"leanattn::{name}", fake, lib=_library)


def _out(q, v_cache, options):
    columns = v_cache.shape[-1] * (2 if options.get("kv_dtype") in ("int4", "nvfp4") else 1)  # of which two are a byte
    return q.new_empty((*q.shape[:-1], columns))


def _run(q, k_cache, v_cache, context_lengths, page_table=None, **options):
    return _decode(q, k_cache, v_cache, context_lengths, page_table, out=_out(q, v_cache, options), **options)


def _run_with_lse(q, k_cache, v_cache, context_lengths, page_table=None, **options):
    lse = q.new_empty(q.shape[:-1], dtype=torch.float32)
    return _decode(q, k_cache, v_cache, context_lengths, page_table, out=_out(q, v_cache, options), out_lse=lse, **options)


def _run_append(q, k_cache, v_cache, k_new, v_new, context_lengths, page_table=None, **options):
    of_tokens = any(scale is not None and len(scale.shape) == 3 for scale in (options.get("k_scale"), options.get("v_scale")))
    if of_tokens or options.get("k_block_scales") is not None:
        raise NotImplementedError("decode_append would write the scales of new tokens, which its schema does not say: call leanattn.decode")
    return _decode(q, k_cache, v_cache, context_lengths, page_table, out=_out(q, v_cache, options), k_new=k_new, v_new=v_new, **options)


def _fake(q, k_cache, v_cache, context_lengths, page_table=None, **options):
    return _out(q, v_cache, options)


def _fake_with_lse(q, k_cache, v_cache, context_lengths, page_table=None, **options):
    return _out(q, v_cache, options), q.new_empty(q.shape[:-1], dtype=torch.float32)


def _fake_append(q, k_cache, v_cache, k_new, v_new, context_lengths, page_table=None, **options):
    return _out(q, v_cache, options)


_define("decode", "Tensor q, Tensor k_cache, Tensor v_cache", "Tensor", _run, _fake)
_define("decode_with_lse", "Tensor q, Tensor k_cache, Tensor v_cache", "(Tensor, Tensor)", _run_with_lse, _fake_with_lse)
_define("decode_append", "Tensor q, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor k_new, Tensor v_new", "Tensor", _run_append, _fake_append)
