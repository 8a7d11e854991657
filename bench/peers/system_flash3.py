"""system_flash3.py -- FlashAttention-3's flash_attn_with_kvcache on the dense cache, best over the number of splits."""
import importlib

from . import systems

SPLITS = [0, 1, 2, 4, 8, 16, 32, 64, 128]  # 0: its own heuristic


class FlashAttention3System:
    name = "FA3"

    def __init__(self):
        """Raises ImportError where it is not installed."""
        self.module = importlib.import_module("flash_attn_interface")

    def versions(self):
        return {"flash_attn_3": getattr(self.module, "__version__", "unknown")}

    def candidates(self, data, attempt):
        return [attempt(f"{splits} splits", False, lambda: self.candidate(data, splits)) for splits in SPLITS]

    def candidate(self, data, splits):
        # Its layout is [batch, tokens, heads, head_dim]; any strides will do as long as head_dim is dense.
        q = data.q.unsqueeze(1)
        k = [tensor.transpose(1, 2) for tensor in data.k]
        v = [tensor.transpose(1, 2) for tensor in data.v]
        outputs = [None] * data.copies

        def launch(copy):
            result = self.module.flash_attn_with_kvcache(q, k[copy], v[copy], cache_seqlens=data.lengths, num_splits=splits)
            outputs[copy] = result[0] if isinstance(result, tuple) else result

        return systems.Candidate(self.name, f"{splits} splits", launch, lambda copy: outputs[copy].view(data.q.shape))
