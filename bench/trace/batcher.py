"""batcher.py -- a simple continuous batcher: requests arrive, wait their turn, decode one token a step together, and leave. Plain Python.

A step takes `step_seconds` of the trace's time. At its beginning requests that have arrived are admitted in order of arrival, while fewer than
`max_running` run; the prompt of an admitted request is taken to be in the KV cache already. In every step each running request generates one
token, by which its context grows. A request that has generated its last token leaves before the next step.
"""
import csv
import dataclasses
import datetime


@dataclasses.dataclass(frozen=True)
class Request:
    arrival: float  # seconds since the trace began
    prompt_tokens: int
    generated_tokens: int  # steps it takes part in, at least one


@dataclasses.dataclass(frozen=True)
class Step:
    index: int  # the number of decode steps before this one; there are none while no request runs
    time: float  # seconds since the trace began
    contexts: tuple[int, ...]  # tokens that each running request attends to, with the one of this step, in order of admission
    waiting: int  # requests that have arrived and do not run


def read_trace(lines, rate=1.0):
    """The requests of a CSV with the columns TIMESTAMP, ContextTokens and GeneratedTokens, in order of arrival. `rate` multiplies the rate of
    arrival: with 8, an hour of requests arrives within 7.5 minutes."""
    rows = [(timestamp(row["TIMESTAMP"]), int(row["ContextTokens"]), int(row["GeneratedTokens"])) for row in csv.DictReader(lines)]
    rows.sort(key=lambda row: row[0])
    return [Request((when - rows[0][0]) / rate, prompt, generated) for when, prompt, generated in rows]


def timestamp(text):
    """Seconds of "2023-11-16 18:15:46.6805900"; digits beyond microseconds are dropped."""
    return datetime.datetime.fromisoformat(text[:26]).replace(tzinfo=datetime.timezone.utc).timestamp()


def steps(requests, max_running, step_seconds):
    """Yields every decode step until all requests have left. `requests` are in order of arrival."""
    if max_running < 1 or step_seconds <= 0:
        raise ValueError(f"max_running {max_running} and step_seconds {step_seconds} must be positive")
    for request in requests:
        if request.generated_tokens < 1:
            raise ValueError(f"a request that generates {request.generated_tokens} tokens")
    time, index, arrived, admitted = 0.0, 0, 0, 0
    running = []  # [context, steps left] of each request
    while admitted < len(requests) or running:
        if not running and requests[admitted].arrival > time:
            time = requests[admitted].arrival  # idle until the next request comes
        while arrived < len(requests) and requests[arrived].arrival <= time:
            arrived += 1
        while admitted < arrived and len(running) < max_running:
            running.append([requests[admitted].prompt_tokens, requests[admitted].generated_tokens])
            admitted += 1
        for state in running:
            state[0] += 1
            state[1] -= 1
        yield Step(index, time, tuple(context for context, _ in running), arrived - admitted)
        running = [state for state in running if state[1] > 0]
        time += step_seconds
        index += 1


def evenly(items, count):
    """At most `count` of the items, evenly spaced, the first and the last among them; all of them for 0."""
    if count == 0 or count >= len(items):
        return list(items)
    if count == 1:
        return [items[0]]
    return [items[i * (len(items) - 1) // (count - 1)] for i in range(count)]
