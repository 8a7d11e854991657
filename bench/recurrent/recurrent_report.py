"""recurrent_report.py -- the Markdown of a run, from its JSON record alone.

A time over a yardstick is taken within each turn of a process, and the median of these ratios counts. A speed-up is the ratio of two such ratios of one
round, because two systems never share a turn.
"""
import statistics

from peers import markdown_parts, summary

OURS = summary.OURS
SYSTEMS = (OURS, "flash-linear-attention", "vLLM", "FlashInfer")
COPY, TRAFFIC = YARDSTICKS = ("copy", "traffic")
# Of one token: the MB of states read and written, from which on a time is at most so many copies; and the same of drafts with snapshots, over their traffic.
GOALS = {"gated_delta": ((128, 1.03), (32, 1.08), (16, 1.15), (0, 1.3)), "kda": ((128, 1.06), (32, 1.08), (16, 1.15), (0, 1.3))}
DRAFT_GOALS = ((32, 1.08), (0, 1.3))


def line_of(step, system, variant):
    return next((line for line in step["lines"] if (line["system"], line["variant"]) == (system, variant)), None)


def yardstick(step, system):
    """The line of what a step's states take at least in the turns of a system: a copy or, with snapshots, their traffic."""
    return line_of(step, system, TRAFFIC if step["snapshots"] else COPY)


def best_line(step, system):
    """The fastest kernel of a system."""
    lines = [line for line in step["lines"] if line["system"] == system and line["variant"] not in YARDSTICKS]
    return min(lines, key=summary.median_us, default=None)


def over_yardstick(step, system):
    """The time over the yardstick in each round; empty where the system has none."""
    line, limit = best_line(step, system), yardstick(step, system)
    return summary.ratios(line, limit) if line and limit else []


def best_peer(step):
    ratios = {system: statistics.median(over_yardstick(step, system)) for system in SYSTEMS[1:] if over_yardstick(step, system)}
    return min(ratios, key=ratios.get, default=None)


def speed_ups(step, peer):
    """A peer's time over leanattn's in each round, each over its own yardstick."""
    return [theirs / ours for theirs, ours in zip(over_yardstick(step, peer), over_yardstick(step, OURS), strict=True)]


def goal(step):
    """The most that leanattn's time over the yardstick shall be, or None where there is no goal."""
    if step["state"] != "fp32" or (step["tokens"] > 1 and not step["snapshots"]):
        return None
    goals = GOALS[step["kind"]] if step["tokens"] == 1 else DRAFT_GOALS
    return next(most for least_mb, most in goals if step["traffic_bytes"] >= least_mb * 1e6)


def markdown(results):
    groups = {}
    for step in results["steps"]:
        groups.setdefault(step["group"], []).append(step)
    parts = [head(results)]
    for group, steps in groups.items():
        measured = [step for step in steps if step["lines"]]
        if measured:
            parts += [f"## {group}", table(measured), *sums(measured)]
    return "\n\n".join(parts + failures(results)) + "\n"


def head(results):
    missing = "".join(f"\n\n{name} is left out: {markdown_parts.escape(reason)}" for name, reason in results["not_started"].items())
    left = f"\n\nThe time limit left out {results['left']} steps." if results.get("left") else ""
    return ("# Recurrent steps: leanattn and its peers\n\n"
            f"{markdown_parts.measured_on(results['environment'])}\n\n"
            f"Each time is the median of {results['rounds']} rounds, in microseconds a launch, of a CUDA graph's replay, with a cold L2. Heads are 128 x 128. "
            "Each system has a process of its own, which times a copy as well whenever its turn comes.\n\n"
            "- *copy*: reads and writes the states of the step in place; of several tokens with snapshots, *traffic*: reads them once and writes them once "
            "for each token. The time is that of leanattn's process, or of the first one.\n"
            "- In brackets: over the copy (traffic) of the same turn.\n"
            "- *speed-up*: of the best peer's time over leanattn's, each over the copy of its own turn, with its 95 % bootstrap interval.\n"
            "- *goal*: at most so many copies; times that miss it are marked with \\*." + missing + left)


def table(steps):
    columns = [system for system in SYSTEMS if any(best_line(step, system) for step in steps)]
    of_traffic = steps[0]["snapshots"]
    extra = ["x copy"] if of_traffic else []
    return markdown_parts.table(["batch", "MB", TRAFFIC if of_traffic else COPY, *columns, *extra, "speed-up", "goal"],
                                [row(step, columns, of_traffic) for step in steps])


def row(step, columns, of_traffic):
    def cell(system):
        line, ratios = best_line(step, system), over_yardstick(step, system)
        return f"{summary.median_us(line):.2f} ({statistics.median(ratios):.3f})" if ratios else "-"

    limit = next((yardstick(step, system) for system in columns if yardstick(step, system)), None)
    ours, peer, most = over_yardstick(step, OURS), best_peer(step), goal(step)
    gains = speed_ups(step, peer) if ours and peer else []
    low, high = summary.median_interval(gains) if gains else (0, 0)
    copies = [f"{statistics.median(summary.ratios(best_line(step, OURS), line_of(step, OURS, COPY))):.3f}" if ours else "-"] if of_traffic else []
    missed = "\\*" if most and ours and statistics.median(ours) > most else ""
    return [str(step["batch"]), f"{step['traffic_bytes'] / 1e6:.4g}", f"{summary.median_us(limit):.2f}" if limit else "-", *map(cell, columns), *copies,
            f"{statistics.median(gains):.3f} ({low:.3f} to {high:.3f})" if gains else "-", f"{most}{missed}" if most else "-"]


def sums(steps):
    """A sentence: the geometric mean of the speed-ups over each peer."""
    said = []
    for peer in SYSTEMS[1:]:
        both = [(speed_ups(step, peer), f"batch {step['batch']}") for step in steps if over_yardstick(step, OURS) and over_yardstick(step, peer)]
        if both:
            total = summary.summed_up(peer, [series for series, _ in both], [name for _, name in both])
            said.append(f"Over {peer}: {total['geometric_mean']:.3f} in geometric mean ({total['low']:.3f} to {total['high']:.3f}), from {total['min']:.3f} "
                        f"({total['min_shape']}) to {total['max']:.3f} ({total['max_shape']}).")
    return [" ".join(said)] if said else []


def failures(results):
    """What did not run, each reason once."""
    found = {}
    for step in results["steps"]:
        for failure in step["failures"]:
            found.setdefault((failure["system"], failure["variant"], failure["reason"]), []).append(step["name"])
    lines = [f"- {system}, {variant}, {f'{len(names)} steps, such as ' if len(names) > 1 else ''}{names[0]}: {markdown_parts.escape(reason)}"
             for (system, variant, reason), names in found.items()]
    return ["## What did not run", "\n".join(lines)] if lines else []


def progress(step):
    """A line for the terminal."""
    times = ", ".join(f"{system} {summary.median_us(line):.2f} ({statistics.median(over_yardstick(step, system)):.3f})" for system in SYSTEMS
                      if (line := best_line(step, system)))
    lost = "; ".join(f"{failure['system']} {failure['variant']}: {failure['reason'][:80]}" for failure in step["failures"])
    return f"{step['name']}: {times or 'no figures'}{f' [{lost}]' if lost else ''}"
