"""v0516.py -- what the interface of SGLang 0.5.16 has beyond the shared part: one hook for the capture and the replay of a graph, and writes to the
cache with the slots of both its pools."""
from sglang.srt.mem_cache.memory_pool import KVWriteLoc

from .backend import BackendBase


class Backend(BackendBase):
    def write(self, layer, forward_batch, k, v):
        slots = KVWriteLoc(forward_batch.out_cache_loc, self.forward_metadata.swa_out_cache_loc)
        self._pool.set_kv_buffer(layer, slots, k, v, layer.k_scale, layer.v_scale)

    def init_forward_metadata_out_graph(self, forward_batch, in_capture=False):
        super().init_forward_metadata_out_graph(forward_batch, in_capture)
        self.init_graph(forward_batch.batch_size, forward_batch.forward_mode, in_capture, forward_batch.seq_lens, forward_batch.req_pool_indices,
                        forward_batch.seq_lens_cpu, forward_batch.spec_info)
