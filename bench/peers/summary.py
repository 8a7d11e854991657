"""summary.py -- medians, paired ratios and intervals of measured shapes, and the lines that sum them up. Plain Python, no GPU.

The ratio of two candidates is taken in every round, since both ran in it; the median of these ratios counts. Its 95 % interval is a bootstrap
over rounds. The interval of a geometric mean resamples the rounds of every shape. The seed is fixed, so the same samples give the same interval.
"""
import math
import random
import statistics

LIMIT = "read limit"
OURS = "leanattn"
REPLICATES = 500
SEED = 1


def timed(mode):
    """The lines of a mode (cold or warm) that were raced."""
    return [line for line in (mode or {}).get("lines", []) if line.get("samples_us")]


def best_line(mode, system, pdl=False):
    """The fastest variant of a system by median, or None."""
    lines = [line for line in timed(mode) if line["system"] == system and line["pdl"] == pdl]
    return min(lines, key=median_us, default=None)


def best_peer(mode, pdl_too=False):
    """The fastest line that is neither leanattn's nor the read limit's. With pdl_too, programmatic dependent launch is allowed as well."""
    lines = [line for line in timed(mode) if line["system"] not in (LIMIT, OURS) and (pdl_too or not line["pdl"])]
    return min(lines, key=median_us, default=None)


def median_us(line):
    return statistics.median(line["samples_us"])


def ratios(numerator, denominator):
    """The ratio of two lines in each round."""
    return [a / b for a, b in zip(numerator["samples_us"], denominator["samples_us"], strict=True)]


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def percentile(values, share):
    """The value below which a share (0..1) of the values lies; linear between neighbours."""
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (position - low) * (ordered[high] - ordered[low])


def interval(replicates):
    return percentile(replicates, 0.025), percentile(replicates, 0.975)


def median_interval(values):
    """95 % bootstrap interval of the median."""
    generator = random.Random(SEED)
    return interval([statistics.median(generator.choices(values, k=len(values))) for _ in range(REPLICATES)])


def geometric_interval(series):
    """95 % bootstrap interval of the geometric mean of medians; `series` is one list of paired ratios a shape."""
    generator = random.Random(SEED)
    return interval([geometric_mean([statistics.median(generator.choices(values, k=len(values))) for values in series]) for _ in range(REPLICATES)])


def summed_up(name, series, shapes):
    """Geometric mean of per-shape median ratios with its interval, the smallest and the largest with their shapes."""
    medians = [statistics.median(values) for values in series]
    low, high = geometric_interval(series)
    least, most = min(range(len(medians)), key=medians.__getitem__), max(range(len(medians)), key=medians.__getitem__)
    return {"name": name, "shapes": len(series), "geometric_mean": geometric_mean(medians), "low": low, "high": high,
            "min": medians[least], "min_shape": shapes[least], "max": medians[most], "max_shape": shapes[most]}


def over_limit(cases, mode):
    """A summary per (system, pdl): its best variant's time over the read limit, over the shapes that it ran."""
    found = dict.fromkeys((line["system"], line["pdl"]) for case in cases for line in timed(case["modes"].get(mode)) if line["system"] != LIMIT)
    result = []
    for system, pdl in found:
        series, shapes = [], []
        for case in cases:
            line, limit = best_line(case["modes"].get(mode), system, pdl), best_line(case["modes"].get(mode), LIMIT)
            if line and limit:
                series.append(ratios(line, limit))
                shapes.append(case["name"])
        if series:
            result.append(dict(summed_up(label(system, pdl), series, shapes), system=system, pdl=pdl))
    return result


def speed_ups(cases, mode, pdl=False):
    """A summary of the time of a peer over that of leanattn: for the best peer of every shape, and for each peer. With pdl, leanattn uses
    programmatic dependent launch, and a peer counts with the faster of its two ways to launch."""
    peers = dict.fromkeys(line["system"] for case in cases for line in timed(case["modes"].get(mode)) if line["system"] not in (LIMIT, OURS))
    result = []
    for peer in ["best peer", *peers]:
        series, shapes = [], []
        for case in cases:
            measured = case["modes"].get(mode)
            ours, theirs = best_line(measured, OURS, pdl), peer_line(measured, peer, pdl)
            if ours and theirs:
                series.append(ratios(theirs, ours))
                shapes.append(case["name"])
        if series:
            result.append(dict(summed_up(peer, series, shapes), wins=sum(statistics.median(values) > 1 for values in series)))
    return result


def peer_line(mode, peer, pdl):
    if peer == "best peer":
        return best_peer(mode, pdl)
    lines = [line for line in (best_line(mode, peer), best_line(mode, peer, True) if pdl else None) if line]
    return min(lines, key=median_us, default=None)


def label(system, pdl):
    return f"{system} + PDL" if pdl else system
