"""timing.py -- CUDA graphs of launches, timed by events in interleaved rounds. The current stream must not be the default one.

A sample is the time of one replay of a graph, divided by its number of launches. The replays of a round are queued at once behind an untimed
one, with an event between each two, so that no waiting for the host is timed. Every round runs the candidates in another order, so that a change
of clocks affects all of them alike; ratios are taken within a round.
"""
import random

import torch

SAMPLE_US = 300  # a graph runs for about this long
SCREEN_ROUNDS = 2
SCREEN_SHARE = 1.08  # after screening, variants slower than this many times their system's best are dropped
SCREEN_KEEP = 2  # variants of a system that are kept at most
MIN_ROUNDS, MAX_ROUNDS = 15, 31
LEAD_CYCLES = 400_000  # the GPU waits about 0.2 ms while the host queues a round


def launches_for(kv_bytes, copies, flops=0):
    """Launches of a graph that runs for about SAMPLE_US at 4.5 TB/s, 600 TFLOP/s and 3 us a launch, a multiple of the copies."""
    launches = max(1, round(SAMPLE_US / (kv_bytes / 4.5e6 + flops / 6e8 + 3)))
    return -(-launches // copies) * copies


class Replay:
    """A captured graph of `launches` launches; launch i reads copy i % copies."""

    def __init__(self, launch, copies, launches):
        self.launches = launches
        self.graph = torch.cuda.CUDAGraph()
        self.graph.capture_begin(capture_error_mode="thread_local")
        try:
            for i in range(launches):
                launch(i % copies)
        except BaseException:
            try:
                self.graph.capture_end()
            except RuntimeError:
                pass  # the failed launch has already ended the capture; its own error is the one to report
            raise
        self.graph.capture_end()

    def __call__(self):
        self.graph.replay()


def time_round(replays, order):
    """Microseconds a launch of each replay, in the replays' own order; they run in `order`."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(len(order) + 1)]
    torch.cuda._sleep(LEAD_CYCLES)
    replays[order[-1]]()
    events[0].record()
    for position, which in enumerate(order):
        replays[which]()
        events[position + 1].record()
    torch.cuda.synchronize()
    times = [0.0] * len(replays)
    for position, which in enumerate(order):
        times[which] = events[position].elapsed_time(events[position + 1]) * 1000 / replays[which].launches
    return times


def screen(replays, groups):
    """Indices of the replays to race, and the time of every replay. groups[i] names the group of replay i; of each group the best replay and
    those close to it are raced."""
    rounds = [time_round(replays, list(range(len(replays)))) for _ in range(SCREEN_ROUNDS)]
    screened = [min(times) for times in zip(*rounds)]
    kept = []
    for group in dict.fromkeys(groups):
        members = sorted((i for i, other in enumerate(groups) if other == group), key=lambda i: screened[i])
        kept += [i for i in members[:SCREEN_KEEP] if screened[i] <= SCREEN_SHARE * screened[members[0]]]
    return sorted(kept), screened


def race(replays, seconds, seed, rounds=None):
    """samples[i][round]: microseconds a launch of replay i. `rounds` of them, or as many as fit in `seconds`, MIN_ROUNDS to MAX_ROUNDS."""
    generator = random.Random(seed)
    order = list(range(len(replays)))
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    time_round(replays, order)  # a warm-up, whose samples do not count
    end.record()
    torch.cuda.synchronize()
    rounds = rounds or max(MIN_ROUNDS, min(MAX_ROUNDS, int(seconds * 1000 / max(begin.elapsed_time(end), 1e-3))))
    samples = []
    for _ in range(rounds):
        generator.shuffle(order)
        samples.append(time_round(replays, order))
    return [list(times) for times in zip(*samples)]
