"""recurrent.py -- layers of vLLM that keep a recurrent state instead of KV: Qwen's (gated delta rule), Kimi's (KDA) and Mamba-2's.

Each class takes the place of vLLM's own one of the same interface. It runs vLLM's code with other functions for decode rows, drafts among them; where
vLLM calls none that could be others', it has a method for steps without prefill. Prompts, convolutions and metadata stay vLLM's. Slot 0 is vLLM's null
slot. Nothing here waits for the GPU or copies from it, so that a captured graph is right for all batches up to its own.
"""
import functools
import inspect
import types

import torch
import vllm.envs as envs
from vllm.forward_context import get_forward_context
from vllm.model_executor.custom_op import PluggableLayer, op_registry_oot
from vllm.model_executor.layers.mamba.gdn import kimi_gdn_linear_attn, qwen_gdn_linear_attn
from vllm.model_executor.layers.mamba.mamba_mixer2 import MambaMixer2

from .. import recurrent as _recurrent

MOST_TOKENS = 16  # of a request in a step
FIRST_SLOT = 1


def register(version):
    """Has vLLM make these layers instead of its own. `version` names the module that is written for this vLLM. A second call changes nothing. Where results
    must not depend on the batch, they stay vLLM's: which kernel is fastest does."""
    if envs.VLLM_BATCH_INVARIANT:
        return
    for layer in (Qwen, KimiApart if version == "v026" else KimiPacked, Mamba):
        own = layer.__mro__[1].__name__
        if own not in op_registry_oot:
            PluggableLayer.register_oot(layer, name=own)


def with_functions(layer, name, **functions):
    """The layer's method `name`, in which these functions stand for globals of its module."""
    code = inspect.unwrap(getattr(type(layer), name))
    made = types.FunctionType(code.__code__, {**code.__globals__, **functions}, code.__name__, code.__defaults__, code.__closure__)
    made.__kwdefaults__ = code.__kwdefaults__
    return types.MethodType(made, layer)


def in_fp32(parameter):
    """The parameter, with its loader, in the type that kernels read it in."""
    made = torch.nn.Parameter(parameter.data.float(), requires_grad=parameter.requires_grad)
    made.__dict__.update(parameter.__dict__)
    return made


def fits(rows, state, tokens=1):
    """Whether leanattn has a kernel for rows of this type on a pool of states [slots, heads, V, K], and so many tokens of a request."""
    return (rows.dtype in (torch.bfloat16, torch.float16) and state.dtype in (torch.float32, torch.bfloat16) and tokens <= MOST_TOKENS
            and all(dim % 32 == 0 and dim <= 256 for dim in state.shape[2:]) and state[0].is_contiguous() and state.data_ptr() % 16 == 0
            and state.stride(0) * state.element_size() % 16 == 0)


def launch(q, k, v, state, slots, offsets, accepted, **options):
    """A step of rows [tokens, heads, columns]. slots: [requests] or [requests, tokens], of which with `accepted` (drafts) the state after each token is
    stored; then requests have their tokens between `offsets`, and else one each."""
    if slots.ndim == 1:
        slots = slots.unsqueeze(1)  # a column of vLLM's block table
    if accepted is not None:
        options.update(accepted=accepted[:len(slots)], token_offsets=offsets, max_tokens=slots.shape[1], snapshots=True)
    return _recurrent(q, k, v, state, slots, first_slot=FIRST_SLOT, **options)


class Qwen(qwen_gdn_linear_attn.QwenGatedDeltaNetAttention):
    """Of Qwen3-Next and Qwen3.5. Both functions of vLLM for decode rows are others here, so that decode rows of steps with prefill count, too."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.dt_bias = in_fp32(self.dt_bias)
        self.enable_fused_gdn_spec_decode = False  # vLLM 0.33: a kernel of its own for drafts, which has the norm
        self._use_leanattn()

    def forward(self, hidden_states):
        # vLLM keeps compiled models by the files that they come from, and one that was compiled with its own layer may have another step for drafts.
        return super().forward(hidden_states)

    def _use_leanattn(self):
        self._forward_core = with_functions(self, "_forward_core", fused_sigmoid_gating_delta_rule_update=_delta_rule)
        self._forward_core_decode_non_spec = with_functions(self, "_forward_core_decode_non_spec",
                                                            fused_recurrent_gated_delta_rule_packed_decode=_packed_delta_rule)


def _packed_delta_rule(mixed_qkv, a, b, A_log, dt_bias, scale, initial_state, out, ssm_state_indices, use_qk_l2norm_in_kernel):
    """In the place of vLLM's fused_recurrent_gated_delta_rule_packed_decode: mixed_qkv [tokens, 2 qk_heads K + v_heads V], out [tokens, 1, v_heads, V]."""
    if not fits(mixed_qkv, initial_state):
        own = qwen_gdn_linear_attn.fused_recurrent_gated_delta_rule_packed_decode
        return own(mixed_qkv, a, b, A_log, dt_bias, scale, initial_state, out, ssm_state_indices, use_qk_l2norm_in_kernel)
    v_heads, value_dim, key_dim = initial_state.shape[1:]
    values = v_heads * value_dim
    keys = (mixed_qkv.shape[1] - values) // 2
    q, k, v = mixed_qkv.split((keys, keys, values), -1)
    launch(q.unflatten(1, (-1, key_dim)), k.unflatten(1, (-1, key_dim)), v.unflatten(1, (v_heads, value_dim)), initial_state, ssm_state_indices, None, None,
           a=a, b=b, a_log=A_log, dt_bias=dt_bias, scale=scale, normalise=use_qk_l2norm_in_kernel, out=out.squeeze(1))
    return out, initial_state


