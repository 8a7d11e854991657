"""backend.py -- what all tried versions of vLLM share: the backend, the metadata of a step, and its builder.

A step is one launch, whatever mix of decode, speculation and prefill it has. Where prefill has no kernels of its own, the rows of leanattn are the
requests with few query tokens, which vLLM puts at the front of a batch, and the rest is handed to vLLM's own backend for the cache, FlashAttention or
Triton's, with metadata of its own. Nothing here waits for the GPU or copies from it: the kernels read lengths, page tables and query offsets where vLLM
keeps them, so that one CUDA graph is right for all of them.
"""
import copy
import dataclasses
import functools
from typing import Any

import vllm.envs as envs
from vllm.config.vllm import get_current_vllm_config_or_none
from vllm.platforms import current_platform
from vllm.v1.attention.backend import AttentionBackend, AttentionCGSupport, AttentionMetadataBuilder, AttentionType
from vllm.v1.attention.backends.utils import split_decodes_and_prefills

from .._serving import plans
from .implementation import IN_ROW, Implementation, takes_all_query_tokens, is_one_byte
from .spans import Spans
from .step_plans import Rows, StepPlans, first


@dataclasses.dataclass
class Metadata:
    """A step of which `rows` run on leanattn, and those of `rest`, the metadata of vLLM's own backend, behind them."""

    num_actual_tokens: int
    max_query_len: int
    query_start_loc: Any
    max_seq_len: int
    seq_lens: Any
    block_table: Any
    slot_mapping: Any
    rows: Rows
    rest: Any = None
    mm_prefix_range_tensor: Any = None  #: spans of `rows`, by the name at which vLLM takes images from layers that see them as text


def flash_backend():
    """vLLM's backend for FlashAttention, which says where that may compute what leanattn does not. Plain models never import it."""
    from vllm.v1.attention.backends.flash_attn import FlashAttentionBackend

    return FlashAttentionBackend


def triton_backend():
    """vLLM's backend that knows how caches are laid out whose scales lie in the rows."""
    from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend

    return TritonAttentionBackend


class BackendBase(AttentionBackend):
    """The cache, its layouts and its update are as with vLLM's own backend for FlashAttention or, where scales lie in the rows, with Triton's."""

    supported_kv_cache_dtypes = ["auto", "float16", "bfloat16", "fp8", "fp8_e4m3", *IN_ROW]
    forward_includes_kv_cache_update = False

    @staticmethod
    def get_name():
        return "CUSTOM"

    @staticmethod
    def get_impl_cls():
        return Implementation

    @classmethod
    def supports_head_size(cls, head_size):
        return head_size % 16 == 0 and (takes_all_query_tokens(head_size, None) or head_size <= 512 and flash_backend().supports_head_size(head_size))

    @classmethod
    def supports_kv_cache_dtype(cls, kv_cache_dtype):
        return flash_backend().supports_kv_cache_dtype(kv_cache_dtype) if is_one_byte(kv_cache_dtype) else super().supports_kv_cache_dtype(kv_cache_dtype)

    @classmethod
    def supports_sink(cls):
        return current_platform.is_device_capability_family(90) or flash_backend().supports_sink()

    @classmethod
    def supports_mm_prefix(cls):
        return True  # as far as supports_combination says

    @classmethod
    def supports_per_head_quant_scales(cls):
        return flash_backend().supports_per_head_quant_scales()

    @classmethod
    def supports_sliding_window(cls):
        return True

    @classmethod
    def supports_non_causal(cls):
        return True

    @classmethod
    def supports_batch_invariance(cls):
        return True

    @classmethod
    def supports_attn_type(cls, attn_type):
        return attn_type in (AttentionType.DECODER, AttentionType.ENCODER, AttentionType.ENCODER_ONLY, AttentionType.ENCODER_DECODER)

    @classmethod
    def supports_compute_capability(cls, capability):
        return capability.major >= 8

    @classmethod
    def supports_combination(cls, head_size, dtype, kv_cache_dtype, block_size, use_mla, has_sink, use_sparse, use_mm_prefix, device_capability):
        names = {"float16": "torch.float16", "bfloat16": "torch.bfloat16"}
        if kv_cache_dtype in names and names[kv_cache_dtype] != str(dtype):
            return f"a KV cache of {kv_cache_dtype} for queries of {dtype} not supported"
        prefills = takes_all_query_tokens(head_size, kv_cache_dtype)
        if kv_cache_dtype in IN_ROW:
            return None if prefills else f"a KV cache of {kv_cache_dtype} for heads of {head_size} not supported"
        if prefills and not (use_mm_prefix and _leaves_prefill()):
            return None
        return flash_backend().supports_combination(head_size, dtype, kv_cache_dtype, block_size, use_mla, has_sink, use_sparse, use_mm_prefix,
                                                    device_capability)


