"""selected.py -- latent attention over selected tokens in vLLM (DeepSeek V3.2 and its kin): what an indexer chose for each query token.

vLLM's own backend for FlashMLA has the cache, its metadata, prefill, and the lists of what was chosen as places in the pool. It calls one of two
kernels with rows of query tokens. Where these are as few as decode steps have, leanattn answers in the kernel's place, each query token as a request.
"""
import leanattn
from vllm.v1.attention.backends.mla.flashmla_sparse import FlashMLASparseBackend, FlashMLASparseImpl, FlashMLASparseMetadataBuilder

from .._serving import plans
from .step_plans import make_plans

PACKED = "fp8_ds_mla"  # vLLM's and leanattn's name of rows of 656 bytes
PAGE = 64  # tokens; both kernels read such pages, or rows without pages


class SelectedPlans:
    """The plans for all numbers of query tokens that decode steps may have. `most` is the largest."""

    def __init__(self, options, builder):
        vllm_config, entries = builder.vllm_config, builder.topk_tokens
        drafts = vllm_config.speculative_config.num_speculative_tokens if vllm_config.speculative_config else 0
        self.most = vllm_config.scheduler_config.max_num_seqs * (1 + drafts)
        graphs = vllm_config.compilation_config.cudagraph_capture_sizes or ()
        self._sizes = plans.Sizes(plans.batches_for(graphs, self.most), entries)
        problems = tuple(plans.problem_of(one, dtype=plans.dtype_name(vllm_config.model_config.dtype), page_size=PAGE) for one in options)
        self.device = plans.device(plans.ordinal_of(builder.device))
        make_plans(self.device, problems, self._sizes)
        # Entries of a list that name nothing are skipped, wherever they stand.
        self._counts = builder.topk_tokens_tensor.new_full((self.most,), entries, dtype=builder.topk_tokens_tensor.dtype)

    def arguments(self, rows, counts):
        """Those of a launch for so many query tokens that depend on the step. `counts` [rows]: entries that count; None: all."""
        return {"selected_counts": self._counts[:rows] if counts is None else counts, "typical_batch": self._sizes.batch_for(rows),
                "longest_context": self._sizes.context, "engine": self.device.engine, "workspace": self.device.workspace}


class SelectedImplementation(FlashMLASparseImpl):
    plans = None  # SelectedPlans, from the builder of its metadata; without them all rows are FlashMLA's

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        if self.num_heads > plans.LARGEST_GROUP:
            raise ValueError(f"{self.num_heads} query heads share a latent cache, but leanattn has at most {plans.LARGEST_GROUP}. "
                             "Choose another --attention-backend")

    def options(self, layer):
        """What the kernels of this layer depend on."""
        return plans.Options(q_heads=self.num_heads, kv_heads=1, head_dim=self.kv_lora_rank + self.qk_rope_head_dim, v_head_dim=self.kv_lora_rank,
                             latent=True, kv_layout="HND", kv_dtype=PACKED if self._packed else None, selection_block=1, selection_in_pool=True)

    @property
    def _packed(self):
        return self.kv_cache_dtype == PACKED

    def _fp8_flash_mla_kernel(self, q, kv_c_and_k_pe_cache, topk_indices, kernel_metadata):
        """q: [requests, tokens, heads, latent + rope]; the cache: [pages, 64, 656]; topk_indices: [requests, tokens, entries], places in the pool.
        Returns [requests, tokens, heads, latent], and no log-sum-exp, for which vLLM asks over ranks only."""
        requests, tokens, heads, width = q.shape
        if not self._takes(requests * tokens):
            return super()._fp8_flash_mla_kernel(q, kv_c_and_k_pe_cache, topk_indices, kernel_metadata)
        import torch  # here, so that this module can be held against vLLM's interface without it

        made = self._decode(q.reshape(requests * tokens, heads, width), kv_c_and_k_pe_cache.view(torch.uint8), topk_indices, None, kv_dtype=PACKED)
        return made.view(requests, tokens, heads, self.kv_lora_rank), None

    def _bf16(self, q, rows, topk_indices, counts, heads):
        """The same in place of vLLM's other kernel. q: [tokens, heads or more, latent + rope]; rows: [..., latent + rope]; counts: [tokens] or None.
        Returns [tokens, heads, latent], or None for what is FlashMLA's: prefill beside a packed cache, whose rows lie in a workspace."""
        width = rows.shape[-1]
        if self._packed or not self._takes(q.shape[0]) or rows.numel() % (PAGE * width):
            return None
        return self._decode(q if q.shape[1] == heads else q[:, :heads], rows.view(-1, PAGE, width), topk_indices, counts)

    def _takes(self, rows):
        return self.plans is not None and 0 < rows <= self.plans.most

    def _decode(self, q, pages, topk_indices, counts, **packed):
        out = q.new_empty((q.shape[0], q.shape[1], self.kv_lora_rank))
        return leanattn.decode(q, pages, None, None, out=out, v_head_dim=self.kv_lora_rank, scale=self.softmax_scale,
                               selection=topk_indices.view(q.shape[0], 1, topk_indices.shape[-1]), **self.plans.arguments(q.shape[0], counts), **packed)


class SelectedBuilderBase(FlashMLASparseMetadataBuilder):
    """vLLM's own metadata. When a builder is made, its layers get their plans."""

    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        layers = vllm_config.compilation_config.static_forward_context
        found = [(layers[name].impl, layers[name]) for name in layer_names]
        # Over ranks vLLM needs FlashMLA's log-sum-exp, and a cache that is partly on the host has places of its own.
        if self.dcp_world_size > 1 or getattr(self, "use_hisparse", False):
            return
        made = SelectedPlans({impl.options(layer) for impl, layer in found}, self)
        for impl, _ in found:
            impl.plans = made


class SelectedBackendBase(FlashMLASparseBackend):
    supported_kv_cache_dtypes = ["auto", "bfloat16", PACKED]

    @staticmethod
    def get_name():
        return "CUSTOM"

    @staticmethod
    def get_builder_cls():
        return SelectedBuilderBase

    @classmethod
    def get_supported_head_sizes(cls):
        return [576]

    @classmethod
    def supports_compute_capability(cls, capability):
        return capability.major == 9
