"""tuning.py -- tune() and autotune(): which kernel and grid are fastest on this GPU, measured in a process of its own."""
import contextlib
import dataclasses
import os
import typing

from . import _leanattn
from .errors import ArgumentError, ArgumentTypeError
from .problem import Problem


@dataclasses.dataclass(frozen=True)
class Shape:
    """A decode step for which something is tuned."""

    batch: int = 1  #: requests
    longest_context: int = 1024  #: tokens of the longest request
    total_context: int = 0  #: tokens of all requests together; 0: batch * longest_context
    # The mix of a step with prefill, where requests have up to 131072 query tokens: chunks, which have several, beside requests with one each.
    # Other problems ignore it. shape_of() fills it in; who only knows limits gives query_tokens alone.
    query_tokens: int = 0  #: of all requests together, or that a launch has room for; 0: not known, or one each
    chunks: int = 0  #: requests with several query tokens; 0: the fewest that can have so many
    chunk_context: int = 0  #: tokens of the chunks' contexts together; 0: longest_context each
    chunk_pairs: int = 0  #: pairs of a query token and a token of its context up to itself, over all chunks; 0: of equal chunks


def shape_of(context_lengths: typing.Iterable[int], query_tokens: typing.Iterable[int] | None = None) -> Shape:
    """The Shape of a step whose requests are known on the host: the tokens of each context, and the query tokens of each request (None: one each)."""
    lengths = list(context_lengths)
    return Shape(*_leanattn._shape_of_requests(lengths, None if query_tokens is None else list(query_tokens)))


@dataclasses.dataclass(frozen=True)
class TuneProgress:
    """How far a tuning is."""

    shape_index: int  #: which of the call's shapes is tuned
    shape_count: int
    phase: str  #: "wait" for another tuning, "start", then "screen", "sweep", "refine", "race", "confirm"
    done: int  #: candidates of the phase that are measured
    total: int  #: candidates of the phase; 0: not known
    best_us: float  #: the shortest median so far, in microseconds; 0: none
    elapsed_s: float


@dataclasses.dataclass(frozen=True)
class TunedShape:
    """What became of one shape."""

    shape: Shape
    status: str  #: "ok": plans are exact now; "interrupted": the budget ended before; "out_of_memory": test data did not fit; else why it ended
    provenance: str  #: of a plan now: "exact", or what it was without tuning
    measured: bool  #: by this call. False beside "ok": the answer was exact before
    finished: bool  #: False: the budget cut the search short, and the best so far is kept
    median_us: float  #: of the winner; 0: none
    read_limit_us: float  #: of a kernel that only reads the same bytes; 0: not measured by this call
    default_us: float  #: of the default configuration; 0: not measured by this call
    candidates: int  #: that this call tried
    rejected: int  #: of these: not compiled, or not launched
    incorrect: int  #: of these: gave wrong results, and were not timed

    @property
    def read_limit_share(self) -> float | None:
        """How much of the read limit the winner reaches, up to about 1; None where it was not measured."""
        return self.read_limit_us / self.median_us if self.read_limit_us > 0 and self.median_us > 0 else None


def tune(problem: Problem, shapes: typing.Iterable[Shape | tuple[int, ...]], *, budget: float | None = None, shape_budget: float | None = None,
         memory: int | None = None, retune: bool = False, progress: typing.Callable[[TuneProgress], object] | None = None,
         program: str | os.PathLike[str] | None = None, device: int = 0, engine: "_leanattn.Engine | None" = None) -> list[TunedShape]:
    """Finds the fastest kernel and grid for shapes of a problem, stores them in tuning.db, and has plans use them from then on.

    The tuning runs in a child process, the leanattn program, where every candidate is checked before it is timed. Whatever a candidate does, this
    process only ever launches kernels that have passed. The call waits, without the GIL. Tune while the GPU is idle, such as at a warm-up before
    graphs are captured: both processes share it, and what runs beside a tuning disturbs its times. Plans that were made before stay as they are.

    shapes        Shape objects, or tuples (batch, longest_context) or (batch, longest_context, total_context)
    budget        seconds for all shapes together; None: 5 for each. The child is killed 8 seconds later at the latest
    shape_budget  seconds for each shape, on average
    memory        the most bytes of GPU memory for the K and V of test data, larger shapes being left out; None: 80 % of what is free
    retune        also tunes shapes that have an exact answer already which is not stale
    progress      called with a TuneProgress several times a second. An exception of it stops the tuning and is passed on
    program       the leanattn program; None: LEANATTN_PROGRAM, else the package's own, else that of PATH
    device        CUDA ordinal, where no engine is given
    engine        an Engine to use instead of the one that decode() uses for the GPU

    Returns a TunedShape for each shape. Raises leanattn.Error: "not_found" (there is no program), "cache_unavailable" (nothing could be stored),
    "internal" (the program failed; the message says how) and others; and what a signal's handler raises, such as KeyboardInterrupt.
    """
    wanted = [_shape(given, index) for index, given in enumerate(shapes)]
    if engine is not None and isinstance(engine, _leanattn.Engine):
        device = engine.device
    results = _leanattn._tune(problem, wanted, budget, shape_budget, memory, retune, progress, program, device, engine)
    return [TunedShape(shape, *result) for shape, result in zip(wanted, results)]


@contextlib.contextmanager
def autotune(budget: float, *, shape_budget: float | None = None, memory: int | None = None, background: bool = False,
             program: str | os.PathLike[str] | None = None, engine: "_leanattn.Engine | None" = None) -> typing.Iterator[None]:
    """Within this context, shapes that are used for the first time are tuned, as by tune(); outside of it nothing is.

        with leanattn.autotune(budget=60):
            warm_up(model)

    decode() and plan() wait for the tuning of a shape whose answer is not exact, or is stale, and then use what it found. A call on a stream that is
    being captured tunes nothing. The first tuning that fails ends it: Engine.warnings says why, and calls go on with the answers that there are.

    budget        seconds for all tunings together, on each GPU
    shape_budget  seconds for each shape; None: 5
    memory        as of tune()
    background    calls do not wait, and use what was found once it is there. What is under way at the end of the context is stopped
    program       as of tune()
    engine        the Engine that tunes; None: those that decode() uses, also those that are opened within the context

    Raises leanattn.Error, such as "not_found" where there is no program.
    """
    key = None if engine is None else id(engine)
    if key in _active:
        raise ArgumentError("autotune is active already for this engine", "invalid_argument", "Leave the inner context out.")
    _active.add(key)
    try:
        try:
            _leanattn._set_autotune("background" if background else "wait", budget, shape_budget, memory, program, engine)
            yield
        finally:
            _leanattn._set_autotune("off", None, None, None, None, engine)
    finally:
        _active.discard(key)


_active: set = set()  # the engines with an open context; None: those of decode()


def _shape(given, index):
    if isinstance(given, Shape):
        return given
    try:
        return Shape(*given)
    except TypeError:
        raise ArgumentTypeError(f"shapes[{index}] is {given!r}, no leanattn.Shape and no tuple (batch, longest_context)", "invalid_argument",
                                "Write leanattn.Shape(batch=16, longest_context=8192).") from None
