"""v0523.py -- what the interface of SGLang 0.5.23 has beyond the shared part: one hook for the capture and the replay of a graph, writes to the
cache with the slots of both its pools, and caches whose slots req_to_token names indirectly."""
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from sglang.srt.runtime_context import get_exec

from .backend import BackendBase


class Backend(BackendBase):
    @staticmethod
    def is_deterministic(model_runner):
        return bool(get_exec().deterministic.enable_deterministic_inference)

    def write(self, layer, forward_batch, k, v):
        slots = KVWriteLoc.for_layer(forward_batch, layer, swa_loc=self.forward_metadata.swa_out_cache_loc)
        self._pool.set_kv_buffer(layer, slots, k, v, layer.k_scale, layer.v_scale)

    def caches(self, layer):
        return self.get_paged_mha_kv_cache(layer)

    def reads_slots(self):
        return not self.kv_index_translator.is_translating

    def init_forward_metadata(self, forward_batch):
        super().init_forward_metadata(forward_batch)
        self.init_tree(forward_batch)

    def init_forward_metadata_out_graph(self, forward_batch, in_capture=False):
        super().init_forward_metadata_out_graph(forward_batch, in_capture)
        self.init_graph(forward_batch.batch_size, forward_batch.forward_mode, in_capture, forward_batch.seq_lens, forward_batch.req_pool_indices,
                        forward_batch.seq_lens_cpu, forward_batch.spec_info)
