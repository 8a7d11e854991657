"""mixed_peers.py -- what else does a mixed step where it is installed: FlashInfer and, where they apply, FlashAttention-4 and cuDNN."""
import importlib
import importlib.metadata

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from peers import systems
import mixed_data
import mixed_steps
import mixed_systems

FLASHINFER_WORKSPACE_BYTES = 2 << 30


class FlashInferMixed:
    """BatchAttention, which is persistent, and batch prefill in two forms."""

    name = "FlashInfer"

    def __init__(self):
        """Raises ImportError where it is not installed."""
        self.module = importlib.import_module("flashinfer")
        self.workspace = torch.zeros(FLASHINFER_WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")

    def versions(self):
        return {"flashinfer": self.module.__version__}

    def candidates(self, data, attempt):
        forms = {"persistent": self.persistent} if data.case.paged else {}
        forms |= {form: lambda data, form=form: self.prefill(data, form) for form in ("fa3", "fa2")}
        return [attempt(form, False, lambda: self.candidate(form, make, data)) for form, make in forms.items()]

    def candidate(self, form, make, data):
        wrapper, plan = make(data)
        plan()
        scales = {"k_scale": mixed_data.KV_SCALE, "v_scale": mixed_data.KV_SCALE} if data.case.fp8 else {}
        stored = [[tensor.transpose(1, 2) if data.layout == "HND" else tensor for tensor in (k, v)] for k, v in zip(data.k, data.v, strict=True)]

        def run(copy, output):
            if data.case.paged:
                wrapper.run(data.q, tuple(stored[copy]), out=output, **scales)
            else:
                wrapper.run(data.q, *(tensor.flatten(0, 1) for tensor in stored[copy]), out=output)

        return mixed_systems.candidate(f"{self.name} {form}", form, data, [(mixed_systems.ALL, run)], plan_us=systems.host_us(plan))

    def pages(self, data):
        """(starts of the query tokens, starts of the pages, pages, lengths) of the requests: on the host but for the pages."""
        counts = [-(-length // mixed_steps.PAGE_SIZE) for length in data.case.lengths]
        starts = torch.tensor([0, *counts], dtype=torch.int32).cumsum(0).int()
        return data.q_offsets.cpu(), starts, torch.cat([row[:count] for row, count in zip(data.page_table, counts, strict=True)]), data.lengths.cpu()

    def persistent(self, data):
        step, (offsets, starts, indices, lengths) = data.case, self.pages(data)
        if step.window:
            raise ValueError("BatchAttention has no windows")
        wrapper = self.module.BatchAttention(data.layout)
        wrapper.float_workspace_buffer = self.workspace
        return wrapper, lambda: wrapper.plan(offsets, starts, indices, lengths, step.q_heads, step.kv_heads, step.head_dim, step.values,
                                             mixed_steps.PAGE_SIZE, causal=True, q_data_type=data.q.dtype, kv_data_type=data.k[0].dtype)

    def prefill(self, data, form):
        step = data.case
        common = {"causal": True, "window_left": step.window - 1, "q_data_type": data.q.dtype, "kv_data_type": data.k[0].dtype}
        if not step.paged:
            wrapper = self.module.BatchPrefillWithRaggedKVCacheWrapper(self.workspace, "NHD", backend=form)
            return wrapper, lambda: wrapper.plan(data.q_offsets, data.q_offsets, step.q_heads, step.kv_heads, step.head_dim, head_dim_vo=step.values,
                                                 **common)
        offsets, starts, indices, lengths = self.pages(data)
        wrapper = self.module.BatchPrefillWithPagedKVCacheWrapper(self.workspace, data.layout, backend=form)
        return wrapper, lambda: wrapper.plan(offsets, starts, indices, (lengths - 1) % mixed_steps.PAGE_SIZE + 1, step.q_heads, step.kv_heads, step.head_dim,
                                             mixed_steps.PAGE_SIZE, **common)


class FlashAttention4:
    """FlashAttention-4's path for sm_90, on the pages and, for prompts, on dense K and V."""

    name = "FA4"

    SPLITS = (1, 0)  # 0: its own choice

    def __init__(self):
        """Raises ImportError where it is not installed."""
        self.module, self.version = importlib.import_module("flash_attn.cute"), importlib.metadata.version("flash-attn-4")

    def versions(self):
        return {"flash_attn_4": self.version}

    def candidates(self, data, attempt):
        made = [attempt(f"{splits} splits", False, lambda: self.candidate(self.name, splits, data, data.k, data.v, data.page_table))
                for splits in self.SPLITS]
        if reads_dense(data.case):
            dense = [dense_copies(data, pool) for pool in (data.k, data.v)]
            made.append(attempt("dense", False, lambda: self.candidate("FA4 dense", 1, data, *dense, None)))
        return made

    def candidate(self, system, splits, data, k, v, page_table):
        step = data.case

        def run(copy, output):
            window = (step.window - 1, 0) if step.window else (None, None)
            return self.module.flash_attn_varlen_func(data.q, k[copy], v[copy], cu_seqlens_q=data.q_offsets, seqused_k=data.lengths,
                                                      page_table=page_table, max_seqlen_q=step.q_len, max_seqlen_k=step.longest, causal=True,
                                                      window_size=window, num_splits=splits)[0]

        return mixed_systems.candidate(system, f"{splits} splits", data, [(mixed_systems.ALL, run)])


class CudnnPrompts:
    """cuDNN through PyTorch, for prompts of one length, on dense K and V."""

    name = "cuDNN"

    def versions(self):
        return {"torch": torch.__version__, "cudnn": torch.backends.cudnn.version()}

    def candidates(self, data, attempt):
        step = data.case
        if not step.prompts or step.ragged or step.window or step.fp8:
            return []
        return [attempt("scaled_dot_product_attention", False, lambda: self.candidate(data))]

    def candidate(self, data):
        step = data.case
        q = data.q.view(step.batch, -1, *data.q.shape[1:]).transpose(1, 2)
        k, v = ([tensor.transpose(1, 2) for tensor in dense_copies(data, of)] for of in (data.k, data.v))

        def run(copy, output):
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                made = torch.nn.functional.scaled_dot_product_attention(q, k[copy], v[copy], is_causal=True, enable_gqa=step.q_heads != step.kv_heads)
            return made.transpose(1, 2).flatten(0, 1)

        return mixed_systems.candidate("cuDNN dense" if step.paged else self.name, "scaled_dot_product_attention", data, [(mixed_systems.ALL, run)])


def reads_dense(step):
    """Whether kernels without pages can do the step, too."""
    return step.paged and step.prompts and not step.ragged and not step.fp8


def dense_copies(data, tensors):
    """Dense copies of K or V, [batch, context, kv_heads, head_dim] each."""
    if not data.case.paged:
        return tensors
    first = data.dense(tensors[0])
    return [first] + [first.clone() for _ in tensors[1:]]
