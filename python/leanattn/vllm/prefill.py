"""prefill.py -- prefill of latent attention before absorption, where keys and values are those of the step and there is no cache. vLLM has an interface
of its own for it, and chooses such a backend apart from the one for decode:

    vllm serve MODEL --attention-backend CUSTOM --attention-config.mla_prefill_backend CUSTOM
"""
import types

import leanattn
import vllm.envs as envs
from vllm.v1.attention.backends.mla.prefill.base import MLAPrefillBackend

from .._serving import plans
from . import CONTEXT
from .implementation import takes_all_query_tokens
from .step_plans import make_plans


class LatentPrefillBase(MLAPrefillBackend):
    @staticmethod
    def get_name():
        return "CUSTOM"

    @classmethod
    def is_available(cls):
        return not envs.VLLM_BATCH_INVARIANT  # packed keys and values have no such kernels

    @classmethod
    def supports_mla_dimensions(cls, mla_dimensions):
        return all(takes_all_query_tokens(size, None)
                   for size in (mla_dimensions.qk_nope_head_dim + mla_dimensions.qk_rope_head_dim, mla_dimensions.v_head_dim))

    def clone(self):
        """vLLM makes one for each builder of metadata, which is when plans are made."""
        made = super().clone()
        made._make_plans()
        return made

    def run_prefill_new_tokens(self, q, k, v, return_softmax_lse, out=None, output_scale=None):
        if output_scale is not None:
            raise NotImplementedError("leanattn does not quantise its output; supports_quant_output says so")
        starts = self._prefill_metadata.query_start_loc
        return self._run(q, k, v, starts, starts, self._prefill_metadata.max_query_len, "causal", return_softmax_lse, out)

    def _run(self, q, k, v, q_offsets, kv_offsets, longest, mask, lse, out):
        """q [query tokens, heads, columns], k and v [tokens, heads, columns]. The log-sum-exp is [heads, query tokens]."""
        if longest > plans.MOST_PREFILL_TOKENS:
            raise ValueError(f"a request has {longest} query tokens in a step, but leanattn has at most {plans.MOST_PREFILL_TOKENS}. Give a smaller "
                             "--max-num-batched-tokens, or another mla_prefill_backend")
        shape = self._sizes.shape(self._problems[0], self._sizes.batch_for(q_offsets.shape[0] - 1))
        made = leanattn.decode(q, k, v, None, q_offsets=q_offsets, kv_offsets=kv_offsets, max_q_len=plans.MOST_PREFILL_TOKENS, mask=mask, out=out,
                               scale=float(self.scale), return_lse=lse, shape=shape, engine=self._device.engine, workspace=self._device.workspace)
        return (made[0], made[1].T.contiguous()) if lse else made

    def _make_plans(self):
        config = self.vllm_config
        columns = self.qk_nope_head_dim + self.qk_rope_head_dim
        layer = {"q_heads": self.num_heads, "kv_heads": self.num_heads, "head_dim": columns, "packed_kv": True,
                 "v_head_dim": 0 if self.v_head_dim == columns else self.v_head_dim}
        self._problems = tuple(
            plans.problem_of(plans.Options(**layer, mask=mask, lse=lse), dtype=plans.dtype_name(config.model_config.dtype), page_size=0,
                             query_tokens=plans.MOST_PREFILL_TOKENS)
            for mask, lse in (("causal", False), ("causal", True), ("full", True)))  # prompts, the new tokens of chunks, and what is before these
        self._sizes = plans.Sizes(plans.batches_for((), config.scheduler_config.max_num_seqs), plans.context_for(config.model_config.max_model_len, CONTEXT),
                                  config.scheduler_config.max_num_batched_tokens)
        self._device = plans.device(plans.ordinal_of(types.SimpleNamespace(index=None)))
        make_plans(self._device, self._problems, self._sizes)
