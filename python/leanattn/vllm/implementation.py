"""implementation.py -- the attention of a layer in vLLM: the rows that a step's metadata names run on leanattn, and all others on vLLM's own backend for
the layer's cache: FlashAttention, or Triton's where the scales of tokens lie in the rows."""
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


#: vLLM's names of caches whose tokens have a scale for each head, behind the row: ours of the elements, and how many of these a byte has.
IN_ROW = {"int4_per_token_head": ("int4", 2), "int8_per_token_head": ("int8", 1), "fp8_per_token_head": ("fp8_e4m3", 1)}
SCALE_BYTES = 4


def takes_all_query_tokens(head_size, kv_cache_dtype):
    """Whether leanattn takes all query tokens of such a layer: where the family wgmma_prefill has it, or FlashAttention does not. FlashAttention is faster
    at prefill than the other families, which are made for decode."""
    if kv_cache_dtype in IN_ROW:
        return head_size % (64 if kv_cache_dtype.startswith("int4") else 16) == 0 and head_size <= 512
    return current_platform.is_device_capability_family(90) and head_size % 64 == 0 and head_size <= 256 and not is_one_byte(kv_cache_dtype)


def is_one_byte(kv_cache_dtype):
    """Whether elements are one byte with scales that vLLM keeps in the layer."""
    return kv_cache_dtype is not None and kv_cache_dtype.startswith("fp8") and kv_cache_dtype not in IN_ROW


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
        self.mask = "causal" if attn_type == AttentionType.DECODER else "full"
        self.packed = attn_type in (AttentionType.ENCODER, AttentionType.ENCODER_ONLY)  #: K and V are the step's own, and there is no cache
        self._cache_dtype = None if self.packed else kv_cache_dtype
        on_one_rank = not self._over_ranks and not self.batch_invariant_enabled
        kernels = on_one_rank and takes_all_query_tokens(head_size, self._cache_dtype)
        if self.mask == "causal":
            # A rank of a context-parallel group has tokens from all over a context, and does not know where they stand in it. So it has no windows and
            # no ALiBi; and a sink would count on every rank.
            self.decodes_here = not self._over_ranks or not (self.window or alibi_slopes is not None or sinks is not None)
        else:
            # FlashAttention's ALiBi falls to both sides here. Query tokens that look at an encoder's have no place among these.
            self.decodes_here = alibi_slopes is None and (kernels if self.packed else on_one_rank and not self.window)
        self.prefills_here = self.decodes_here and kernels
        if self.decodes_here and self._query_heads > plans.LARGEST_GROUP * num_kv_heads:
            raise ValueError(f"{self._query_heads} query heads share {num_kv_heads} KV heads, but leanattn has at most {plans.LARGEST_GROUP} "
                             "for each. Choose another --attention-backend")
        if kv_cache_dtype in IN_ROW and not self.prefills_here:
            raise ValueError(f"leanattn has no kernels for this layer beside a cache of {kv_cache_dtype}: over ranks that share contexts, with "
                             "VLLM_BATCH_INVARIANT, and for some encoders there are none. Choose --attention-backend TRITON_ATTN")
        self._constant = self._views = None
        # FlashAttention wants queries as fp8 beside an fp8 cache, and leanattn as they are. So the layer is told to leave them.
        self.supports_quant_query_input = False
        self._fp8_queries = None
        if self._one_byte:
            by_head = head_size * (num_heads // num_kv_heads)
            self._fp8_queries = {False: QuantFP8(static=True, group_shape=GroupShape.PER_TENSOR),
                                 True: QuantFP8(static=True, group_shape=GroupShape(-1, by_head))}
        if self.in_row or not self.prefills_here:
            self.other  # noqa: B018  (not in a step)

    @functools.cached_property
    def other(self):
        """vLLM's own implementation, for the rows that leanattn does not compute. A model without such rows never imports FlashAttention's."""
        if self.in_row:
            from vllm.v1.attention.backends.triton_attn import TritonAttentionImpl as Own
        else:
            from vllm.v1.attention.backends.flash_attn import FlashAttentionImpl as Own

        with set_current_vllm_config(self._vllm_config):
            made = Own(*self._arguments, self.sinks)
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
        return is_one_byte(self._cache_dtype)

    @property
    def in_row(self):
        """Whether the scales of tokens lie in the rows of the cache."""
        return self._cache_dtype in IN_ROW

    @property
    def _kv_dtype(self):
        return IN_ROW[self.kv_cache_dtype][0] if self.in_row else "fp8_e4m3" if self._one_byte else None

    @property
    def _rotated(self):
        """Whether vLLM rotates keys and values before it writes them. Then so are queries, and the result."""
        return self._kv_dtype == "int4"

    def options(self, layer):
        """What the kernels of this layer depend on."""
        by_head = self._one_byte and layer._k_scale.numel() > 1
        return plans.Options(
            q_heads=self._query_heads, kv_heads=self.num_kv_heads, head_dim=self.head_size, window=self.window, sink_logits=self.sinks is not None,
            alibi=self.alibi_slopes is not None, soft_cap=self.soft_cap, kv_dtype=self._kv_dtype, mask=self.mask, packed_kv=self.packed,
            kv_scale="in_row" if self.in_row else "head" if by_head else "tensor", lse=self._over_ranks)

    def process_weights_after_loading(self, act_dtype):
        super().process_weights_after_loading(act_dtype)
        self._constant = self._constant_arguments()

    def do_kv_cache_update(self, layer, key, value, kv_cache, slot_mapping):
        if self.in_row:  # vLLM's own way, with the rotation, and as bytes that all of its backends read
            self.other.do_kv_cache_update(layer, key, value, kv_cache, slot_mapping)
        elif not self.packed:
            caches = kv_cache.transpose(1, 2).split(self.head_size, dim=-1)
            reshape_and_cache_flash(key, value, *caches, slot_mapping, self.kv_cache_dtype, layer._k_scale, layer._v_scale)

    def forward(self, layer, query, key, value, kv_cache, attn_metadata, output, output_scale=None, output_block_scale=None):
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError("leanattn does not quantise its output; fused_output_quant_supported says so")
        if attn_metadata is None:  # while memory is profiled
            return output.fill_(0)
        rows = getattr(attn_metadata, "rows", None)
        if rows is None:
            return self._by_other(layer, query, key, value, kv_cache, attn_metadata, output)
        self._decode(layer, query, (key, value) if self.packed else kv_cache, rows, attn_metadata.mm_prefix_range_tensor, output)
        rest = attn_metadata.rest
        if rest is not None:
            # The rows of the other implementation begin where those of leanattn end.
            part = slice(rows.tokens, rows.tokens + rest.num_actual_tokens)
            self._by_other(layer, query[part], _part(key, part), _part(value, part), kv_cache, rest, output[part])
        return output

    def _decode(self, layer, query, kv, rows, spans, output):
        """`kv`: the layer's cache, or K and V of the step."""
        if query.shape[0] != rows.tokens:
            query, output = query[:rows.tokens], output[:rows.tokens]
        if self._constant is None:
            self._constant = self._constant_arguments()
        if self.packed:
            kv, more = (*kv, None), {"kv_offsets": rows.offsets}
        else:
            *kv, more = self._caches(layer, kv)
            kv = (*kv, rows.lengths, rows.page_table)
        result = {"out": output}
        if self._rotated:
            query = _rotation()(query.float()).to(query.dtype)
        if self._over_ranks:
            # Each rank computes the query heads of all ranks over its own tokens, and gets the result of its own heads.
            group, result = get_dcp_group(), {"return_lse": True}
            query = group.all_gather(query.contiguous(), dim=1)
        made = leanattn.decode(query, *kv, q_offsets=rows.offsets, max_q_len=rows.most_tokens, spans=spans, shape=rows.shape,
                               engine=rows.device.engine, workspace=rows.device.workspace, **result, **more, **self._constant)
        if self._over_ranks:
            output.copy_(self.other.dcp_combine(*made, group, is_lse_base_on_e=True))
        if self._rotated:
            output.copy_(_rotation()(output.float(), inverse=True) / _growth(self.head_size))

    def _caches(self, layer, kv_cache):
        """K and V, [pages, kv_heads, page_size, columns], and the arguments that give their scales."""
        if not self.in_row:
            scales = {"k_scale": layer._k_scale, "v_scale": layer._v_scale} if self._one_byte else {}
            return *kv_cache.split(self.head_size, dim=-1), scales
        if self._views is None or self._views[0] is not kv_cache:
            # A row of K, its scale, a row of V, and its scale; in fp32, as are those of the layer.
            row, words = self.head_size // IN_ROW[self.kv_cache_dtype][1], kv_cache.view(layer._k_scale.dtype)
            side = row + SCALE_BYTES
            self._views = (kv_cache, (kv_cache[..., :row], kv_cache[..., side:side + row],
                                      {"k_scale": words[..., row // SCALE_BYTES], "v_scale": words[..., (side + row) // SCALE_BYTES]}))
        return self._views[1]

    def _by_other(self, layer, query, key, value, kv_cache, metadata, output):
        if self._fp8_queries is not None and self.other.supports_quant_query_input:
            by_head = layer._q_scale.numel() > 1
            flat = query.reshape(query.shape[0], self.num_heads * self.head_size)
            query = self._fp8_queries[by_head](flat, layer._q_scale)[0].view(query.shape)
        return self.other.forward(layer, query, key, value, kv_cache, metadata, output)

    def _constant_arguments(self):
        """The arguments that are the same in every step."""
        scale = self.scale / _growth(self.head_size) if self._rotated else self.scale
        made = {"scale": scale, "window": self.window, "soft_cap": self.soft_cap, "batch_invariant": bool(self.batch_invariant_enabled)}
        if self.sinks is not None:
            made["sink_logits"] = self._sink_logits()
        if self.alibi_slopes is not None:
            made["alibi_slopes"] = self.alibi_slopes
        if self._kv_dtype is not None:
            made["kv_dtype"] = self._kv_dtype
        if self.mask != "causal":
            made["mask"] = self.mask
        return made

    def _sink_logits(self):
        """The sinks in the type of the kernels. Weights that are loaded again go to the same memory, which captured graphs read."""
        if self._constant is None:
            return self.sinks.detach().float().contiguous()
        return self._constant["sink_logits"].copy_(self.sinks.detach())


@functools.cache
def _rotation():
    """What vLLM turns rows by that become four bits: random signs and a Hadamard matrix without a factor."""
    from vllm.v1.attention.ops.int4_per_token_head import single_rht

    return single_rht


def _growth(head_size):
    """The squared factor by which rotated rows are longer: the size of the matrix, the largest power of two that divides a row."""
    return head_size & -head_size


def _slopes(given):
    if given is None:
        return None
    import torch  # here, so that this module can be held against vLLM's interface without it

    return torch.tensor(given, dtype=torch.float32)


def _part(tensor, part):
    """A layer that shares another's cache has neither keys nor values of its own."""
    return None if tensor is None else tensor[part]
