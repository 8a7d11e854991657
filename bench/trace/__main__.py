"""Replays a trace of requests through a continuous batcher and times its decode steps with leanattn, FlashInfer and kernels that only read.

    python3 bench/trace --library build/shared/libleanattn.so --out results [--steps 120]
    python3 bench/trace --mix short --library build/shared/libleanattn.so --out results-short --steps 24

The requests are those of a conversation service, or with `--mix short` thousands of short ones (mixes.py says how they are drawn). The context
lengths of every 50th decode step (of `short` every 20th) are one ragged batch of Llama-3-8B's attention. Every captured graph must reproduce the
FP64 oracle's result at every step before it is timed. This program needs a GPU and PyTorch; it leaves FlashInfer out where it is not installed.

It writes trace.json (raw samples, after every step), trace.md and trace.svg. Exit codes: 0 done, 2 wrong usage, 5 a result was wrong.
"""
import argparse
import datetime
import pathlib
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))  # for the packages beside this one

import batcher  # noqa: E402  (the path first)
import mixes  # noqa: E402
import trace_report  # noqa: E402
from peers import files  # noqa: E402


def main():
    options = parse()
    if options.report_only:
        write_reports(options.out, files.read_json(options.out / "trace.json"))
        return 0
    requests = mixes.requests_of(options.mix, options.rate, options.mix_seed, options.trace)
    if options.describe:
        for max_running in options.running:
            chosen = batcher.evenly(sampled_steps(options, requests, max_running), options.steps)
            print(f"at most {max_running} running: {mixes.summary(requests, chosen)}")
        return 0
    return measure(options, requests)


def parse():
    parser = argparse.ArgumentParser(prog="trace", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=pathlib.Path, help="libleanattn.so; without it leanattn is left out")
    parser.add_argument("--out", type=pathlib.Path, help="folder of the results")
    parser.add_argument("--db", type=pathlib.Path, help="cache directory with leanattn's tuning database; default: the user's")
    parser.add_argument("--mix", choices=sorted(mixes.MIXES), default=mixes.CONVERSATION.name, help="the requests: of a conversation service, or thousands of short ones (%(default)s)")
    parser.add_argument("--mix-seed", type=int, default=1, help="draws the requests of --mix short (%(default)s)")
    parser.add_argument("--trace", type=pathlib.Path, help="gzip of TIMESTAMP,ContextTokens,GeneratedTokens, for --mix conversation; default: the one in data/")
    parser.add_argument("--running", help=f"the most requests that run at a time; each number is a run ({per_mix('running')})")
    parser.add_argument("--rate", type=float, help=f"requests arrive this many times as fast as they did, or as the mix has it ({per_mix('rate')})")
    parser.add_argument("--step-ms", type=float, default=25.0, help="the trace's time that a decode step takes (%(default)s)")
    parser.add_argument("--every", type=int, help=f"one of this many decode steps is timed ({per_mix('every')})")
    parser.add_argument("--steps", type=int, default=0, help="time at most this many steps of a run, evenly spaced; 0: all")
    parser.add_argument("--plan", choices=["step", "once"], default="step", help="ask leanattn at every step, or keep the plan of the median step")
    parser.add_argument("--layouts", default="HND", help="of FlashInfer's pages: HND, NHD or both")
    parser.add_argument("--time-limit", type=float, default=float("inf"), metavar="SECONDS", help="start no further step of a run after its share of this")
    parser.add_argument("--seed", type=int, default=1, help="of the data and the order of rounds")
    parser.add_argument("--describe", action="store_true", help="only print how many requests and steps there are, and how long they are; needs no GPU")
    parser.add_argument("--report-only", action="store_true", help="write Markdown and SVG again from trace.json or trace.json.gz; needs no GPU")
    options = parser.parse_args()
    options.mix = mixes.MIXES[options.mix]
    for name in ("running", "rate", "every"):
        if getattr(options, name) is None:
            setattr(options, name, getattr(options.mix, name))
    if not options.out and not options.describe:
        parser.error("--out is missing: name a folder for the results")
    if options.trace and options.mix is not mixes.CONVERSATION:
        parser.error(f"--trace is for --mix {mixes.CONVERSATION.name}; --mix {options.mix.name} draws its requests")
    if options.rate <= 0 or options.every < 1:
        parser.error(f"--rate {options.rate:g} and --every {options.every} must be positive")
    try:
        options.running = [int(text) for text in options.running.split(",")]
    except ValueError:
        parser.error(f"--running takes numbers such as 64,256, not {options.running}")
    if min(options.running) < 1:
        parser.error(f"--running {min(options.running)} must be positive")
    options.layouts = options.layouts.split(",")
    if not set(options.layouts) <= {"HND", "NHD"}:
        parser.error("--layouts takes HND, NHD or both")
    return options


def per_mix(option):
    """The default of an option, which depends on the mix."""
    return "; ".join(f"{mix.name}: {getattr(mix, option)}" for mix in mixes.MIXES.values())