class BuilderBase(AttentionMetadataBuilder):
    """Builds the metadata of a step. For a step that is one launch that is a handful of Python objects, and no operation on a tensor."""

    supports_update_block_table = True

    @classmethod
    def get_cudagraph_support(cls, vllm_config, kv_cache_spec):
        """A graph of one launch serves any batch up to its size. How a step is split, and what only some steps have, would be fixed at capture."""
        model, layers = vllm_config.model_config, vllm_config.compilation_config.static_forward_context
        always = all(impl.prefills_here for impl, _ in _implementations(layers, layers)) and model.rswa_window is None
        return AttentionCGSupport.ALWAYS if always else AttentionCGSupport.UNIFORM_BATCH

    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self._plans = self._spans = None
        self._found = _implementations(layer_names, vllm_config.compilation_config.static_forward_context)
        self.dcp_world_size = self._found[0][0].dcp_world_size if self._found else 1
        self.cp_kv_cache_interleave_size = vllm_config.parallel_config.cp_kv_cache_interleave_size
        prefills = bool(self._found) and all(impl.prefills_here for impl, _ in self._found)
        if not prefills:
            self.other  # noqa: B018  (not in a step)
        # vLLM's lengths on a rank may count drafts that were rejected since, and of draft models are those of the step before.
        stale = self.dcp_world_size > 1 and vllm_config.speculative_config is not None
        if not self._found or not all(impl.decodes_here for impl, _ in self._found) or stale:
            return  # all rows are the other backend's, and so is their order
        self._init_reorder_batch_threshold(1, supports_spec_as_decode=True)
        if self.reorder_batch_threshold > plans.MOST_QUERY_TOKENS:
            self.reorder_batch_threshold = 1
        sees_images = vllm_config.model_config.is_mm_prefix_lm and self._found[0][0].mask == "causal"
        self._plans = StepPlans({impl.options(layer) for impl, layer in self._found}, self, prefills, sees_images)
        if sees_images:
            # vLLM says so of all layers with a window, or of none.
            clamped = any(getattr(layer, "mm_prefix_clamp_sliding_window", False) for _, layer in self._found)
            most_tokens = max((vllm_config.scheduler_config.max_num_batched_tokens, *(vllm_config.compilation_config.cudagraph_capture_sizes or ())))
            self._spans = Spans(most_tokens, device, clamped)

    @functools.cached_property
    def other(self):
        """vLLM's own builder, for the rows that leanattn does not compute."""
        if any(impl.in_row for impl, _ in self._found):
            from vllm.v1.attention.backends.triton_attn import TritonAttentionMetadataBuilder

            return TritonAttentionMetadataBuilder(self.kv_cache_spec, self.layer_names, self.vllm_config, self.device)
        from vllm.v1.attention.backends.flash_attn import FlashAttentionMetadataBuilder

        made = FlashAttentionMetadataBuilder(self.kv_cache_spec, self.layer_names, self.vllm_config, self.device)
        # It plans for one window, for which it looks at layers of its own.
        windows = {impl.other.sliding_window for impl, _ in self._found}
        if len(windows) == 1:
            (made.aot_sliding_window,) = windows
        else:
            made.aot_schedule = False
        return made

    def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
        return self._build(common_prefix_len, common_attn_metadata, fast_build, False)

    def build_for_cudagraph_capture(self, common_attn_metadata):
        return self._build(0, common_attn_metadata, False, True)

    def _build(self, common_prefix_len, common, fast_build, for_graph):
        if not self._takes(common):
            return self.other.build(common_prefix_len, common, fast_build)
        requests, tokens, most, rest = common.num_reqs, common.num_actual_tokens, common.max_query_len, None
        if for_graph and not self.vllm_config.compilation_config.cudagraph_mode.separate_routine():
            most = tokens  # the graph holds any batch; what it is captured with may say that requests have one token (V2 runner of vLLM 0.26)
        if most > self._plans.most_tokens:
            most = self.reorder_batch_threshold
            requests, others, tokens, other_tokens = split_decodes_and_prefills(common, decode_threshold=most)
            if requests == 0:
                return self.other.build(common_prefix_len, common, fast_build)
            if others > 0:
                rest = self.other.build(0, _rest_of(common, requests, others, tokens, other_tokens), fast_build)
        lengths = common.seq_lens if self.dcp_world_size == 1 else common.dcp_local_seq_lens
        rows = self._plans.rows(tokens, requests, most, lengths, common.block_table_tensor, common.query_start_loc)
        if rows is None:
            return self.other.build(common_prefix_len, common, fast_build)
        spans = None if self._spans is None else self._spans.of(common, requests, tokens, for_graph and rows.offsets is not None)
        return Metadata(common.num_actual_tokens, common.max_query_len, common.query_start_loc, common.max_seq_len, common.seq_lens,
                        common.block_table_tensor, common.slot_mapping, rows, rest, spans)

    def update_block_table(self, metadata, blk_table, slot_mapping):
        rows = getattr(metadata, "rows", None)
        if rows is None:
            return self.other.update_block_table(metadata, blk_table, slot_mapping)
        requests, made = rows.lengths.shape[0], copy.copy(metadata)
        made.block_table, made.slot_mapping = blk_table, slot_mapping
        made.rows = dataclasses.replace(rows, page_table=self._plans.page_table(blk_table, requests))
        if metadata.rest is not None:
            made.rest = self.other.update_block_table(metadata.rest, blk_table[requests:], slot_mapping[rows.tokens:])
        return made

    def _takes(self, common):
        """Whether leanattn has any part in the step. Of decoder layers, causal attention, with images only where the model has them, and over the
        ranks of a context-parallel group with the lengths on this one, which vLLM leaves out where it splits a step in two (DBO)."""
        if self._plans is None or common.rswa_prefix_lens is not None or common.num_reqs == 0:
            return False
        if self._found[0][0].mask == "full":  # whatever vLLM says, which is not always what its layers do
            return True
        return (common.causal is True and (common.mm_req_doc_ranges is None or self._spans is not None)
                and (self.dcp_world_size == 1 or common.dcp_local_seq_lens is not None))


