"""Times steps that mix decodes, chunks of prompts and whole prompts: leanattn, FlashAttention-3, FlashInfer and, where they apply, FlashAttention-4
and cuDNN.

    python3 bench/mixed --library build/shared/libleanattn.so --fa3 _vllm_fa3_C.abi3.so --out results

--fa3 is vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so out of vLLM's wheel, which PyTorch loads without vLLM. All kernels run in one process, as CUDA
graphs in interleaved rounds, with a cold L2. Every captured graph must agree with attention in FP64, for the first, the last and some other query
tokens of every request, before anything is timed. With --ideal it measures instead how fast this GPU reads and what that makes of the mixed steps.
This program needs a GPU and PyTorch. It writes mixed.json (raw samples, after every step) and mixed.md, or ideal.json and ideal.md. Exit codes: 0
done; 2 wrong usage; 5 a result of leanattn was wrong; 6 the run ended with steps left over, by --time-limit or a kernel that broke the CUDA context.
"""
import argparse
import datetime
import functools
import pathlib
import re
import secrets
import sys
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))  # for the packages beside this one

import shape_table  # noqa: E402  (the path first)
from peers import capture, files, summary  # noqa: E402
import mixed_report  # noqa: E402
import mixed_steps  # noqa: E402

MOST_BYTES = 60 << 30  # of K, V, q and outputs
FAST_ROUNDS = 5


def main():
    options = parse()
    if options.report_only:
        report(options, files.read_json(options.out / f"{kind(options)}.json"))
        return 0
    chosen = chosen_steps(options)
    print(f"{len(chosen)} steps, those drawn with --seed {options.seed}", flush=True)
    return ideal(options, chosen) if options.ideal else measure(options, chosen, tune(options, chosen) if options.tune else {})


def parse(arguments=None):
    parser = argparse.ArgumentParser(prog="mixed", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=pathlib.Path, help="libleanattn.so")
    parser.add_argument("--fa3", type=pathlib.Path, help="FlashAttention-3's extension; without it it is left out")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder of the results")
    parser.add_argument("--db", type=pathlib.Path, help="cache directory with leanattn's tuning database; default: the user's")
    parser.add_argument("--tune", metavar="TIME", help="first tune the steps that are not drawn, and their decodes, with --program, this long each, e.g. 6s")
    parser.add_argument("--program", type=pathlib.Path, help="the leanattn program, for --tune")
    parser.add_argument("--steps", type=re.compile, default=re.compile(""), metavar="REGEX",
                        help="only steps of which group and name, as in \"chunks: 8 x q64 of 16k, 32/8\", match")
    parser.add_argument("--drawn", type=int, default=mixed_steps.DRAWN_COUNT, metavar="N", help="steps that are drawn (%(default)s)")
    parser.add_argument("--seed", type=int,
                        help="of the drawn steps, the data and the order of rounds; default: another one in each run, which the report names")
    parser.add_argument("--layout", choices=["NHD", "HND"], default="NHD", help="of a page: tokens outside KV heads, or inside (%(default)s)")
    parser.add_argument("--seconds", type=float, default=1.0, help="time of a step's race, which has 15 to 31 rounds whatever this is (%(default)s)")
    parser.add_argument("--fast", action="store_true", help=f"{mixed_steps.FAST_OF_GROUP} steps of each group, and {FAST_ROUNDS} rounds")
    parser.add_argument("--time-limit", type=float, default=float("inf"), metavar="SECONDS", help="start no further step after this long")
    parser.add_argument("--ideal", action="store_true", help="measure how fast N SMs read pieces of pages, and the ideal time of the mixed steps")
    parser.add_argument("--report-only", action="store_true", help="write Markdown again from the JSON, also where it is compressed; needs no GPU")
    options = parser.parse_args(arguments)
    if not options.report_only and not options.library and not options.ideal:
        parser.error("--library is missing")
    if options.ideal and not options.report_only and not options.fa3:
        parser.error("--ideal needs --fa3")
    if options.tune and not options.program:
        parser.error("--tune needs --program")
    options.seed = secrets.randbits(31) if options.seed is None else options.seed
    return options


def kind(options):
    return "ideal" if options.ideal else "mixed"


def report(options, results):
    text = mixed_report.ideal(results) if options.ideal else mixed_report.markdown(results)
    files.write_text(options.out / f"{kind(options)}.md", text)
    return text


def chosen_steps(options):
    steps = mixed_steps.fixed() + mixed_steps.special() + mixed_steps.drawn(options.seed, options.drawn)
    steps = [step for step in steps if options.steps.search(f"{step.group}: {step.name}")]
    return mixed_steps.fast(steps) if options.fast else steps


def call(step, layout):
    """A line of a call capture that asks for the step once."""
    strided = layout == "NHD" or not step.paged
    return capture.line({"q_heads": step.q_heads, "kv_heads": step.kv_heads, "head_dim": step.head_dim, "layout": "strided" if strided else "contiguous"},
                        {"batch": step.batch, "longest_context": step.longest, "total_context": step.tokens if step.ragged else 0,
                         **({"mix": step.mix} if step.mix else {})}, step.features)


