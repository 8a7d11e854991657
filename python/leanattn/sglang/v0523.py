"""v0523.py -- what the interface of SGLang 0.5.23 has beyond that of 0.5.16: slots that a step's plan has worked out, caches with strides of their
own, and pools whose slots req_to_token names indirectly."""
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from sglang.srt.runtime_context import get_exec

from . import v0516


class Backend(v0516.Backend):
    windows_both_ways = True

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
