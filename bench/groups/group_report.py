"""group_report.py -- the Markdown of a run, from its JSON record alone, and how both are written."""
import gzip
import json
import os
import statistics

import group_model
from peers import files, markdown_parts, summary
from peers.markdown_parts import escape, table

# The names of the candidates (group_systems.py).
OURS, ONE, HEADS, OWN, GATHER, ALL_TO_ALL = (
    "leanattn group", "one GPU", "split heads", "own part", "LSE all-gather + reduce-scatter", "packed all-to-all")
OVER_NCCL = "group over NCCL"  # runs before it was there have none


def write(folder, results):
    """groups.json.gz and groups.md; each is written whole or not at all."""
    path = folder / "groups.json.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".part")
    temporary.write_bytes(gzip.compress(json.dumps(results).encode(), 9, mtime=0))
    os.replace(temporary, path)
    files.write_text(folder / "groups.md", markdown(results))


def markdown(results):
    measured = [step for step in results["steps"] if step["lines"]]
    parts = [head(results)]
    if measured:
        parts += ["## Times", times(measured), "## What bringing the results together adds", merges(measured), "## Plans", plans(measured)]
        model = modelled(measured)
        if model and not results["one_gpu"]:
            parts += ["## A model of more GPUs", model]
    failures = [[escape(step["name"]), escape(failure["name"]), escape(failure["reason"])] for step in results["steps"] for failure in step["failures"]]
    if failures:
        parts += ["## Failures", table(["step", "what", "reason"], failures)]
    doubted = [escape(step["name"]) for step in results["steps"]
               if any(state.get("throttle_reasons", 0) & ~0b11 for states in step.get("gpu_state", []) for state in states)]
    if doubted:
        parts.append(f"NVML reported throttling at these steps, whose figures are to be doubted: {'; '.join(doubted)}.")
    return "\n\n".join(parts) + "\n"


def head(results):
    facts = dict(results["environment"])
    gpus = facts.pop("gpus", [])
    link = facts.pop("link", None)
    where = f"{results['ranks']} ranks on one GPU, for a test: these times mean nothing. " if results["one_gpu"] else ""
    on = markdown_parts.measured_on(facts).replace("Measured on one ", f"Measured on {len(set(gpus)) == 1 and len(gpus) or 'several'} x ", 1)
    if link:
        on += f" The GPUs are linked by {escape(link)}."
    return (f"# Groups of GPUs\n\n{where}{on}\n\n"
            f"Each time is the median of {results['rounds']} interleaved rounds, in microseconds a step: a CUDA graph of many steps in a row, with a cold L2, on all GPUs "
            "at once. It is the slower rank's. Every step has one query token a request, in bf16, and contexts are cut into two parts.\n\n"
            f"- *{OURS}*: one kernel a GPU, with the merge inside. Each rank writes its half of the heads.\n"
            f"- *{ONE}*: the whole contexts on one GPU; the faster of the two.\n"
            f"- *{HEADS}*: each GPU has all tokens of half of the heads, and no communication.\n"
            f"- *{OWN}*: each GPU attends to its part, and nothing is brought together.\n"
            f"- *{GATHER}*: attention on each part, an all-gather of the LSE, a kernel that scales, and a reduce-scatter of O, by NCCL; what vLLM's decode "
            "context parallelism does.\n"
            f"- *{ALL_TO_ALL}*: attention on each part, a kernel that packs O and LSE, one all-to-all by NCCL, and `leanattn.merge_partials`." +
            (f"\n- *{OVER_NCCL}*: a group whose ranks are no peers: a small kernel, attention on each part, sends and receives of O and LSE by NCCL, and the merge."
             if any(line_of(step, OVER_NCCL) for step in results["steps"]) else ""))


def slower(line):
    """[round] of the slower rank; of one GPU, of the faster one."""
    return [(min if line["name"] == ONE else max)(times) for times in zip(*line["samples_us"])]


def line_of(step, name):
    return next((line for line in step["lines"] if line["name"] == name), None)


def median(step, name):
    line = line_of(step, name)
    return statistics.median(slower(line)) if line else None


def added(step, name):
    """What a candidate takes more than the part alone: the median of the rounds, or None."""
    line, own = line_of(step, name), line_of(step, OWN)
    return statistics.median(a - b for a, b in zip(slower(line), slower(own))) if line and own else None


