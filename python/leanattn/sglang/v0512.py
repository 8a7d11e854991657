"""v0512.py -- what the interface of SGLang 0.5.12 has beyond the shared part: one hook before a graph is captured and one before it is replayed."""
from .backend import BackendBase


class Backend(BackendBase):
    def write(self, layer, forward_batch, k, v):
        self._pool.set_kv_buffer(layer, forward_batch.out_cache_loc, k, v, layer.k_scale, layer.v_scale)

    def init_forward_metadata_capture_cuda_graph(self, bs, num_tokens, req_pool_indices, seq_lens, encoder_lens, forward_mode, spec_info):
        super().init_forward_metadata_capture_cuda_graph(bs, num_tokens, req_pool_indices, seq_lens, encoder_lens, forward_mode, spec_info)
        self.init_graph(bs, forward_mode, True)

    def init_forward_metadata_replay_cuda_graph(self, bs, req_pool_indices, seq_lens, seq_lens_sum, encoder_lens, forward_mode, spec_info,
                                                seq_lens_cpu, out_cache_loc=None):
        super().init_forward_metadata_replay_cuda_graph(bs, req_pool_indices, seq_lens, seq_lens_sum, encoder_lens, forward_mode, spec_info,
                                                        seq_lens_cpu, out_cache_loc)
        self.init_graph(bs, forward_mode, False, seq_lens, req_pool_indices, seq_lens_cpu, spec_info)