def sampled_steps(options, requests, max_running):
    return [step for step in batcher.steps(requests, max_running, options.step_ms / 1000) if step.index % options.every == 0]


def measure(options, requests):
    import torch  # after --help and --report-only, which need none of this

    from peers import environment, system_limit

    limit = system_limit.ReadLimitSystem()
    leanattn, flashinfer, missing = optional_systems(options)
    every_system = [system for system in (limit, leanattn, flashinfer) if system]
    results = {"schema_version": 1, "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
               "environment": environment.environment(every_system), "not_installed": missing, "seed": options.seed,
               "mix": {"name": options.mix.name, "title": options.mix.title, "text": options.mix.text, "seed": options.mix_seed}, "rate": options.rate,
               "step_seconds": options.step_ms / 1000, "every": options.every, "plan": options.plan, "runs": {}}
    began = time.monotonic()
    with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
        for number, max_running in enumerate(options.running):
            share = began + options.time_limit * (number + 1) / len(options.running)
            replay_run(options, results, requests, max_running, limit, leanattn, flashinfer, share)
            torch.cuda.empty_cache()
    write_reports(options.out, results)
    print(trace_report.markdown(results))
    return 5 if any(step["wrong"] for run in results["runs"].values() for step in run["steps"]) else 0


def replay_run(options, results, requests, max_running, limit, leanattn, flashinfer, stop_at):
    """Runs the trace through a batcher with one limit and times its sampled steps, until `stop_at` of the monotonic clock."""
    import torch

    import replay
    from peers import shapes

    sampled = sampled_steps(options, requests, max_running)
    # Launches that read two copies in turn find the L2 cold if a copy is at least twice its size.
    enough = 2 * torch.cuda.get_device_properties(0).L2_cache_size
    large = [step for step in sampled if shapes.kv_bytes(step.contexts, replay.KV_HEADS, replay.HEAD_DIM) >= enough]
    chosen = batcher.evenly(large, options.steps)
    run = {"sampled": len(sampled), "small": len(sampled) - len(large), "chosen": len(chosen), "steps": [], "failures": []}
    results["runs"][str(max_running)] = run
    if not chosen:
        return
    capacity = max(max(step.contexts) for step in chosen)
    needed = replay.memory_needed(max_running, capacity, options.layouts)
    if needed > 0.9 * torch.cuda.get_device_properties(0).total_memory:
        raise SystemExit(f"caches for {max_running} requests of {capacity} tokens take {needed >> 30} GB: give fewer --layouts or a smaller --running")
    caches = replay.Caches(max_running, capacity, options.layouts, options.seed)
    typical = sorted(chosen, key=lambda step: sum(step.contexts))[len(chosen) // 2].contexts
    plan_once = shapes.Case("trace", "median step", replay.Q_HEADS, replay.KV_HEADS, replay.HEAD_DIM, typical) if options.plan == "once" else None
    replayer = replay.Replayer(caches, leanattn, flashinfer, limit, plan_once, options.seed)
    for number, step in enumerate(spread(chosen)):
        if time.monotonic() > stop_at:
            print(f"--time-limit: {len(chosen) - number} steps are left out", file=sys.stderr, flush=True)
            break
        record = replayer.measure(step)
        run["steps"] = sorted([*run["steps"], record], key=lambda other: other["step"])
        run["failures"] = [{"system": key[0], "variant": key[1], "pdl": key[2], "reason": reason} for key, reason in replayer.failures.items()]
        if number % 10 == 0:
            files.write_json(options.out / "trace.json", results)
            print(f"at most {max_running} running: {number + 1} of {len(chosen)} steps", file=sys.stderr, flush=True)
    files.write_json(options.out / "trace.json", results)


def spread(steps):
    """The same steps in an order of which every beginning is spread over the trace, so that a run that ends early still covers it."""
    width = 1 << max(len(steps) - 1, 1).bit_length()
    order = sorted(range(width), key=lambda i: int(f"{i:0{width.bit_length() - 1}b}"[::-1], 2))
    return [steps[i] for i in order if i < len(steps)]


def optional_systems(options):
    """leanattn and FlashInfer, None where one is not there, and why."""
    from peers import system_flashinfer, system_leanattn

    leanattn = flashinfer = None
    missing = {}
    if options.library:
        leanattn = system_leanattn.LeanattnSystem(options.library, options.db and options.db.resolve())
    else:
        missing["leanattn"] = "no --library"
    try:
        flashinfer = system_flashinfer.FlashInferSystem()
    except ImportError as problem:
        missing["FlashInfer"] = str(problem)
    for name, reason in missing.items():
        print(f"{name} is left out: {reason}", file=sys.stderr, flush=True)
    return leanattn, flashinfer, missing


def write_reports(out, results):
    files.write_text(out / "trace.md", trace_report.markdown(results))
    picture = trace_report.svg(results)
    if picture:
        files.write_text(out / "trace.svg", picture)


if __name__ == "__main__":
    sys.exit(main())
