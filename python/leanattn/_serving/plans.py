"""plans.py -- the plans that a model's layers need in an inference engine, made before requests come, and the workspace that their launches share.

A plan is looked up by a batch and a context, and where requests may bring prefill by the most query tokens of a step. The batch is that of the
CUDA graphs, or else a power of two, so that every step of the engine has one that was made at start-up. Context and query tokens are the same for
all: graphs are captured once, whatever mix of requests comes.
"""
import collections
import dataclasses
import math
import os
import sys
import time

import leanattn

MOST_QUERY_TOKENS = 16  # of a request under the causal mask, docs/features.md
MOST_PREFILL_TOKENS = 131072  # of a request where query tokens are packed, the same page
LARGEST_GROUP = 128  # query heads of a KV head, the same page
USUAL_CONTEXT = 8192
LEAST_SECONDS = 1  # with less, a tuning would end before its first measurement

_DTYPES = {"torch.bfloat16": "bf16", "torch.float16": "fp16"}


def context_for(longest, variable):
    """The context, in tokens, that plans are looked up for. `longest` is the longest that the model may have, `variable` a setting's name."""
    text = os.environ.get(variable)
    if text is None:
        return min(longest, USUAL_CONTEXT)
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ValueError(f"{variable} is {text!r}. Give a number of tokens, such as {USUAL_CONTEXT}")
    return min(longest, int(text))


def tuning_seconds(variable):
    """The seconds that all tuning at start-up may take together, by a setting's name; 0: nothing is tuned."""
    text = os.environ.get(variable, "0")
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{variable} is {text!r}. Give seconds, such as 60, or 0 to tune nothing")
    return seconds


def batches_for(graphs, most):
    """The batches that get plans, ascending: those of the graphs, powers of two and `most`, up to `most`."""
    powers = {1 << bit for bit in range(most.bit_length())}
    return tuple(sorted({batch for batch in {*graphs, *powers} if 0 < batch < most} | {most}))


def dtype_name(dtype):
    """leanattn's name of a torch.dtype."""
    return _DTYPES[str(dtype)]


def problem_of(layer, *, page_size, query_tokens=1, ragged=True, **more):
    """The problem of a layer, an Options. With more than one query token, requests have that many, or if `ragged` any number up to that. `more` are
    further fields of leanattn.Problem."""
    return leanattn.Problem(**{**vars(layer), "kv_dtype": layer.kv_dtype or "same", **more}, page_size=page_size, q_len=query_tokens,
                            ragged_q=ragged and query_tokens > 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """What the kernels of a layer depend on beside the engine's configuration. Its fields are fields of leanattn.Problem."""

    q_heads: int
    kv_heads: int
    head_dim: int
    window: int = 0
    sink_logits: bool = False
    alibi: bool = False
    soft_cap: float = 0.0
    kv_dtype: str | None = None  #: None: as q
    kv_scale: str = "tensor"
    kv_layout: str = "NHD"
    v_head_dim: int = 0  #: 0: head_dim
    lse: bool = False  #: launches also give the log-sum-exp, with which engines join what ranks computed
    latent: bool = False  #: V is the first v_head_dim columns of K
    mask: str = "causal"  #: "full": of an encoder, or of query tokens that look at one
    packed_kv: bool = False  #: K and V are no cache, but those of the step's tokens
    selection_block: int = 0  #: tokens of what an entry of a query token's list names; 0: there are no lists
    selection_in_pool: bool = False  #: the lists name places in the pool


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The batches, the context and the most query tokens of a step, for which the plans of a problem are made."""

    batches: tuple
    context: int
    query_tokens: int = 0  #: of all requests together, where they may bring prefill; 0: they never do

    def shape(self, problem, batch):
        """The shape of a step: with prefill, one in which the scheduler has put as many query tokens beside the decodes as it may."""
        prefills = self.query_tokens > 0 and problem.q_len > MOST_QUERY_TOKENS
        return leanattn.Shape(batch, self.context, query_tokens=self.query_tokens if prefills else 0)

    def tuned(self, problem):
        """The shapes to tune. Batches between powers of two are close enough to their neighbours."""
        return [self.shape(problem, batch) for batch in self.batches if batch & (batch - 1) == 0 or batch == self.batches[-1]]

    def batch_for(self, requests):
        """The batch whose plan serves a step with so many requests."""
        for batch in self.batches:
            if batch >= requests:
                return batch
        return 1 << (requests - 1).bit_length()


class Device:
    """What layers share whose launches on a GPU follow one another: the engine and one workspace.

    The workspace is the library's own memory and not torch's, because engines that sleep discard what is in torch's pool for the KV cache, and
    between launches a workspace must stay zero.
    """

    def __init__(self, ordinal):
        self.engine = leanattn.engine(ordinal)
        self.workspace = None
        self._outgrown = []  # captured graphs use them
        self._made = {}  # (problem, shape) of all plans, in their order
        self._tuned_for = 0.0  # seconds
        self._cannot_tune = False

    def tune(self, problems, sizes, seconds):
        """Tunes what is not exact yet. All calls together take `seconds`. Returns how many shapes became exact, and what went wrong, in words."""
        tuned, failure, called = 0, "", False
        for index, problem in enumerate(problems):
            left = seconds - self._tuned_for
            if self._cannot_tune or left < LEAST_SECONDS:
                break
            start, called = time.monotonic(), True
            try:
                results = leanattn.tune(problem, sizes.tuned(problem), budget=left / (len(problems) - index), engine=self.engine)
                tuned += sum(result.measured for result in results)
            except leanattn.Error as error:
                failure = str(error)
                self._cannot_tune = True
            self._tuned_for += time.monotonic() - start
        if called and self._made:
            # Tuning reads all winners anew, also those of other layers and of other processes. So plans that were made before may have become
            # others, whose kernels are to be loaded and whose workspaces may be larger.
            made, self._made = self._made, {}
            self._make(made)
        return tuned, failure

    def prepare(self, problems, sizes):
        """Makes the plans. Returns {provenance: count} of those that are new, and the seconds that it took."""
        start = time.monotonic()
        found = self._make((problem, sizes.shape(problem, batch)) for problem in problems for batch in sizes.batches)
        return found, time.monotonic() - start

    def _make(self, wanted):
        """Makes the plans of (problem, shape) that are not there, and a workspace for all. Returns {provenance: count} of them."""
        found = collections.Counter()
        needed = 1
        for problem, shape in wanted:
            if (problem, shape) in self._made:
                continue
            plan = self.engine.plan(problem, shape, max_batch=shape.batch)
            self._made[problem, shape] = None
            found[plan.provenance] += 1
            needed = max(needed, plan.workspace_bytes)
        if self.workspace is None or needed > self.workspace.bytes:
            if self.workspace is not None:
                self._outgrown.append(self.workspace)
            self.workspace = leanattn.Workspace(self.engine, needed)
        return found


def ordinal_of(device):
    """The CUDA ordinal of a torch.device."""
    if device.index is not None:
        return device.index
    return sys.modules["torch"].cuda.current_device()


_devices = {}


def device(ordinal):
    """The Device of a CUDA ordinal."""
    if ordinal not in _devices:
        _devices[ordinal] = Device(ordinal)
    return _devices[ordinal]


def pages_for(tokens, page_size):
    """Pages that hold so many tokens."""
    return math.ceil(tokens / page_size)
