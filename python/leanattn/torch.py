"""torch.ops.leanattn: decode(), decode_with_lse() and decode_append() as PyTorch operators, for torch.compile and export.

    import leanattn.torch
    o = torch.ops.leanattn.decode(q, k_cache, v_cache, context_lengths)

The arguments are those of leanattn.decode (help(leanattn.decode)), without outputs, stream, engine, workspace, v_head_dim and those of groups.
v_cache, context_lengths and page_table are tensors. decode and decode_with_lse change none of their arguments. decode_append takes k_new and v_new, and declares that it writes k_cache and v_cache. An operator takes some microseconds
more than leanattn.decode, so use these only in compiled models.
"""
import torch

from ._leanattn import decode as _decode

_CACHE = "Tensor context_lengths, Tensor? page_table=None, *, "
_OPTIONS = (
    'float? scale=None, str kv_layout="HND", str? kv_dtype=None, Tensor? k_scale=None, Tensor? v_scale=None, int? max_q_len=None, '
    "Tensor? q_offsets=None, str? mask=None, Tensor? tree_mask=None, int window=0, int sink_tokens=0, Tensor? sink_logits=None, "
    "float soft_cap=0.0, Tensor? alibi_slopes=None, str? score=None, Tensor? rope_table=None, str? rope=None, "
    "Tensor? selection=None, Tensor? selected_counts=None, int? selection_block=None, "
    "Tensor? second_k_cache=None, Tensor? second_v_cache=None, Tensor? second_page_table=None, Tensor? second_lengths=None, bool batch_invariant=False, bool pdl=False, int? typical_batch=None, int? max_batch=None, SymInt? longest_context=None, SymInt? total_context=None"
)
_TAGS = (torch.Tag.pt2_compliant_tag, getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order))

_library = torch.library.Library("leanattn", "DEF")


def _define(name, tensors, result, run, fake):
    _library.define(f"{name}({tensors}, {_CACHE}{_OPTIONS}) -> {result}", tags=_TAGS)
    # For tensors of every kind, because decode() says which one is not a CUDA tensor.
    _library.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"leanattn::{name}", fake, lib=_library)


def _out(q, v_cache):
    return q.new_empty((*q.shape[:-1], v_cache.shape[-1]))


def _run(q, k_cache, v_cache, context_lengths, page_table=None, **options):
    return _decode(q, k_cache, v_cache, context_lengths, page_table, out=_out(q, v_cache), **options)


def _run_with_lse(q, k_cache, v_cache, context_lengths, page_table=None, **options):
    lse = q.new_empty(q.shape[:-1], dtype=torch.float32)
    return _decode(q, k_cache, v_cache, context_lengths, page_table, out=_out(q, v_cache), out_lse=lse, **options)


def _run_append(q, k_cache, v_cache, k_new, v_new, context_lengths, page_table=None, **options):
    return _decode(q, k_cache, v_cache, context_lengths, page_table, out=_out(q, v_cache), k_new=k_new, v_new=v_new, **options)


def _fake(q, k_cache, v_cache, context_lengths, page_table=None, **options):
    return _out(q, v_cache)


def _fake_with_lse(q, k_cache, v_cache, context_lengths, page_table=None, **options):
    return _out(q, v_cache), q.new_empty(q.shape[:-1], dtype=torch.float32)


def _fake_append(q, k_cache, v_cache, k_new, v_new, context_lengths, page_table=None, **options):
    return _out(q, v_cache)


_define("decode", "Tensor q, Tensor k_cache, Tensor v_cache", "Tensor", _run, _fake)
_define("decode_with_lse", "Tensor q, Tensor k_cache, Tensor v_cache", "(Tensor, Tensor)", _run_with_lse, _fake_with_lse)
_define("decode_append", "Tensor q, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor k_new, Tensor v_new", "Tensor", _run_append, _fake_append)
