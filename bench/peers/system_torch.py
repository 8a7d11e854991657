"""system_torch.py -- PyTorch's scaled_dot_product_attention, restricted to one backend: FlashAttention-2 (with split KV) or cuDNN.

Where query heads share KV heads, two forms of the step are tried, and the faster one counts: enable_gqa with one query row for each head, and the
heads of a group as the rows of one head, which needs no mask for a single token.
"""
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from . import systems


class TorchSystem:
    def __init__(self, name, backend):
        self.name, self.backend = name, backend

    def versions(self):
        return {"torch": torch.__version__, "cudnn": torch.backends.cudnn.version()}

    def candidates(self, data, attempt):
        case = data.case
        if case.ragged:
            return [systems.Failure(self.name, "-", False, "one context length for the whole batch; a ragged one needs a mask over the longest")]
        forms = ["heads"] if case.q_heads == case.kv_heads else ["enable_gqa", "group as rows"]
        return [attempt(form, False, lambda: self.candidate(data, form)) for form in forms]

    def candidate(self, data, form):
        case = data.case
        rows = (case.batch, case.kv_heads, -1, case.head_dim) if form == "group as rows" else (case.batch, case.q_heads, 1, case.head_dim)
        q = data.q.view(rows)
        k = [tensor[:, :, :case.longest] for tensor in data.k]
        v = [tensor[:, :, :case.longest] for tensor in data.v]
        outputs = [None] * data.copies

        def launch(copy):
            with sdpa_kernel(self.backend):
                outputs[copy] = torch.nn.functional.scaled_dot_product_attention(q, k[copy], v[copy], enable_gqa=form == "enable_gqa")

        return systems.Candidate(self.name, form, launch, lambda copy: outputs[copy].view(data.q.shape))


def torch_systems():
    return [TorchSystem("FA2", SDPBackend.FLASH_ATTENTION), TorchSystem("cuDNN", SDPBackend.CUDNN_ATTENTION)]
