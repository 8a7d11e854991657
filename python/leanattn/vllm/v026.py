"""v026.py -- what the interface of vLLM 0.26 has beyond the shared part: cascade attention, and its fields in the metadata; and a kernel for selected
tokens that returns no log-sum-exp."""
from .backend import BackendBase, BuilderBase
from .latent import LatentBackendBase, LatentBuilderBase
from .selected import SelectedBackendBase, SelectedImplementation


class Builder(BuilderBase):
    required_fields = {"use_cascade": False, "common_prefix_len": 0, "cu_prefix_query_lens": None, "prefix_kv_lens": None, "suffix_kv_lens": None}

    def use_cascade_attention(self, *args, **kwargs):
        return False


class Backend(BackendBase):
    @staticmethod
    def get_builder_cls():
        return Builder


class LatentBuilder(LatentBuilderBase):
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


class SelectedBackend(SelectedBackendBase):
    @staticmethod
    def get_impl_cls():
        return Selected
