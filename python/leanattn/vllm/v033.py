"""v033.py -- what the interface of vLLM 0.33 has beyond the shared part: graphs of batches whose requests have different numbers of query tokens,
graphs that hold several steps of a draft model, and a kernel for selected tokens with padded heads and a log-sum-exp."""
from vllm.config.vllm import get_current_vllm_config_or_none
from vllm.v1.attention.backend import MultipleOf, max_decode_query_len

from .._serving import plans
from .backend import BackendBase, BuilderBase, flash_backend, triton_backend
from .implementation import takes_all_query_tokens
from .latent import LatentBackendBase, LatentBuilderBase
from .prefill import LatentPrefillBase
from .selected import SelectedBackendBase, SelectedImplementation


class Builder(BuilderBase):
    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self.supports_draft_decode_metadata_update = self.dcp_world_size == 1

    @classmethod
    def get_varlen_cudagraph_max_query_len(cls, vllm_config, kv_cache_spec):
        most = max_decode_query_len(vllm_config)
        alone = vllm_config.parallel_config.decode_context_parallel_size == 1
        return most if alone and most <= plans.MOST_QUERY_TOKENS else None

    def update_draft_decode_metadata(self, metadata):
        # The kernels read lengths, offsets and page tables when they run.
        if getattr(metadata, "rows", None) is None:
            self.other.update_draft_decode_metadata(metadata)


class Backend(BackendBase):
    supports_kv_cache_update_bypass = True

    @staticmethod
    def get_builder_cls():
        return Builder

    @classmethod
    def customize_spec(cls, spec):
        """What a token takes."""
        return triton_backend().customize_spec(spec) if spec.kv_quant_mode.is_per_token_head else super().customize_spec(spec)

    @classmethod
    def supports_rswa(cls):
        return True

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec=None):
        """FlashAttention-4 wants larger pages for some heads."""
        config = get_current_vllm_config_or_none()
        model = None if config is None else config.model_config
        head_size = getattr(kv_cache_spec, "head_size", 0) or (0 if model is None else model.get_head_size())
        return [MultipleOf(16)] if takes_all_query_tokens(head_size, None) else flash_backend().get_supported_kernel_block_sizes(kv_cache_spec)


class LatentBuilder(LatentBuilderBase):
    def _build_decode(self, block_table_tensor, seq_lens_device, max_seq_len, query_start_loc_cpu, query_start_loc_device, num_decode_tokens, max_query_len,
                      dcp_tot_seq_lens_device):
        return self._decode_metadata(block_table_tensor, seq_lens_device, query_start_loc_device, query_start_loc_cpu, num_decode_tokens,
                                     dcp_tot_seq_lens_device)


class LatentBackend(LatentBackendBase):
    @staticmethod
    def get_builder_cls():
        return LatentBuilder


class LatentPrefill(LatentPrefillBase):
    def supports_out(self):
        return True

    def run_prefill_context_chunk(self, chunk, q, k, v, out=None):
        return self._run(q, k, v, chunk.query_start_loc, chunk.cu_seq_lens, chunk.max_query_len, "full", True, out)


class Selected(SelectedImplementation):
    def _bf16_flash_mla_kernel(self, q, kv_c_and_k_pe_cache, topk_indices, topk_length=None, actual_num_heads=None, out=None):
        heads = q.shape[1] if actual_num_heads is None else actual_num_heads
        made = None if out is not None else self._bf16(q, kv_c_and_k_pe_cache, topk_indices, topk_length, heads)
        if made is None:
            return super()._bf16_flash_mla_kernel(q, kv_c_and_k_pe_cache, topk_indices, topk_length, actual_num_heads, out)
        return made, None


class SelectedBackend(SelectedBackendBase):
    @staticmethod
    def get_impl_cls():
        return Selected
