"""system_flash3.py -- FlashAttention-3 on the dense cache, best over the number of splits.

It is taken from a package `flash_attn_interface`, as the kernel's own repository installs it, or from the extension
that vLLM's wheel carries (vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so), which PyTorch loads by itself: LEANATTN_FA3_LIBRARY
names the file.
"""
import importlib
import os
import pathlib

from . import systems

SPLITS = [0, 1, 2, 4, 8, 16, 32, 64, 128]  # 0: its own heuristic


def packaged_kernel():
    """(launch(q, k, v, lengths, splits) -> output, version) of the installed package. Raises ImportError."""
    module = importlib.import_module("flash_attn_interface")

    def launch(q, k, v, lengths, splits):
        result = module.flash_attn_with_kvcache(q, k, v, cache_seqlens=lengths, num_splits=splits)
        return result[0] if isinstance(result, tuple) else result

    return launch, getattr(module, "__version__", "unknown")


def vllm_kernel(library):
    """The same of vLLM's extension. Raises ImportError when it cannot be loaded."""
    import torch

    try:
        torch.ops.load_library(library)
    except OSError as error:
        raise ImportError(f"{library}: {error}") from error

    def launch(q, k, v, lengths, splits):
        # The operator's arguments in order, with everything off that a dense decode step does not have. q has one token
        # a request, and `lengths` says how many tokens of k and v count.
        return torch.ops._vllm_fa3_C.fwd(
            q, k, v,
            None, None,  # new tokens to append
            None, None,  # q_v, out
            None, None, None,  # cumulative lengths of packed batches
            None, lengths,
            None, None,  # longest q and k of packed batches
            None, None, None,  # page table, batch index, left padding
            None, None, None,  # rotary embedding
            None, None, None,  # scales of one-byte elements
            q.shape[-1] ** -0.5,
            False, -1, -1, 0.0, True,  # causal, window, soft cap, interleaved rotary embedding
            None, splits, None, 0,  # scheduler metadata, splits, packing of the group, SMs left free
            None, 1, 0, None,  # sinks, context parallelism
        )[0]

    return launch, "of vLLM's wheel"


class FlashAttention3System:
    name = "FA3"

    def __init__(self):
        """Raises ImportError where it is not installed."""
        library = os.environ.get("LEANATTN_FA3_LIBRARY")
        self.launch, self.version = vllm_kernel(str(pathlib.Path(library).resolve())) if library else packaged_kernel()

    def versions(self):
        return {"flash_attn_3": self.version}

    def candidates(self, data, attempt):
        return [attempt(f"{splits} splits", False, lambda: self.candidate(data, splits)) for splits in SPLITS]

    def candidate(self, data, splits):
        # Its layout is [batch, tokens, heads, head_dim]; any strides will do as long as head_dim is dense.
        q = data.q.unsqueeze(1)
        k = [tensor.transpose(1, 2) for tensor in data.k]
        v = [tensor.transpose(1, 2) for tensor in data.v]
        outputs = [None] * data.copies

        def launch(copy):
            outputs[copy] = self.launch(q, k[copy], v[copy], data.lengths, splits)

        return systems.Candidate(self.name, f"{splits} splits", launch, lambda copy: outputs[copy].view(data.q.shape))
