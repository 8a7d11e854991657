"""step_plans.py -- the rows of a step that run on leanattn, and the plans of a group of layers, which are made when vLLM makes their builder."""
import dataclasses
from typing import Any

import leanattn
import vllm.envs as envs
from vllm.logger import init_logger

from .._serving import plans
from . import CONTEXT, TUNE

logger = init_logger("vllm.leanattn")


@dataclasses.dataclass(slots=True)
class Rows:
    """The rows of a step that run on leanattn: the first `tokens` query tokens, those of the first requests."""

    tokens: int
    lengths: Any  #: [requests] int32
    page_table: Any  #: [requests, pages] int32
    offsets: Any  #: [requests + 1] int32, where requests may have several query tokens; else None
    most_tokens: int | None  #: of a request, where there are offsets
    shape: leanattn.Shape  #: of the plan
    device: plans.Device


class StepPlans:
    """The plans for all batches that steps of a metadata builder may have, for layers with these options."""

    def __init__(self, options, builder, prefills=False, sees_images=False):
        """`prefills`: requests may have any number of query tokens, else up to the builder's threshold. `sees_images`: these may be in spans."""
        vllm_config, query_tokens, page_size = builder.vllm_config, builder.reorder_batch_threshold, builder.kv_cache_spec.block_size
        longest, packed = vllm_config.model_config.max_model_len, any(one.packed_kv for one in options)
        if not packed and any(one.mask == "full" for one in options):  # the contexts of cross attention are an encoder's
            longest = vllm_config.scheduler_config.max_num_encoder_input_tokens
        if envs.VLLM_BATCH_INVARIANT:  # a plan's context is a limit then
            self._pages = plans.pages_for(_most_here(longest, builder) + plans.MOST_QUERY_TOKENS, page_size)
            context = self._pages * page_size
        else:
            self._pages, context = None, _most_here(plans.context_for(longest, CONTEXT), builder)
        graphs = vllm_config.compilation_config.cudagraph_capture_sizes or ()
        self._sizes = plans.Sizes(plans.batches_for({*graphs, *(size // query_tokens for size in graphs)},
                                                    vllm_config.scheduler_config.max_num_seqs), context,
                                  vllm_config.scheduler_config.max_num_batched_tokens if prefills else 0)
        # Without a cache there is only prefill.
        self._most = [plans.MOST_PREFILL_TOKENS] if packed else sorted({1, query_tokens, *([plans.MOST_PREFILL_TOKENS] if prefills else [])})
        self._problems = tuple(
            plans.problem_of(one, dtype=plans.dtype_name(vllm_config.model_config.dtype), page_size=0 if packed else page_size, query_tokens=tokens,
                             spans=spans, batch_invariant=bool(envs.VLLM_BATCH_INVARIANT))
            for one in options for tokens in self._most for spans in ((False, True) if sees_images and tokens > 1 else (False,)))
        self._shapes = {}
        self._device = plans.device(plans.ordinal_of(builder.device))
        make_plans(self._device, self._problems, self._sizes)

    @property
    def most_tokens(self):
        """The most query tokens that a request may have."""
        return self._most[-1]

    def rows(self, tokens, requests, most, lengths, page_table, offsets):
        """The first `requests` requests of a step, with `tokens` query tokens, of which a request has up to `most`. Steps of single tokens and of drafts
        have kernels of their own. None: the requests do not match the tokens, as in a step that is padded by tokens alone, and no kernels take that."""
        single = most == 1 == self._most[0] and tokens == requests
        most = next((limit for limit in self._most if limit >= (most if single else max(most, 2))), None)
        if most is None:
            return None
        return Rows(tokens, first(lengths, requests), self.page_table(page_table, requests), None if single else first(offsets, requests + 1),
                    None if single else most, self._shape_for(most, requests), self._device)

    def page_table(self, table, requests):
        table = first(table, requests)
        return table if self._pages is None or table.shape[1] <= self._pages else table[:, :self._pages]

    def _shape_for(self, most, requests):
        shape = self._shapes.get((most, requests))
        if shape is None:
            batch = self._sizes.batch_for(requests)
            if batch not in self._sizes.batches:
                self._device.prepare(self._problems, dataclasses.replace(self._sizes, batches=(batch,)))
            shape = self._shapes[most, requests] = self._sizes.shape(next(one for one in self._problems if one.q_len == most), batch)
        return shape


def make_plans(device, problems, sizes):
    """Tunes as TUNE asks for, makes the plans, and says in the log what came of it."""
    tuned, failure = device.tune(problems, sizes, plans.tuning_seconds(TUNE))
    if tuned:
        logger.info("leanattn has tuned %d shapes for this GPU, as %s asks for", tuned, TUNE)
    if failure:
        logger.warning("leanattn could not tune, and goes on with what it knows: %s", failure)
    provenances, seconds = device.prepare(problems, sizes)
    if provenances:
        logger.info("leanattn has plans for %d problems and %d batches up to %d at context %d, after %.1f s; looked up as %s",
                    len(problems), len(sizes.batches), sizes.batches[-1], sizes.context, seconds,
                    ", ".join(f"{name}: {count}" for name, count in provenances.most_common()))


def _most_here(tokens, builder):
    """The most of a context's tokens that this rank may have, where the ranks of a group hold units of some tokens in turn."""
    unit = builder.cp_kv_cache_interleave_size
    return min(tokens, plans.pages_for(tokens, builder.dcp_world_size * unit) * unit)


def first(tensor, count):
    """The first entries; the tensor itself where that is all, because a slice takes as long as everything else here."""
    return tensor if tensor.shape[0] == count else tensor[:count]