def _delta_rule(A_log, a, b, dt_bias, q, k, v, initial_state, inplace_final_state, cu_seqlens, ssm_state_indices, num_accepted_tokens=None,
                use_qk_l2norm_in_kernel=False):
    """In the place of vLLM's fused_sigmoid_gating_delta_rule_update: q, k [1, tokens, qk_heads, K], v [1, tokens, v_heads, V]. Returns the output, of the
    shape of v, and the states."""
    requests = len(cu_seqlens) - 1
    drafts = num_accepted_tokens is not None
    # vLLM 0.26 gives the gates of all tokens where drafts stand beside prompts. A request without drafts has a token, or there is no kernel.
    if len(a) != q.shape[1] or not drafts and q.shape[1] < requests or not fits(q, initial_state, ssm_state_indices.shape[-1] if drafts else 1):
        return qwen_gdn_linear_attn.fused_sigmoid_gating_delta_rule_update(
            A_log=A_log, a=a, b=b, dt_bias=dt_bias, q=q, k=k, v=v, initial_state=initial_state, inplace_final_state=inplace_final_state,
            cu_seqlens=cu_seqlens, ssm_state_indices=ssm_state_indices, num_accepted_tokens=num_accepted_tokens,
            use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel)
    out, tokens = torch.empty_like(v), None if drafts else requests  # without drafts a request has one token, and rows behind them are padding
    launch(q[0, :tokens], k[0, :tokens], v[0, :tokens], initial_state, ssm_state_indices[:requests], cu_seqlens, num_accepted_tokens, a=a[:tokens],
           b=b[:tokens], a_log=A_log, dt_bias=dt_bias, normalise=use_qk_l2norm_in_kernel, out=out[0, :tokens])
    return out, initial_state


class KimiApart(kimi_gdn_linear_attn.KimiGatedDeltaNetAttention):
    """Of Kimi Linear in vLLM 0.26, which has three convolutions and makes the gates before a step."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._use_leanattn()

    def _use_leanattn(self):
        self._forward = with_functions(self, "_forward", fused_recurrent_kda=_delta_attention)


def _delta_attention(q, k, v, g, beta, initial_state, use_qk_l2norm_in_kernel, cu_seqlens, ssm_state_indices):
    """In the place of vLLM's fused_recurrent_kda: q, k, v [1, tokens, heads, K], g [1, tokens, heads, K] the logarithms of factors, beta [1, tokens, heads]."""
    requests = len(cu_seqlens) - 1
    if q.shape[1] < requests or not fits(q, initial_state):
        return kimi_gdn_linear_attn.fused_recurrent_kda(q=q, k=k, v=v, g=g, beta=beta, initial_state=initial_state, cu_seqlens=cu_seqlens,
                                                        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel, ssm_state_indices=ssm_state_indices)
    out = torch.empty_like(v)
    rows = [tensor[0, :requests] for tensor in (q, k, v)]
    launch(*rows, initial_state, ssm_state_indices[:requests], None, None, kind="kda", gates="given", a=g[0, :requests].float(),
           b=beta[0, :requests].float().contiguous(), normalise=use_qk_l2norm_in_kernel, out=out[0, :requests])
    return out, initial_state


