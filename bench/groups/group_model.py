"""group_model.py -- what a step would take on more GPUs than were measured: a model, whose parts come from the medians of a run.

A rank's own part takes t0 + s / R: both constants follow from the times of one GPU and of one of two parts. The exchange adds L + V / B: a latency and
the bytes that a rank gets from the others (24 for every four values of O) over a rate, both fitted to what the merge added at each step of the run. A
kernel exchanges with up to 8 ranks; more are two levels, of 8 and of the rest, one exchange after the other. It is assumed that every GPU reaches every
other one as these two reach each other, and that rows of any number are dealt out evenly.
"""
import math

MOST_RANKS = 8
GPUS = (4, 8, 72)


def fit(points):
    """(latency us, bytes a us) by least squares; infinity where more bytes take no longer. points: (bytes, us that the merge added, us of the step). What
    was added is the difference of two times, so that its error grows with these."""
    weights = [1 / step_us ** 2 for *_, step_us in points]
    total = sum(weights)
    mean_x = sum(w * x for w, (x, *_) in zip(weights, points)) / total
    mean_y = sum(w * y for w, (_, y, _) in zip(weights, points)) / total
    spread = sum(w * (x - mean_x) ** 2 for w, (x, *_) in zip(weights, points))
    slope = sum(w * (x - mean_x) * (y - mean_y) for w, (x, y, _) in zip(weights, points)) / spread if spread else 0.0
    if slope <= 0:
        return mean_y, math.inf
    return max(mean_y - slope * mean_x, 0.0), 1 / slope


def levels(gpus):
    """Ranks of each exchange."""
    return [gpus] if gpus <= MOST_RANKS else [MOST_RANKS, -(-gpus // MOST_RANKS)]


def merge_us(columns_bytes, gpus, latency, rate):
    """What exchanges add. columns_bytes: of all columns of a step that one rank holds, 6 bytes for each value of O."""
    us, share = 0.0, columns_bytes
    for ranks in levels(gpus):
        us += latency + share * (ranks - 1) / ranks / rate
        share /= ranks
    return us


def step_us(one_gpu_us, own_us, columns_bytes, gpus, latency, rate):
    """The time of a step. own_us: of the slower of two parts."""
    dealt = 2 * (one_gpu_us - own_us)
    fixed = max(one_gpu_us - dealt, 0.0)
    return fixed + dealt / gpus + merge_us(columns_bytes, gpus, latency, rate)
