"""mixes.py -- the mixes of requests that the trace replays. Plain Python, no GPU.

`conversation` is one hour of a production service (data/NOTICE). `short` is drawn with a seed: thousands of short requests, as classification,
extraction and completion of single lines send them, whose load comes in waves.
"""
import dataclasses
import gzip
import math
import pathlib
import random
import statistics

import batcher

CONVERSATION_TRACE = pathlib.Path(__file__).resolve().parent / "data" / "azure-llm-2023-conv.csv.gz"

# `short`: arrivals are a Poisson process whose rate is SHORT_PEAK requests a second times SHORT_FLOOR + (1 - SHORT_FLOOR) sin^2(pi t / SHORT_PERIOD),
# for SHORT_SECONDS. A prompt's tokens are log-normal and an answer's geometric; what is outside the bounds is drawn again.
SHORT_SECONDS, SHORT_PERIOD, SHORT_PEAK, SHORT_FLOOR = 20.0, 10.0, 10000.0, 0.02
PROMPT_MEDIAN, PROMPT_SIGMA, PROMPT_BOUNDS = 120, 0.8, (16, 600)
ANSWER_MEAN, ANSWER_BOUNDS = 20, (1, 64)


def short(seed, rate=1.0):
    """The requests of the mix `short`, in order of arrival. `rate` multiplies the rate of arrival, with as many requests."""
    if rate <= 0:
        raise ValueError(f"a rate of {rate}")
    generator = random.Random(seed)
    requests, time = [], generator.expovariate(SHORT_PEAK)
    while time < SHORT_SECONDS:
        # Arrivals at the highest rate, of which as many are kept as the rate at their moment says.
        wave = SHORT_FLOOR + (1 - SHORT_FLOOR) * math.sin(math.pi * time / SHORT_PERIOD) ** 2
        if generator.random() < wave:
            prompt = within(PROMPT_BOUNDS, lambda: round(generator.lognormvariate(math.log(PROMPT_MEDIAN), PROMPT_SIGMA)))
            answer = within(ANSWER_BOUNDS, lambda: math.ceil(generator.expovariate(-math.log(1 - 1 / ANSWER_MEAN))))
            requests.append(batcher.Request(time / rate, prompt, answer))
        time += generator.expovariate(SHORT_PEAK)
    return requests


def within(bounds, draw):
    """The first number that is drawn within the bounds, both included."""
    while True:
        number = draw()
        if bounds[0] <= number <= bounds[1]:
            return number


@dataclasses.dataclass(frozen=True)
class Mix:
    """A mix, and the options that suit it."""

    name: str
    title: str  # of its report
    text: str  # what the requests are, for the report: a sentence
    running: str  # --running
    rate: float  # --rate
    every: int  # --every


CONVERSATION = Mix("conversation", "a conversation trace", "The trace is one hour of requests to a conversation service (data/NOTICE).",
                   running="64,256", rate=8.0, every=50)
SHORT = Mix("short", "a trace of short requests",
            f"The trace is drawn: arrivals are a Poisson process of {SHORT_FLOOR * SHORT_PEAK:g} to {SHORT_PEAK:g} requests a second in waves of {SHORT_PERIOD:g} s, "
            f"for {SHORT_SECONDS:g} s; prompts are log-normal with a median of {PROMPT_MEDIAN} tokens (sigma {PROMPT_SIGMA:g}) within {PROMPT_BOUNDS[0]} to "
            f"{PROMPT_BOUNDS[1]}, and answers geometric with a mean of {ANSWER_MEAN} within {ANSWER_BOUNDS[0]} to {ANSWER_BOUNDS[1]}.",
            running="4096", rate=1.0, every=20)
MIXES = {mix.name: mix for mix in (CONVERSATION, SHORT)}


def requests_of(mix, rate, seed, trace=None):
    """The requests of a mix. `trace` is the file of `conversation`, the published one by default; `seed` draws `short`."""
    if mix is SHORT:
        return short(seed, rate)
    with gzip.open(trace or CONVERSATION_TRACE, "rt") as lines:
        return batcher.read_trace(lines, rate)


def summary(requests, sampled):
    """A line about requests and the steps that are sampled of them."""
    prompts = [request.prompt_tokens for request in requests]
    answers = [request.generated_tokens for request in requests]
    batches = [len(step.contexts) for step in sampled]
    contexts = [context for step in sampled for context in step.contexts]
    return (f"{len(requests)} requests, prompts of {min(prompts)} to {max(prompts)} tokens (median {statistics.median(prompts):g}), answers of {min(answers)} to "
            f"{max(answers)} (mean {statistics.mean(answers):.1f}); {len(sampled)} sampled steps of {min(batches)} to {max(batches)} requests (median "
            f"{statistics.median(batches):g}), contexts of {min(contexts)} to {max(contexts)} tokens (mean {statistics.mean(contexts):.0f})")
