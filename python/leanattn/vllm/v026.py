"""v026.py -- what the interface of vLLM 0.26 has beyond the shared part: the shape and the layouts of a cache; prefill of latent attention that takes
its contexts to stand in front; and a kernel for selected tokens that returns no log-sum-exp."""
from vllm.v1.attention.backend import MultipleOf
from vllm.v1.attention.backends.utils import get_kv_cache_layout

from .backend import BackendBase, BuilderBase, triton_backend
from .implementation import IN_ROW
from .latent import LatentBackendBase, LatentBuilderBase
from .prefill import LatentPrefillBase
from .selected import SelectedBackendBase, SelectedBuilderBase, SelectedImplementation

# (layout, with a dimension for layers): the dimensions of a cache from the outermost in memory to the innermost
_STRIDE_ORDERS = {("NHD", False): (0, 2, 1, 3), ("HND", False): (0, 1, 2, 3), ("NHD", True): (1, 0, 3, 2, 4), ("HND", True): (1, 2, 0, 3, 4)}


class Backend(BackendBase):
    @staticmethod
    def get_builder_cls():
        return BuilderBase

    @staticmethod
    def get_supported_kernel_block_sizes():
        return [MultipleOf(16)]

    @staticmethod
    def get_kv_cache_shape(num_blocks, block_size, num_kv_heads, head_size, cache_dtype_str="auto"):
        """K and V of a token are side by side."""
        if cache_dtype_str in IN_ROW:
            return triton_backend().get_kv_cache_shape(num_blocks, block_size, num_kv_heads, head_size, cache_dtype_str)
        if block_size % 16 != 0:
            raise ValueError("Block size must be a multiple of 16.")
        return (num_blocks, num_kv_heads, block_size, 2 * head_size)

    @staticmethod
    def get_kv_cache_stride_order(include_num_layers_dimension=False):
        return _STRIDE_ORDERS[get_kv_cache_layout(), include_num_layers_dimension]


class ContextsAnywhere:
    """vLLM 0.26 counts the requests of prefill that have a context, and merges contexts only into the tokens of that many requests at the front. One of
    its runners puts short prefill before long, whichever has a context, so that tokens behind a new prompt lose theirs, with every backend of latent
    attention. Later versions go by requests. Without the number all tokens are merged. An empty context has no weight: the other tokens stay as they
    are, bit for bit."""

    def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
        made = super().build(common_prefix_len, common_attn_metadata, fast_build)
        if made.prefill is not None and made.prefill.chunked_context is not None:
            made.prefill.chunked_context.prefill_tokens_with_context = None
        return made


class LatentBuilder(ContextsAnywhere, LatentBuilderBase):
    def _build_decode(self, block_table_tensor, seq_lens_device, max_seq_len, query_start_loc_cpu, query_start_loc_device, num_decode_tokens,
                      dcp_tot_seq_lens_device):
        return self._decode_metadata(block_table_tensor, seq_lens_device, query_start_loc_device, query_start_loc_cpu, num_decode_tokens,
                                     dcp_tot_seq_lens_device)


class LatentBackend(LatentBackendBase):
    @staticmethod
    def get_builder_cls():
        return LatentBuilder


class LatentPrefill(LatentPrefillBase):
    def run_prefill_context_chunk(self, chunk_idx, q, k, v):
        metadata, context = self._prefill_metadata, self._prefill_metadata.chunked_context
        return self._run(q, k, v, metadata.query_start_loc, context.cu_seq_lens[chunk_idx], metadata.max_query_len, "full", True, None)


class Selected(SelectedImplementation):
    def _bf16_flash_mla_kernel(self, q, kv_c_and_k_pe_cache, topk_indices, topk_length=None):
        made = self._bf16(q, kv_c_and_k_pe_cache, topk_indices, topk_length, q.shape[1])
        return super()._bf16_flash_mla_kernel(q, kv_c_and_k_pe_cache, topk_indices, topk_length) if made is None else made


class SelectedBuilder(ContextsAnywhere, SelectedBuilderBase):
    pass


class SelectedBackend(SelectedBackendBase):
    @staticmethod
    def get_impl_cls():
        return Selected

    @staticmethod
    def get_builder_cls():
        return SelectedBuilder