def number(value, form="{:.2f}"):
    return "-" if value is None else form.format(value)


def ratio(step, name, over):
    line, other = line_of(step, name), line_of(step, over)
    if not line or not other:
        return "-"
    ratios = [a / b for a, b in zip(slower(line), slower(other))]
    low, high = summary.median_interval(ratios)
    return f"{statistics.median(ratios):.3f} ({low:.3f} to {high:.3f})"


def times(steps):
    names = [OURS, ONE, HEADS, OWN, GATHER, ALL_TO_ALL, *over_nccl(steps)]
    rows = [[escape(step["name"]), f"{step['kv_bytes'] / 1e6:.4g}", *(number(median(step, name)) for name in names), ratio(step, ONE, OURS),
             ratio(step, GATHER, OURS), ratio(step, ALL_TO_ALL, OURS), *(ratio(step, name, OURS) for name in over_nccl(steps))] for step in steps]
    return table(["step", "KV MB", *names, f"{ONE} / {OURS}", "reduce-scatter / group", "all-to-all / group", *(f"{name} / group" for name in over_nccl(steps))], rows)


def over_nccl(steps):
    """[OVER_NCCL], or nothing where no step has it."""
    return [OVER_NCCL] if any(line_of(step, OVER_NCCL) for step in steps) else []


def merges(steps):
    others = [GATHER, ALL_TO_ALL, *over_nccl(steps)]
    rows = []
    for step in steps:
        ours, by_others = added(step, OURS), [added(step, name) for name in others]
        shares = [number(ours / other if ours is not None and other else None, "{:.3f}") for other in by_others]
        rows.append([escape(step["name"]), f"{step['exchanged_bytes'] / 1e3:.4g}", *(number(value) for value in (ours, *by_others)), *shares])
    return ("The time of the slower rank less that of the slower part alone, whose kernel the table of plans names.\n\n" +
            table(["step", "KB a rank gets", OURS, *others, "group / reduce-scatter", "group / all-to-all", *(f"group / {name}" for name in over_nccl(steps))], rows))


def plans(steps):
    rows = [[escape(step["name"]), line["name"], ", ".join(dict.fromkeys(f"{facts['kernel']}, {facts['grid']} CTAs" for facts in line["facts"])),
             ", ".join(dict.fromkeys(facts["provenance"] + (f" ({facts['layer']})" if facts["layer"] else "") for facts in line["facts"])),
             number(max((facts.get("error") or 0 for facts in line["facts"]), default=0)) if line["name"] != OWN else "-"]
            for step in steps for line in step["lines"]]
    return ("The kernel of each candidate's attention, and its largest error against attention in FP64 over the tolerance; above 1 it is wrong.\n\n" +
            table(["step", "candidate", "kernel", "provenance", "error"], rows))


def modelled(steps):
    usable = [step for step in steps if all(median(step, name) is not None for name in (OURS, ONE, OWN))]
    if not usable:
        return ""
    latency, rate = group_model.fit([(step["exchanged_bytes"], added(step, OURS), median(step, OURS)) for step in usable])
    rows = []
    for step in usable:
        one, own, columns = median(step, ONE), median(step, OWN), step["batch"] * step["q_heads"] * step["head_dim"] * 6
        modelled_us = [group_model.step_us(one, own, columns, gpus, latency, rate) for gpus in (2, *group_model.GPUS)]
        rows.append([escape(step["name"]), number(median(step, OURS)), *(f"{us:.1f} ({one / us:.1f} x)" for us in modelled_us)])
    return ("Not measured. A rank's own part takes t0 + s / GPUs, with the constants that the times of one GPU and of one of two parts give. The exchange adds "
            f"{latency:.2f} us and {1e6 / rate:.2f} us for each MB that a rank gets, fitted to the table above. A kernel exchanges with up to "
            f"{group_model.MOST_RANKS} ranks, and {group_model.GPUS[-1]} GPUs are two levels, one exchange after the other. It is assumed that every GPU reaches "
            "every other one as these two do, and that rows are dealt out evenly. In brackets: times one GPU.\n\n" +
            table(["step", "2 GPUs, measured", "2 GPUs, model", *(f"{gpus} GPUs, model" for gpus in group_model.GPUS)], rows))
