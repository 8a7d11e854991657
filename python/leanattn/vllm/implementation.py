"""implementation.py -- the attention of a layer in vLLM: rows with few query tokens on leanattn, all others on FlashAttention."""
import leanattn
from vllm.distributed.parallel_state import get_dcp_group
from vllm.model_executor.layers.quantization.input_quant_fp8 import QuantFP8
from vllm.model_executor.layers.quantization.utils.quant_utils import GroupShape
from vllm.v1.attention.backend import AttentionType
from vllm.v1.attention.backends.flash_attn import FlashAttentionImpl

from .._serving import plans


class Implementation(FlashAttentionImpl):
    """It is a FlashAttentionImpl for what vLLM reads of one and for the update of the cache. Attention itself is leanattn's or that of `flash`."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.flash = FlashAttentionImpl(*args, **kwargs)
        # A rank of a context-parallel group has tokens from all over a context, and does not know where they stand in it. So it has no windows and no
        # ALiBi; and a sink would count on every rank.
        whole = self._window or self.alibi_slopes is not None or self.sinks is not None
        self.decodes_here = self.attn_type == AttentionType.DECODER and not (self._over_ranks and whole)
        if self.decodes_here and self._query_heads > plans.LARGEST_GROUP * self.num_kv_heads:
            raise ValueError(f"{self._query_heads} query heads share {self.num_kv_heads} KV heads, but leanattn has at most {plans.LARGEST_GROUP} "
                             "for each. Choose another --attention-backend")
        self._constant = None
        # FlashAttention wants queries as fp8 beside an fp8 cache, and leanattn as they are. So the layer is told to leave them.
        self._fp8_queries = None
        if self._one_byte and self.supports_quant_query_input:
            self.supports_quant_query_input = False
            by_head = self.head_size * (self.num_heads // self.num_kv_heads)
            self._fp8_queries = {False: QuantFP8(static=True, group_shape=GroupShape.PER_TENSOR),
                                 True: QuantFP8(static=True, group_shape=GroupShape(-1, by_head))}

    @property
    def _over_ranks(self):
        """Whether the tokens of a context are spread over the ranks of a group (decode context parallelism)."""
        return self.dcp_world_size > 1

    @property
    def _query_heads(self):
        """Those of a launch: of all ranks that hold a part of the same contexts."""
        return self.num_heads * self.dcp_world_size

    @property
    def _one_byte(self):
        return self.kv_cache_dtype.startswith("fp8")

    def options(self, layer):
        """What the kernels of this layer depend on."""
        by_head = self._one_byte and layer._k_scale.numel() > 1
        return plans.Options(
            q_heads=self._query_heads, kv_heads=self.num_kv_heads, head_dim=self.head_size, window=self._window, sink_logits=self.sinks is not None,
            alibi=self.alibi_slopes is not None, soft_cap=float(self.logits_soft_cap or 0.0), kv_dtype="fp8_e4m3" if self._one_byte else None,
            kv_scale="head" if by_head else "tensor", lse=self._over_ranks)

    def process_weights_after_loading(self, act_dtype):
        super().process_weights_after_loading(act_dtype)
        self._constant = self._constant_arguments()

    def forward(self, layer, query, key, value, kv_cache, attn_metadata, output, output_scale=None, output_block_scale=None):
        rows = getattr(attn_metadata, "rows", None)
        if rows is None:
            return self._flash(layer, query, key, value, kv_cache, attn_metadata, output, output_scale, output_block_scale)
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError("leanattn does not quantise its output; fused_output_quant_supported says so")
        self._decode(layer, query, kv_cache, rows, output)
        prefill = attn_metadata.prefill
        if prefill is not None:
            # The rows of FlashAttention begin where those of leanattn end.
            part = slice(rows.tokens, rows.tokens + prefill.num_actual_tokens)
            self._flash(layer, query[part], _part(key, part), _part(value, part), kv_cache, prefill, output[part])
        return output

    def _decode(self, layer, query, kv_cache, rows, output):
        if query.shape[0] != rows.tokens:
            query, output = query[:rows.tokens], output[:rows.tokens]
        if self._constant is None:
            self._constant = self._constant_arguments()
        k_cache, v_cache = kv_cache.split(self.head_size, dim=-1)  # [pages, kv_heads, page_size, 2 * head_size]
        scales = {"k_scale": layer._k_scale, "v_scale": layer._v_scale} if self._one_byte else {}
        result = {"out": output}
        if self._over_ranks:
            # Each rank computes the query heads of all ranks over its own tokens, and gets the result of its own heads.
            group, result = get_dcp_group(), {"return_lse": True}
            query = group.all_gather(query.contiguous(), dim=1)
        made = leanattn.decode(query, k_cache, v_cache, rows.lengths, rows.page_table, q_offsets=rows.offsets, max_q_len=rows.most_tokens,
                               typical_batch=rows.batch, longest_context=rows.context, engine=rows.device.engine, workspace=rows.device.workspace,
                               **result, **scales, **self._constant)
        if self._over_ranks:
            output.copy_(self.dcp_combine(*made, group, is_lse_base_on_e=True))

    def _flash(self, layer, query, key, value, kv_cache, metadata, output, *scales):
        if self._fp8_queries is not None and metadata is not None:
            by_head = layer._q_scale.numel() > 1
            flat = query.reshape(query.shape[0], self.num_heads * self.head_size)
            query = self._fp8_queries[by_head](flat, layer._q_scale)[0].view(query.shape)
        return self.flash.forward(layer, query, key, value, kv_cache, metadata, output, *scales)

    @property
    def _window(self):
        left = self.sliding_window[0]  # tokens to the left of the query's own
        return left + 1 if left >= 0 else 0

    def _constant_arguments(self):
        """The arguments that are the same in every step."""
        made = {"scale": self.scale, "window": self._window, "soft_cap": float(self.logits_soft_cap or 0.0),
                "batch_invariant": bool(self.batch_invariant_enabled)}
        if self.sinks is not None:
            made["sink_logits"] = self._sink_logits()
        if self.alibi_slopes is not None:
            made["alibi_slopes"] = self.alibi_slopes
        if self._one_byte:
            made["kv_dtype"] = "fp8_e4m3"
        return made

    def _sink_logits(self):
        """The sinks in the type of the kernels. Weights that are loaded again go to the same memory, which captured graphs read."""
        if self._constant is None:
            return self.sinks.detach().float().contiguous()
        return self._constant["sink_logits"].copy_(self.sinks.detach())


def _part(tensor, part):
    """A layer that shares another's cache has neither keys nor values of its own."""
    return None if tensor is None else tensor[part]