def tune(options, chosen):
    """Tunes each step, and its decodes and other requests for launches of their own. Returns {name: why} of those that the tuner refuses."""
    refused, seconds = {}, shape_table.seconds(options.tune)
    for step in (step for step in chosen if not step.group.startswith("drawn")):
        for part in [step, *(step.part(*requests) for requests in step.parts())]:
            failed = capture.tune(options.program, options.db, options.out / "mixed-steps.jsonl", [call(part, options.layout)], seconds)
            if failed:
                refused[f"{step.name}, {part.batch} requests"] = failed
    return refused


def begun(options, all_systems):
    """The head of a record."""
    from peers import environment

    return {"schema_version": 1, "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), "seconds": options.seconds,
            "seed": options.seed, "layout": options.layout, "environment": environment.environment(all_systems)}


def make_systems(options):
    """Adapters of what is there, and {name: why} of what is not."""
    import mixed_peers
    import mixed_systems

    missing = {} if options.fa3 else {"FA3": "no --fa3"}

    def made(name, factory):
        try:
            return factory()
        except (ImportError, OSError) as problem:
            missing[name] = str(problem)
            return None

    ours = mixed_systems.LeanattnMixed(options.library, options.db)
    flash3 = made("FA3", lambda: mixed_systems.FlashAttention3Mixed(str(options.fa3.resolve()))) if options.fa3 else None
    others = [made("FlashInfer", mixed_peers.FlashInferMixed), made("FA4", mixed_peers.FlashAttention4), mixed_peers.CudnnPrompts()]
    return [system for system in (ours, mixed_systems.SumOfTwo(ours, flash3), flash3, *others) if system], missing


def measure(options, chosen, not_tuned):
    import torch  # after --help and --report-only, which need none of this

    from peers import measure as one_case, systems

    began, left = time.monotonic(), 0
    with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
        all_systems, missing = make_systems(options)
        results = {**begun(options, all_systems), "not_installed": missing, "not_tuned": not_tuned, "cases": []}
        for i, step in enumerate(chosen):
            if time.monotonic() - began > options.time_limit:
                left = len(chosen) - i
                break
            try:
                results["cases"].append(measure_step(step, all_systems, options))
            except systems.ContextLost as lost:  # nothing works in this process any more
                results["broke"] = dict(vars(lost.failure), name=step.name)
                left = len(chosen) - i
                break
            except Exception as problem:  # out of memory, say: the other steps are still worth having
                results["cases"].append(one_case.without_figures(step, systems.reason_of(problem)))
            files.write_json(options.out / "mixed.json", results)
            print(mixed_report.progress(results["cases"][-1]), flush=True)
            torch.cuda.empty_cache()
    files.write_json(options.out / "mixed.json", results)
    print(report(options, results))
    wrong = any(failure.get("wrong") and failure["system"] in (summary.OURS, mixed_report.SUM) for case in results["cases"] for failure in case["failures"])
    return 5 if wrong else 6 if left else 0


def measure_step(step, all_systems, options):
    """The record of one step, in the form of peers.measure."""
    import torch

    from peers import measure as one_case, systems
    import mixed_data

    began = time.perf_counter()
    copies = mixed_data.copies_for(step, torch.cuda.get_device_properties(0).L2_cache_size)
    record = dict(one_case.empty_record(step), requests=step.requests, flops=step.flops, copies=copies, gpu_state=[one_case.gpu_state()])
    outputs = 2 * step.query_tokens * step.q_heads * step.values * copies * len(mixed_report.COLUMNS)
    needed = copies * step.kv_bytes * (2 if step.prompts and step.paged else 1) + outputs
    if needed > MOST_BYTES:
        return one_case.without_figures(step, f"{copies} copies take {needed >> 30} GB")
    data = mixed_data.StepData(step, copies, options.seed, options.layout)
    candidates = []
    for system in all_systems:
        for made in system.candidates(data, functools.partial(systems.attempt, system.name, {})):
            if isinstance(made, systems.Failure):
                record["failures"].append(vars(made))
            else:
                candidates.append(made)
    rows, reference = data.reference()
    rounds = FAST_ROUNDS if options.fast else None
    record["modes"]["cold"] = one_case.measure_mode("cold", step, candidates, copies, reference, record, options.seconds, options.seed, rows=rows,
                                                    flops=step.flops, rounds=rounds)
    record["gpu_state"].append(one_case.gpu_state())
    record["seconds"] = time.perf_counter() - began
    return record


def ideal(options, chosen):
    import torch

    import mixed_ideal
    import mixed_systems

    with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
        flash3 = mixed_systems.FlashAttention3Mixed(str(options.fa3.resolve()))
        results = {**begun(options, [flash3]), "reads": mixed_ideal.reads(), "steps": []}
        for step in (step for step in chosen if step.parts() and step.paged):
            results["steps"].append(mixed_ideal.of_step(step, flash3, options, results["reads"]))
            files.write_json(options.out / "ideal.json", results)
            torch.cuda.empty_cache()
    print(report(options, results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
