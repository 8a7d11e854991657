"""v026.py -- what the interface of vLLM 0.26 has beyond the shared part: cascade attention, and its fields in the metadata; prefill of latent attention
that takes its contexts to stand in front; and a kernel for selected tokens that returns no log-sum-exp."""
from .backend import BackendBase, BuilderBase
from .latent import LatentBackendBase, LatentBuilderBase
from .selected import SelectedBackendBase, SelectedBuilderBase, SelectedImplementation


class Builder(BuilderBase):
    required_fields = {"use_cascade": False, "common_prefix_len": 0, "cu_prefix_query_lens": None, "prefix_kv_lens": None, "suffix_kv_lens": None}

    def use_cascade_attention(self, *args, **kwargs):
        return False


class Backend(BackendBase):
    @staticmethod
    def get_builder_cls():
        return Builder


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
