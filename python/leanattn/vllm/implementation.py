"""implementation.py -- the attention of a layer in vLLM: the rows that a step's metadata names run on leanattn, and all others on FlashAttention."""
import functools

import leanattn
import vllm.envs as envs
from vllm._custom_ops import reshape_and_cache_flash
from vllm.config.vllm import get_current_vllm_config_or_none, set_current_vllm_config
from vllm.distributed.parallel_state import get_dcp_group
from vllm.model_executor.layers.quantization.input_quant_fp8 import QuantFP8
from vllm.model_executor.layers.quantization.utils.quant_utils import GroupShape
from vllm.platforms import current_platform
from vllm.v1.attention.backend import AttentionImpl, AttentionType

from .._serving import plans


def has_prefill_kernels(head_size, kv_cache_dtype):
    """Whether the family wgmma_prefill takes such a layer. FlashAttention is faster at prefill than the other families, which are made for decode."""
    return current_platform.is_device_capability_family(90) and head_size % 64 == 0 and head_size <= 256 and not is_one_byte(kv_cache_dtype)


def is_one_byte(kv_cache_dtype):
    return kv_cache_dtype is not None and kv_cache_dtype.startswith("fp8")


class Implementation(AttentionImpl):
    can_return_lse_for_decode = True
    supports_dcp = True

    def __init__(self, num_heads, head_size, scale, num_kv_heads, alibi_slopes, sliding_window, kv_cache_dtype,
                 logits_soft_cap=None, attn_type=AttentionType.DECODER, kv_sharing_target_layer_name=None, sinks=None):
        self._arguments = (num_heads, head_size, scale, num_kv_heads, alibi_slopes, sliding_window, kv_cache_dtype, logits_soft_cap, attn_type,
                           kv_sharing_target_layer_name)
        self._vllm_config = get_current_vllm_config_or_none()
        self.num_heads, self.head_size, self.scale, self.num_kv_heads = num_heads, head_size, float(scale), num_kv_heads
        self.kv_cache_dtype, self.attn_type, self.sinks = kv_cache_dtype, attn_type, sinks
        self.kv_sharing_target_layer_name, self.batch_invariant_enabled = kv_sharing_target_layer_name, envs.VLLM_BATCH_INVARIANT
        self.window, self.soft_cap, self.alibi_slopes = sliding_window or 0, float(logits_soft_cap or 0.0), _slopes(alibi_slopes)
        # A rank of a context-parallel group has tokens from all over a context, and does not know where they stand in it. So it has no windows and no
        # ALiBi; and a sink would count on every rank.
        whole = self.window or alibi_slopes is not None or sinks is not None
        self.decodes_here = attn_type == AttentionType.DECODER and not (self._over_ranks and whole)
        self.prefills_here = (self.decodes_here and not self._over_ranks and not self.batch_invariant_enabled
                              and has_prefill_kernels(head_size, kv_cache_dtype))
        if self.decodes_here and self._query_heads > plans.LARGEST_GROUP * num_kv_heads:
            raise ValueError(f"{self._query_heads} query heads share {num_kv_heads} KV heads, but leanattn has at most {plans.LARGEST_GROUP} "
                             "for each. Choose another --attention-backend")
        self._constant = None
        # FlashAttention wants queries as fp8 beside an fp8 cache, and leanattn as they are. So the layer is told to leave them.
        self.supports_quant_query_input = False
        self._fp8_queries = None
        if self._one_byte:
            by_head = head_size * (num_heads // num_kv_heads)
            self._fp8_queries = {False: QuantFP8(static=True, group_shape=GroupShape.PER_TENSOR),
                                 True: QuantFP8(static=True, group_shape=GroupShape(-1, by_head))}
        if not self.prefills_here:
            self.flash  # noqa: B018  (not in a step)

    @functools.cached_property
    def flash(self):
        """vLLM's own implementation, for the rows that leanattn does not compute. A model without such rows never imports it."""
        from vllm.v1.attention.backends.flash_attn import FlashAttentionImpl

        with set_current_vllm_config(self._vllm_config):
            made = FlashAttentionImpl(*self._arguments, self.sinks)
        made.alibi_slopes = self.alibi_slopes
        return made

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
        return is_one_byte(self.kv_cache_dtype)

    def options(self, layer):
        """What the kernels of this layer depend on."""
        by_head = self._one_byte and layer._k_scale.numel() > 1
        return plans.Options(
            q_heads=self._query_heads, kv_heads=self.num_kv_heads, head_dim=self.head_size, window=self.window, sink_logits=self.sinks is not None,
            alibi=self.alibi_slopes is not None, soft_cap=self.soft_cap, kv_dtype="fp8_e4m3" if self._one_byte else None,
            kv_scale="head" if by_head else "tensor", lse=self._over_ranks)

    def process_weights_after_loading(self, act_dtype):
        super().process_weights_after_loading(act_dtype)
        self._constant = self._constant_arguments()

    def do_kv_cache_update(self, layer, key, value, kv_cache, slot_mapping):
        if self.attn_type not in (AttentionType.ENCODER, AttentionType.ENCODER_ONLY):
            caches = kv_cache.transpose(1, 2).split(self.head_size, dim=-1)
            reshape_and_cache_flash(key, value, *caches, slot_mapping, self.kv_cache_dtype, layer._k_scale, layer._v_scale)

    def forward(self, layer, query, key, value, kv_cache, attn_metadata, output, output_scale=None, output_block_scale=None):
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError("leanattn does not quantise its output; fused_output_quant_supported says so")
        if attn_metadata is None:  # while memory is profiled
            return output.fill_(0)
        rows = getattr(attn_metadata, "rows", None)
        if rows is None:
            return self._flash(layer, query, key, value, kv_cache, attn_metadata, output)
        self._decode(layer, query, kv_cache, rows, output)
        rest = attn_metadata.rest
        if rest is not None:
            # The rows of FlashAttention begin where those of leanattn end.
            part = slice(rows.tokens, rows.tokens + rest.num_actual_tokens)
            self._flash(layer, query[part], _part(key, part), _part(value, part), kv_cache, rest, output[part])
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
                               shape=rows.shape, engine=rows.device.engine, workspace=rows.device.workspace,
                               **result, **scales, **self._constant)
        if self._over_ranks:
            output.copy_(self.flash.dcp_combine(*made, group, is_lse_base_on_e=True))

    def _flash(self, layer, query, key, value, kv_cache, metadata, output):
        if self._fp8_queries is not None and self.flash.supports_quant_query_input:
            by_head = layer._q_scale.numel() > 1
            flat = query.reshape(query.shape[0], self.num_heads * self.head_size)
            query = self._fp8_queries[by_head](flat, layer._q_scale)[0].view(query.shape)
        return self.flash.forward(layer, query, key, value, kv_cache, metadata, output)

    def _constant_arguments(self):
        """The arguments that are the same in every step."""
        made = {"scale": self.scale, "window": self.window, "soft_cap": self.soft_cap, "batch_invariant": bool(self.batch_invariant_enabled)}
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


def _slopes(given):
    if given is None:
        return None
    import torch  # here, so that this module can be held against vLLM's interface without it

    return torch.tensor(given, dtype=torch.float32)


def _part(tensor, part):
    """A layer that shares another's cache has neither keys nor values of its own."""
    return None if tensor is None else tensor[part]