class KimiPacked(kimi_gdn_linear_attn.KimiGatedDeltaNetAttention):
    """Of Kimi Linear from vLLM 0.33 on, with one convolution. A step without prefill is one launch behind it, which makes the gates and has the norm."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.o_norm.weight = in_fp32(self.o_norm.weight)

    def _forward(self, mixed_qkv, g1, g2, beta, core_attn_out):
        from vllm.compilation.breakable_cudagraph import eager_break_during_capture

        eager_break_during_capture(self._step)(mixed_qkv, g1, g2, beta, core_attn_out)

    def _step(self, mixed_qkv, g1, g2, beta, core_attn_out):
        """mixed_qkv [tokens, 3 heads K], g1 [1, tokens, heads, K], beta [1, tokens, heads]: what gates are made of; g2 [tokens, heads, V] the gate of the
        output, core_attn_out [1, tokens, heads, V]."""
        metadata = get_forward_context().attn_metadata
        step = None if metadata is None else metadata.get(self.prefix)
        drafts = step is not None and step.spec_sequence_masks is not None
        slots = None if step is None else step.spec_state_indices_tensor if drafts else step.non_spec_state_indices_tensor
        if step is None or step.num_prefills or drafts and step.num_decodes or not fits(mixed_qkv, self.kv_cache[1], slots.shape[-1] if drafts else 1):
            return inspect.unwrap(super()._forward)(self, mixed_qkv, g1, g2, beta, core_attn_out)
        tokens = step.num_actual_tokens
        requests = step.num_spec_decodes if drafts else tokens
        slots, offsets, accepted = slots[:requests], None, None
        if drafts:
            offsets, accepted = step.spec_query_start_loc[:requests + 1], step.num_accepted_tokens[:requests]
        conv_state = self.kv_cache[0] if kimi_gdn_linear_attn.is_conv_state_dim_first() else self.kv_cache[0].transpose(-1, -2)
        of_drafts = {"num_accepted_tokens": accepted, "query_start_loc": offsets, "max_query_len": slots.shape[-1]} if drafts else {}
        weights = self.conv1d.weight.view(self.conv1d.weight.shape[0], -1)
        rows = kimi_gdn_linear_attn.causal_conv1d_update(mixed_qkv[:tokens], conv_state, weights, self.conv1d.bias, activation="silu",
                                                         conv_state_indices=slots[:, 0] if drafts else slots, validate_data=False,
                                                         out=torch.empty_like(mixed_qkv[:tokens], memory_format=torch.contiguous_format), **of_drafts)
        q, k, v = rows.unflatten(1, (3, -1, self.head_dim)).unbind(1)
        bounded = {} if self.gate_lower_bound is None else {"gates": "bounded", "lower_bound": self.gate_lower_bound}
        launch(q, k, v, self.kv_cache[1], slots, offsets, accepted, kind="kda", a=g1[0, :tokens], b=beta[0, :tokens], a_log=self.A_log, dt_bias=self.dt_bias,
               z=g2[:tokens], norm_weight=self.o_norm.weight, output_gate="sigmoid", output_eps=self.o_norm.eps, out=core_attn_out[0, :tokens], **bounded)


class Mamba(MambaMixer2):
    """Mamba-2. vLLM's function for decode rows is another here."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.D, self.dt_bias = in_fp32(self.D), in_fp32(self.dt_bias)
        load = self.A.weight_loader

        def load_anew(*given, **named):
            self._a_log = None
            load(*given, **named)

        self.A.weight_loader = load_anew
        self._use_leanattn()

    def _use_leanattn(self):
        self._a_log = None
        self.conv_ssm_forward = with_functions(self, "conv_ssm_forward", selective_state_update=functools.partial(_state_space, self))

    @property
    def a_log(self):
        """[heads], fp32: vLLM's A is -exp(a_log)."""
        if self._a_log is None:
            self._a_log = (-self.A.data).log()
        return self._a_log


def _state_space(layer, state, x, dt, A, B, C, D, dt_bias, *, dt_softplus, state_batch_indices, dst_state_batch_indices, out, num_accepted_tokens, cu_seqlens,
                 **more):
    """In the place of vLLM's selective_state_update: x [tokens, heads, P], dt [tokens, heads, P] of which all P are one, B, C [tokens, groups, N]."""
    slots, targets = state_batch_indices[:len(x)], dst_state_batch_indices[:len(x)]
    drafts = num_accepted_tokens is not None
    if not fits(x, state, slots.shape[-1] if drafts else 1) or not dt_softplus:
        from vllm.model_executor.layers.mamba.mamba_mixer2 import selective_state_update

        return selective_state_update(state, x, dt, A, B, C, D, dt_bias, dt_softplus=dt_softplus, out=out, state_batch_indices=state_batch_indices,
                                      dst_state_batch_indices=dst_state_batch_indices, num_accepted_tokens=num_accepted_tokens, cu_seqlens=cu_seqlens, **more)
    apart = {} if dst_state_batch_indices is state_batch_indices else {"out_slots": targets if targets.ndim == 2 else targets.unsqueeze(1)}
    launch(C, B, x, state, slots, cu_seqlens, num_accepted_tokens, kind="mamba2", a=dt[:, :, 0], a_log=layer.a_log, dt_bias=layer.dt_bias, skip=layer.D,
           out=out, **apart)
