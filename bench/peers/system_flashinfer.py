"""system_flashinfer.py -- FlashInfer's decode kernels on a paged cache: CUDA-core, tensor-core, persistent and XQA, each with and without
programmatic dependent launch where it offers that. plan() is host work that must be done whenever lengths change; it is timed separately.

A variant's name has the kernel, the kind of plan and the page layout: "tensor-core exact NHD".
"""
import importlib
import math

import torch

from . import data as case_data
from . import systems
from .shapes import PAGE_SIZE

WORKSPACE_BYTES = 512 << 20
PERSISTENT_WORKSPACE_BYTES = 6 << 30  # it needs about 40 MB for each KV head of 128, and does not plan with less


class PageTable:
    """Which pages each request has: request i's are first[i] ... first[i] + its page count - 1. Host tensors, as plan() wants them, and what
    the kernels read on the GPU."""

    def __init__(self, lengths, first, device="cuda"):
        counts = [-(-length // PAGE_SIZE) for length in lengths]
        self.lengths = torch.tensor(lengths, dtype=torch.int32)
        self.indptr = torch.zeros(len(lengths) + 1, dtype=torch.int32)
        self.indptr[1:] = torch.tensor(counts, dtype=torch.int32).cumsum(0)
        self.last_page_len = (self.lengths - 1) % PAGE_SIZE + 1
        first = torch.tensor(first, dtype=torch.int32).unsqueeze(1)
        # [batch, most pages]; entries past a request's own are never read.
        table = first + torch.arange(max(counts), dtype=torch.int32).unsqueeze(0)
        owned = torch.arange(max(counts)).unsqueeze(0) < torch.tensor(counts).unsqueeze(1)
        self.indices = table[owned].to(device)
        self.table = torch.where(owned, table, 0).to(device)
        self.device_lengths = self.lengths.to(device)


class WrapperKernel:
    """BatchDecodeWithPagedKVCacheWrapper. Its plan holds for a captured graph of this batch with any lengths (use_cuda_graph), or, if `exact`, for
    these lengths alone. The second may be faster, since its grid has no CTA without work."""

    def __init__(self, module, workspace, layout, batch, most_pages, tensor_cores, exact):
        device = workspace.device
        buffers = {} if exact else dict(
            use_cuda_graph=True, paged_kv_indptr_buffer=torch.zeros(batch + 1, dtype=torch.int32, device=device),
            paged_kv_indices_buffer=torch.zeros(most_pages, dtype=torch.int32, device=device),
            paged_kv_last_page_len_buffer=torch.zeros(batch, dtype=torch.int32, device=device))
        self.wrapper = module.BatchDecodeWithPagedKVCacheWrapper(workspace, layout, use_tensor_cores=tensor_cores, **buffers)

    def plan(self, pages, q_heads, kv_heads, head_dim):
        self.wrapper.plan(pages.indptr, pages.indices, pages.last_page_len, q_heads, kv_heads, head_dim, PAGE_SIZE,
                          q_data_type=torch.bfloat16, kv_data_type=torch.bfloat16)

    def run(self, q, kv, out, pdl):
        self.wrapper.run(q, kv, out=out, enable_pdl=pdl)


class PersistentKernel:
    """BatchAttention, the persistent kernel. It has no switch for programmatic dependent launch."""

    def __init__(self, module, workspace, layout, batch):
        self.wrapper = module.BatchAttention(layout)
        # Its own 384 MB do not hold the partial results of many KV heads.
        self.wrapper.float_workspace_buffer = workspace
        self.qo_indptr = torch.arange(batch + 1, dtype=torch.int32)

    def plan(self, pages, q_heads, kv_heads, head_dim):
        self.wrapper.plan(self.qo_indptr, pages.indptr, pages.indices, pages.lengths, q_heads, kv_heads, head_dim, head_dim, PAGE_SIZE,
                          q_data_type=torch.bfloat16, kv_data_type=torch.bfloat16)

    def run(self, q, kv, out, pdl):
        assert not pdl
        self.wrapper.run(q, kv, out=out)


class XqaKernel:
    """XQA: no plan; it reads the page table and the lengths on the GPU."""

    def __init__(self, module, workspace, layout):
        self.module, self.workspace, self.layout = module, workspace, layout

    def plan(self, pages, q_heads, kv_heads, head_dim):
        self.table, self.lengths = pages.table, pages.device_lengths.view(torch.uint32)
        self.longest = int(pages.lengths.max())

    def run(self, q, kv, out, pdl):
        self.module.decode.xqa_batch_decode_with_kv_cache(
            q, kv, self.workspace, self.table, self.lengths, self.longest, bmm1_scale=1 / math.sqrt(q.shape[-1]), bmm2_scale=1.0,
            out=out, kv_layout=self.layout, enable_pdl=pdl)


class FlashInferSystem:
    name = "FlashInfer"
    KERNELS = ["cuda-core", "tensor-core", "cuda-core exact", "tensor-core exact", "persistent", "xqa"]

    def __init__(self, layouts=case_data.LAYOUTS):
        """Raises ImportError where it is not installed."""
        self.module = importlib.import_module("flashinfer")
        self.layouts = layouts
        self.workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
        # XQA keeps semaphores in its workspace and expects them zero.
        self.xqa_workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
        self.persistent_workspace = torch.zeros(PERSISTENT_WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")

    def versions(self):
        return {"flashinfer": self.module.__version__}

    def pdl_choices(self, kernel):
        return [False] if kernel == "persistent" else [False, True]

    def kernel(self, name, layout, batch, most_pages):
        """A kernel object with plan(pages, q_heads, kv_heads, head_dim) and run(q, (k_pages, v_pages), out, pdl)."""
        if name == "persistent":
            return PersistentKernel(self.module, self.persistent_workspace, layout, batch)
        if name == "xqa":
            return XqaKernel(self.module, self.xqa_workspace, layout)
        return WrapperKernel(self.module, self.workspace, layout, batch, most_pages, name.startswith("tensor-core"), name.endswith("exact"))

    def candidates(self, data, attempt):
        case = data.case
        pages = PageTable(case.lengths, [sum(data.pages_of[:request]) for request in range(case.batch)])
        return [candidate for layout in self.layouts for name in self.KERNELS for candidate in self.variant(data, pages, name, layout, attempt)]

    def variant(self, data, pages, name, layout, attempt):
        """One kernel and layout, with and without dependent launch; one plan serves both."""
        case, planned = data.case, {}
        variant = f"{name} {layout}"

        def candidate(pdl):
            if not planned:
                kernel = self.kernel(name, layout, case.batch, sum(data.pages_of))
                plan = lambda: kernel.plan(pages, case.q_heads, case.kv_heads, case.head_dim)
                plan()
                planned.update(kernel=kernel, plan_us=None if name == "xqa" else systems.host_us(plan))
            kernel, caches = planned["kernel"], data.paged(layout)
            outputs = [data.output() for _ in range(data.copies)]

            def launch(copy):
                kernel.run(data.q, caches[copy], outputs[copy], pdl)

            return systems.Candidate(self.name, variant, launch, lambda copy: outputs[copy], pdl, planned["plan_us"])

        return [attempt(variant, pdl, lambda: candidate(pdl)) for pdl in self.pdl_choices(name)]