def _leaves_prefill():
    """Whether all prefill of the model that vLLM makes is FlashAttention's, whatever kernels there are."""
    config = get_current_vllm_config_or_none()
    return envs.VLLM_BATCH_INVARIANT or config is not None and config.parallel_config.decode_context_parallel_size > 1


def _implementations(names, layers):
    """The implementations of the layers of these names that are leanattn's, with their layers."""
    return [(impl, layers[name]) for name in names if name in layers for impl in _variants(getattr(layers[name], "impl", None))
            if isinstance(impl, Implementation)]


def _variants(impl):
    variants = getattr(impl, "get_impl_variants", None)
    return variants() if variants is not None else (impl,)


def _rest_of(common, requests, others, tokens, other_tokens):
    """vLLM's metadata of the requests behind the first ones, as if these were not there."""
    behind = {name: value[requests:] for name in _BY_REQUEST if (value := getattr(common, name, None)) is not None}
    starts = {name: getattr(common, name)[requests:] - tokens for name in ("query_start_loc", "query_start_loc_cpu")}
    images = common.mm_req_doc_ranges and {request - requests: of for request, of in common.mm_req_doc_ranges.items() if request >= requests}
    # What is remembered of the whole batch; not in every version.
    forgotten = {name: None for name in ("_num_computed_tokens_cache", "_token_to_req_indices_cache") if hasattr(common, name)}
    return common.replace(num_reqs=others, num_actual_tokens=other_tokens, slot_mapping=common.slot_mapping[tokens:], mm_req_doc_ranges=images,
                          **behind, **starts, **forgotten)


# Not all are in every version.
_BY_REQUEST = ("seq_lens", "block_table_tensor", "seq_lens_cpu_upper_bound", "is_prefilling", "_seq_lens_cpu", "_num_computed_tokens_cpu",
               "dcp_local_seq_lens", "dcp_local_seq_lens_cpu", "dcp_local_seq_lens_cpu_upper_bound")
