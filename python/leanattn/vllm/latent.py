"""latent.py -- latent attention (MLA) in vLLM. Requests with few query tokens, which vLLM gives to forward_mqa with absorbed projections, run on
leanattn; prefill, the projections and the cache are those that all of vLLM's latent backends share.
"""
import dataclasses

import leanattn
import vllm.envs as envs
from vllm.model_executor.layers.attention.mla_attention import (
    MLACommonBackend, MLACommonDecodeMetadata, MLACommonImpl, MLACommonMetadataBuilder, QueryLenSupport)
from vllm.v1.attention.backend import AttentionCGSupport

from .._serving import plans
from .step_plans import Rows, StepPlans


@dataclasses.dataclass
class DecodeMetadata(MLACommonDecodeMetadata):
    rows: Rows | None = None


class LatentImplementation(MLACommonImpl):
    can_return_lse_for_decode = True  # vLLM sets need_to_return_lse_for_decode where it wants that, for decode context parallelism
    lse_base_on_e = True
    supports_dcp = True

    def __init__(self, *args, **kwargs):
        ranks = self.dcp_world_size  # __new__ has set it; vLLM's own __init__ replaces it by -1, until the first step
        super().__init__(*args, **kwargs)
        self.dcp_world_size = ranks
        if self.dcp_world_size > 1 and self.pcp_world_size > 1:
            raise ValueError("leanattn has no prefill context parallelism beside decode context parallelism. Choose another --attention-backend")
        if self._query_heads > plans.LARGEST_GROUP:
            raise ValueError(f"{self._query_heads} query heads share a latent cache, but leanattn has at most {plans.LARGEST_GROUP}. "
                             "Choose another --attention-backend")
        self.supports_quant_query_input = False  # queries stay as they are beside an fp8 cache

    def options(self, layer):
        """What the kernels of this layer depend on."""
        return plans.Options(q_heads=self._query_heads, kv_heads=1, head_dim=self.kv_lora_rank + self.qk_rope_head_dim, v_head_dim=self.kv_lora_rank,
                             latent=True, kv_layout="HND", kv_dtype="fp8_e4m3" if self._one_byte else None, lse=self.need_to_return_lse_for_decode)

    @property
    def _query_heads(self):
        """Those of a launch: of all ranks that hold a part of the same contexts."""
        return self.num_heads * self.dcp_world_size

    @property
    def _one_byte(self):
        return self.kv_cache_dtype.startswith("fp8")

    def forward_mqa(self, q, kv_c_and_k_pe_cache, attn_metadata, layer):
        """q: [tokens, heads, latent + rope], or its two parts. The cache: [pages, page_size, latent + rope]. Returns [tokens, heads, latent],
        and [tokens, heads] log-sum-exp or None."""
        if isinstance(q, tuple):
            import torch  # here, so that this module can be held against vLLM's interface without it

            q = torch.cat(q, dim=-1)
        rows = attn_metadata.decode.rows
        out = q.new_empty((q.shape[0], q.shape[1], self.kv_lora_rank))
        one_byte = {"kv_dtype": "fp8_e4m3", "k_scale": layer._k_scale} if self._one_byte else {}
        made = leanattn.decode(q, kv_c_and_k_pe_cache.unsqueeze(1), None, rows.lengths, rows.page_table, out=out, v_head_dim=self.kv_lora_rank,
                               return_lse=self.need_to_return_lse_for_decode, q_offsets=rows.offsets, max_q_len=rows.most_tokens, scale=self.scale,
                               shape=rows.shape, engine=rows.device.engine, workspace=rows.device.workspace,
                               batch_invariant=bool(envs.VLLM_BATCH_INVARIANT), **one_byte)
        return made if self.need_to_return_lse_for_decode else (made, None)


class LatentBuilderBase(MLACommonMetadataBuilder):
    """Builds the metadata of a step. That of its decode part is a few Python objects over vLLM's own tensors."""

    _cudagraph_support = AttentionCGSupport.UNIFORM_BATCH
    query_len_support = QueryLenSupport.VARLEN

    @classmethod
    def get_cudagraph_support(cls, vllm_config, kv_cache_spec):
        """vLLM refuses to capture graphs of requests with drafts where its builder computes them as prefill: over ranks, and where there are more
        drafts than the kernels take. It calls this before it captures any."""
        speculative = vllm_config.speculative_config
        if speculative is None:
            return cls._cudagraph_support
        # As many as vLLM's threshold has, which __init__() compares with the same number.
        tokens = 1 + speculative.num_speculative_tokens * (2 if getattr(speculative, "parallel_drafting", False) else 1)
        decoded = tokens <= plans.MOST_QUERY_TOKENS and vllm_config.parallel_config.decode_context_parallel_size == 1
        return cls._cudagraph_support if decoded else AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE

    def __init__(self, kv_cache_spec, layer_names, vllm_config, device, metadata_cls=None, supports_dcp_with_varlen=False):
        super().__init__(kv_cache_spec, layer_names, vllm_config, device, metadata_cls, supports_dcp_with_varlen)
        if self.reorder_batch_threshold > plans.MOST_QUERY_TOKENS:
            self.reorder_batch_threshold = 1
        layers = vllm_config.compilation_config.static_forward_context
        options = {layers[name].impl.options(layers[name]) for name in layer_names}
        self._plans = StepPlans(options, self)

    def _decode_metadata(self, block_table, lengths, starts, starts_on_host, tokens, whole_lengths):
        """Of the requests at the front of a step. Those that only pad a graph have no query tokens and stand behind all others. `lengths` are those
        on this rank, and `whole_lengths` those over all ranks, where contexts are spread over several."""
        requests = min(lengths.shape[0], tokens)
        single = tokens == requests and (self.reorder_batch_threshold == 1 or int(starts_on_host[1:].sub(starts_on_host[:-1]).max()) <= 1)
        if not single:
            requests = lengths.shape[0]
        return DecodeMetadata(block_table=block_table, seq_lens=lengths, dcp_tot_seq_lens=whole_lengths,
                              rows=self._plans.rows(tokens, requests, 1 if single else self.reorder_batch_threshold, lengths, block_table,
                                                    starts))


class LatentBackendBase(MLACommonBackend):
    supported_kv_cache_dtypes = ["auto", "float16", "bfloat16", "fp8", "fp8_e4m3"]

    @staticmethod
    def get_name():
        return "CUSTOM"

    @staticmethod
    def get_impl_cls():
        return LatentImplementation

    @classmethod
    def get_preferred_block_size(cls, default_block_size):
        return 64

    @classmethod
    def supports_batch_invariance(cls):
        return True
