"""backend.py -- what all tried versions of vLLM share: the backend, the metadata of a step, and its builder.

vLLM puts requests with few query tokens at the front of a batch. These are the rows of leanattn, and the rest is handed to FlashAttention with
metadata of its own. Nothing here waits for the GPU or copies from it: the kernels read lengths, page tables and query offsets where vLLM keeps
them, so that one CUDA graph is right for all of them.
"""
import dataclasses
from typing import Any

import vllm.envs as envs
from vllm.logger import init_logger
from vllm.v1.attention.backend import AttentionCGSupport
from vllm.v1.attention.backends.flash_attn import FlashAttentionBackend, FlashAttentionMetadata, FlashAttentionMetadataBuilder
from vllm.v1.attention.backends.utils import split_decodes_and_prefills

from .._serving import plans
from . import CONTEXT, TUNE
from .implementation import Implementation

logger = init_logger("vllm.leanattn")


@dataclasses.dataclass(slots=True)
class Rows:
    """The rows of a step that run on leanattn: the first `tokens` query tokens, those of the first requests."""

    tokens: int
    lengths: Any  #: [requests] int32
    page_table: Any  #: [requests, pages] int32
    offsets: Any  #: [requests + 1] int32, where requests may have several query tokens; else None
    most_tokens: int | None  #: of a request, where there are offsets
    batch: int  #: the batch and the context of the plan
    context: int
    device: plans.Device


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
        self._problems, self._batches, self._device = (), {}, None
        layers = vllm_config.compilation_config.static_forward_context
        found = {impl.options(layers[name]) for name in layer_names if name in layers for impl in _variants(layers[name].impl)
                 if isinstance(impl, Implementation) and impl.decodes_here}
        if not found or self.dcp_world_size > 1:
            return  # all rows are FlashAttention's, and so is their order
        self._init_reorder_batch_threshold(1, supports_spec_as_decode=True)
        if self.reorder_batch_threshold > plans.MOST_QUERY_TOKENS:
            self.reorder_batch_threshold = 1
        longest = vllm_config.model_config.max_model_len
        page_size = kv_cache_spec.block_size
        if envs.VLLM_BATCH_INVARIANT:  # a plan's context is a limit then
            self._pages = plans.pages_for(longest + plans.MOST_QUERY_TOKENS, page_size)
            context = self._pages * page_size
        else:
            self._pages, context = None, plans.context_for(longest, CONTEXT)
        graphs = vllm_config.compilation_config.cudagraph_capture_sizes or ()
        several = self.reorder_batch_threshold
        self._sizes = plans.Sizes(plans.batches_for({*graphs, *(size // several for size in graphs)}, vllm_config.scheduler_config.max_num_seqs), context)
        self._problems = tuple(
            plans.problem_of(options, dtype=plans.dtype_name(vllm_config.model_config.dtype), page_size=page_size, query_tokens=tokens,
                             batch_invariant=bool(envs.VLLM_BATCH_INVARIANT))
            for options in found for tokens in sorted({1, several}))
        self._device = plans.device(plans.ordinal_of(device))
        tuned, failure = self._device.tune(self._problems, self._sizes, plans.tuning_seconds(TUNE))
        if tuned:
            logger.info("leanattn has tuned %d shapes for this GPU, as %s asks for", tuned, TUNE)
        if failure:
            logger.warning("leanattn could not tune, and goes on with what it knows: %s", failure)
        provenances, seconds = self._device.prepare(self._problems, self._sizes)
        if provenances:
            logger.info("leanattn has plans for %d problems and %d batches up to %d at context %d, after %.1f s; looked up as %s",
                        len(self._problems), len(self._sizes.batches), self._sizes.batches[-1], context, seconds,
                        ", ".join(f"{name}: {count}" for name, count in provenances.most_common()))

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
        return Metadata(
            num_actual_tokens=common.num_actual_tokens, max_query_len=common.max_query_len, query_start_loc=common.query_start_loc,
            max_seq_len=common.max_seq_len, seq_lens=common.seq_lens, block_table=common.block_table_tensor, slot_mapping=common.slot_mapping,
            rows=Rows(tokens, _first(common.seq_lens, requests), self._page_table(common.block_table_tensor, requests),
                      None if single else _first(common.query_start_loc, requests + 1), None if single else self.reorder_batch_threshold,
                      self._batch_for(requests), self._sizes.context, self._device),
            prefill=prefill, **self.required_fields)

    def update_block_table(self, metadata, blk_table, slot_mapping):
        made = super().update_block_table(metadata, blk_table, slot_mapping)
        rows = getattr(metadata, "rows", None)
        if rows is not None:
            requests = rows.lengths.shape[0]
            made.rows = dataclasses.replace(rows, page_table=self._page_table(blk_table, requests))
            if metadata.prefill is not None:
                made.prefill = super().update_block_table(metadata.prefill, blk_table[requests:], slot_mapping[rows.tokens:])
        return made

    def _takes(self, common):
        """Whether leanattn has any part in the step: causal attention of decoder layers, without ranges that see beyond themselves."""
        return (self._problems and common.causal is True and common.mm_req_doc_ranges is None and common.rswa_prefix_lens is None
                and common.num_reqs > 0)

    def _batch_for(self, requests):
        batch = self._batches.get(requests)
        if batch is None:
            batch = self._batches[requests] = self._sizes.batch_for(requests)
            if batch not in self._sizes.batches:
                self._device.prepare(self._problems, plans.Sizes((batch,), self._sizes.context))
        return batch

    def _page_table(self, table, requests):
        table = _first(table, requests)
        return table if self._pages is None or table.shape[1] <= self._pages else table[:, :self._pages]


def _variants(impl):
    variants = getattr(impl, "get_impl_variants", None)
    return variants() if variants is not None else (impl,)


def _first(tensor, count):
    """The first entries; the tensor itself where that is all, because a slice takes as long as everything else here."""
    return tensor if tensor.shape[0] == count else tensor[:count]


def _rest_of(common, requests, prefills, tokens, prefill_tokens):
    """vLLM's metadata of the requests behind the first ones, as if these were not there."""
    behind = {name: value[requests:] for name in _BY_REQUEST if (value := getattr(common, name, None)) is not None}
    starts = {name: getattr(common, name)[requests:] - tokens for name in ("query_start_loc", "query_start_loc_cpu")}
    # What is remembered of the whole batch; not in every version.
    forgotten = {name: None for name in ("_num_computed_tokens_cache", "_token_to_req_indices_cache") if hasattr(common, name)}
    return common.replace(num_reqs=prefills, num_actual_tokens=prefill_tokens, slot_mapping=common.slot_mapping[tokens:], **behind, **starts,
                          **forgotten)


_BY_REQUEST = ("seq_lens", "block_table_tensor", "seq_lens_cpu_upper_bound", "is_prefilling", "_seq_lens_cpu", "_num_computed_tokens_cpu")
