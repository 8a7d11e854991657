"""backend.py -- what all tried versions of vLLM share: the backend, the metadata of a step, and its builder.

vLLM puts requests with few query tokens at the front of a batch. These are the rows of leanattn, and the rest is handed to FlashAttention with
metadata of its own. Nothing here waits for the GPU or copies from it: the kernels read lengths, page tables and query offsets where vLLM keeps
them, so that one CUDA graph is right for all of them.
"""
import dataclasses

from vllm.v1.attention.backend import AttentionCGSupport
from vllm.v1.attention.backends.flash_attn import FlashAttentionBackend, FlashAttentionMetadata, FlashAttentionMetadataBuilder
from vllm.v1.attention.backends.utils import split_decodes_and_prefills

from .._serving import plans
from .implementation import Implementation
from .step_plans import Rows, StepPlans, first


@dataclasses.dataclass
class Metadata(FlashAttentionMetadata):
    """FlashAttention's metadata of the whole step; `rows` run on leanattn, and `prefill` is FlashAttention's metadata of all others."""

    rows: Rows | None = None
    prefill: FlashAttentionMetadata | None = None


class BackendBase(FlashAttentionBackend):
    """The cache, its layouts and its update are those of vLLM's own backend for FlashAttention."""

    @staticmethod
    def get_name():
        return "CUSTOM"

    @staticmethod
    def get_impl_cls():
        return Implementation

    @classmethod
    def supports_head_size(cls, head_size):
        return head_size % 16 == 0 and head_size <= 512 and super().supports_head_size(head_size)

    @classmethod
    def supports_combination(cls, head_size, dtype, kv_cache_dtype, block_size, use_mla, has_sink, use_sparse, use_mm_prefix, device_capability):
        names = {"float16": "torch.float16", "bfloat16": "torch.bfloat16"}
        if kv_cache_dtype in names and names[kv_cache_dtype] != str(dtype):
            return f"a KV cache of {kv_cache_dtype} for queries of {dtype} not supported"
        return super().supports_combination(head_size, dtype, kv_cache_dtype, block_size, use_mla, has_sink, use_sparse, use_mm_prefix,
                                            device_capability)


class BuilderBase(FlashAttentionMetadataBuilder):
    """Builds the metadata of a step. For a step without prefill that is a handful of Python objects, and no operation on a tensor."""

    # Graphs of batches in which all requests have few query tokens. A batch with prefill cannot be a graph: how it is split is fixed at capture.
    _cudagraph_support = AttentionCGSupport.UNIFORM_BATCH
    required_fields: dict = {}  #: fields of FlashAttention's metadata that this version of vLLM wants, beyond those that all have

    @classmethod
    def get_cudagraph_support(cls, vllm_config, kv_cache_spec):
        return cls._cudagraph_support

    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self._plans = None
        layers = vllm_config.compilation_config.static_forward_context
        found = [(impl, layers[name]) for name in layer_names if name in layers for impl in _variants(layers[name].impl)
                 if isinstance(impl, Implementation)]
        # vLLM's lengths on a rank may count drafts that were rejected since, and of draft models are those of the step before.
        stale = self.dcp_world_size > 1 and vllm_config.speculative_config is not None
        if not found or not all(impl.decodes_here for impl, _ in found) or stale:
            return  # all rows are FlashAttention's, and so is their order
        self._init_reorder_batch_threshold(1, supports_spec_as_decode=True)
        if self.reorder_batch_threshold > plans.MOST_QUERY_TOKENS:
            self.reorder_batch_threshold = 1
        self._plans = StepPlans({impl.options(layer) for impl, layer in found}, self)

    def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
        common = common_attn_metadata
        if not self._takes(common):
            return super().build(common_prefix_len, common, fast_build)
        requests, tokens, prefill = common.num_reqs, common.num_actual_tokens, None
        if common.max_query_len > self.reorder_batch_threshold:
            requests, prefills, tokens, prefill_tokens = split_decodes_and_prefills(common, decode_threshold=self.reorder_batch_threshold)
            if requests == 0:
                return super().build(common_prefix_len, common, fast_build)
            if prefills > 0:
                prefill = super().build(0, _rest_of(common, requests, prefills, tokens, prefill_tokens), fast_build)
        # Else rows and requests do not match one to one, as in a step that is padded by tokens alone.
        single = tokens == requests and (common.max_query_len == 1 or self.reorder_batch_threshold == 1)
        if not single and self.reorder_batch_threshold == 1:
            return super().build(common_prefix_len, common, fast_build)
        lengths = common.seq_lens if self.dcp_world_size == 1 else common.dcp_local_seq_lens
        return Metadata(
            num_actual_tokens=common.num_actual_tokens, max_query_len=common.max_query_len, query_start_loc=common.query_start_loc,
            max_seq_len=common.max_seq_len, seq_lens=common.seq_lens, block_table=common.block_table_tensor, slot_mapping=common.slot_mapping,
            rows=self._plans.rows(tokens, requests, lengths, common.block_table_tensor, None if single else common.query_start_loc),
            prefill=prefill, **self.required_fields)

    def update_block_table(self, metadata, blk_table, slot_mapping):
        made = super().update_block_table(metadata, blk_table, slot_mapping)
        rows = getattr(metadata, "rows", None)
        if rows is not None:
            requests = rows.lengths.shape[0]
            made.rows = dataclasses.replace(rows, page_table=self._plans.page_table(blk_table, requests))
            if metadata.prefill is not None:
                made.prefill = super().update_block_table(metadata.prefill, blk_table[requests:], slot_mapping[rows.tokens:])
        return made

    def _takes(self, common):
        """Whether leanattn has any part in the step: causal attention of decoder layers, without ranges that see beyond themselves, and over the
        ranks of a context-parallel group with the lengths on this one, which vLLM leaves out where it splits a step in two (DBO)."""
        return (self._plans is not None and common.causal is True and common.mm_req_doc_ranges is None and common.rswa_prefix_lens is None
                and common.num_reqs > 0 and (self.dcp_world_size == 1 or common.dcp_local_seq_lens is not None))


def _variants(impl):
    variants = getattr(impl, "get_impl_variants", None)
    return variants() if variants is not None else (impl,)


def _rest_of(common, requests, prefills, tokens, prefill_tokens):
    """vLLM's metadata of the requests behind the first ones, as if these were not there."""
    behind = {name: value[requests:] for name in _BY_REQUEST if (value := getattr(common, name, None)) is not None}
    starts = {name: getattr(common, name)[requests:] - tokens for name in ("query_start_loc", "query_start_loc_cpu")}
    # What is remembered of the whole batch; not in every version.
    forgotten = {name: None for name in ("_num_computed_tokens_cache", "_token_to_req_indices_cache") if hasattr(common, name)}
    return common.replace(num_reqs=prefills, num_actual_tokens=prefill_tokens, slot_mapping=common.slot_mapping[tokens:], **behind, **starts,
                          **forgotten)


# Not all are in every version.
_BY_REQUEST = ("seq_lens", "block_table_tensor", "seq_lens_cpu_upper_bound", "is_prefilling", "_seq_lens_cpu", "_num_computed_tokens_cpu",
               "dcp_local_seq_lens", "dcp_local_seq_lens_cpu", "dcp_local_seq_lens_cpu_upper_bound")
