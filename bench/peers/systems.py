"""systems.py -- what the adapter of a system gives to the measurement: candidates that can be launched, and failures with a reason.

An adapter has `name`, `versions()`, which returns a dict, and `candidates(data, attempt)`, which returns a list of Candidate and Failure, each made
by `attempt(variant, pdl, build)`. A system may offer several variants (kernels, splits, layouts): the fastest one counts, and the results keep
all of them. The first word of a variant names its kernel.
"""
import dataclasses
import re
import time
from typing import Callable

import torch


@dataclasses.dataclass
class Candidate:
    """One way to do the step.

    `launch(copy)` enqueues it on the current stream, where it reads copy `copy` of K and V. `output(copy)` is the tensor that the last launch for
    this copy writes, [batch, q_heads, head_dim]; it is None for kernels that only read.
    """

    system: str
    variant: str
    launch: Callable[[int], None]
    output: Callable[[int], torch.Tensor | None]
    pdl: bool = False  # programmatic dependent launch between consecutive launches
    plan_us: float | None = None  # host time of the plan that must be made whenever lengths change; None where there is none
    facts: dict = dataclasses.field(default_factory=dict)
    tolerance: float = 1.0  # times that of oracle.error, for kernels that round what others do not

    @property
    def key(self):
        return self.system, self.variant, self.pdl


@dataclasses.dataclass
class Failure:
    system: str
    variant: str
    pdl: bool
    reason: str


class ContextLost(RuntimeError):
    """The CUDA context is broken: nothing in this process can be launched any more."""


def attempt(system, avoided, variant, pdl, build):
    """The Candidate that build() returns, if one launch of it succeeds, else a Failure with the reason. `avoided` maps the kernels of the system
    that are not tried to the reason."""
    if kernel_of(variant) in avoided:
        return Failure(system, variant, pdl, avoided[kernel_of(variant)])
    try:
        candidate = build()
        candidate.launch(0)
        torch.cuda.synchronize()
        return candidate
    except Exception as problem:  # whatever a library raises is a result of this bench
        reason = reason_of(problem)
    ensure_context(system, variant, pdl, reason)
    return Failure(system, variant, pdl, reason)


def kernel_of(variant):
    return variant.split()[0]


def reason_of(problem):
    """An exception in one line, without folders, which only say where a library was built."""
    text = " / ".join(line.strip() for line in str(problem).splitlines() if line.strip())
    return f"{type(problem).__name__}: {re.sub(r'(?<![^ (])/[^ :]*/', '', text)[:300]}"


def ensure_context(system, variant, pdl, reason):
    """Raises ContextLost, with the name of the candidate, if its failure left the context unusable."""
    if not context_works():
        lost = ContextLost(reason)
        lost.failure = Failure(system, variant, pdl, reason)
        raise lost


def context_works():
    """Whether the GPU still computes. The first attempt may only fetch an error that does not last, so there are two."""
    for _ in range(2):
        try:
            return torch.zeros(1, device="cuda").add_(1).item() == 1
        except RuntimeError:
            continue
    return False


def host_us(call, repeats=7):
    """Median host time of call() in microseconds, the GPU idle before each."""
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        began = time.perf_counter()
        call()
        times.append((time.perf_counter() - began) * 1e6)
    torch.cuda.synchronize()
    return sorted(times)[repeats // 2]


def stream():
    """The current stream, as an integer."""
    return torch.cuda.current_stream().cuda_stream
