"""Times leanattn, PyTorch's FlashAttention-2 and cuDNN backends, FlashInfer, FlashAttention-3 and the pure-read limit on the same data.

    python3 bench/peers --library build/shared/libleanattn.so --program build/cli/leanattn --tune 6s --out results

All kernels run in one process, as CUDA graphs in interleaved rounds, with a cold and a warm L2, with and without programmatic dependent launch.
Every captured graph must reproduce the FP64 oracle's result before anything is timed. The report names what is not installed and leaves it out.
A kernel that breaks the CUDA context is named too, and the run goes on in a new process without that kernel at that head_dim. This program needs
a GPU and PyTorch.

It writes peers.json (raw samples, after every shape), peers.md, and the speed-ups as peers-speedup.svg and peers-speedup-dark.svg. Exit codes:
0 done; 2 wrong usage; 5 a result of leanattn was wrong (a peer with a wrong result is named and gets no figure); 6 --time-limit ended the run
with shapes left over, which --resume measures.
"""
import argparse
import datetime
import os
import pathlib
import secrets
import sys
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))  # for the packages beside this one

from peers import files, plot, report, shapes, speedup_plot  # noqa: E402  (the path first)
import shape_table  # noqa: E402

SYSTEMS = ["leanattn", "FA2", "cuDNN", "FlashInfer", "FA3"]


def main():
    options = parse()
    if options.report_only:
        write_reports(options.out, files.read_json(options.out / "peers.json"))
        return 0
    results = begun(options)
    cases = chosen_cases(options, results.get("fresh_seed", shapes.DRAWN_SEED))
    if options.tune and not options.resume:
        tune(options)
    return measure(options, cases, results)


def begun(options):
    """The record of the run: a new one, with the seed of its fresh list, or the one that --resume goes on with."""
    path = options.out / "peers.json"
    if options.resume and path.exists():
        return files.read_json(path)
    return {"schema_version": 1, "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), "seconds": options.seconds,
            "seed": options.seed, "fresh_seed": secrets.randbits(31) if options.fresh_seed is None else options.fresh_seed, "environment": {},
            "not_installed": {}, "cases": [], "crashed": []}


def parse():
    parser = argparse.ArgumentParser(prog="peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=pathlib.Path, help="libleanattn.so; without it leanattn is left out")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder of the results")
    parser.add_argument("--db", type=pathlib.Path, help="cache directory with leanattn's tuning database; default: the user's")
    parser.add_argument("--tune", metavar="TIME", help="first tune the published shapes with --program, this long a shape, e.g. 6s")
    parser.add_argument("--program", type=pathlib.Path, help="the leanattn program, for --tune")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="of %(default)s")
    parser.add_argument("--lists", default=",".join(shapes.LISTS), help="of %(default)s")
    parser.add_argument("--only", default="", help="shapes by number within their lists taken together, e.g. 0,4,25")
    parser.add_argument("--modes", default="cold,warm", help="states of the L2: %(default)s")
    parser.add_argument("--seconds", type=float, default=1.5, help="time of a shape's race in each mode, which has 15 to 31 rounds whatever this is (%(default)s)")
    parser.add_argument("--time-limit", type=float, default=float("inf"), metavar="SECONDS", help="start no further shape after this long")
    parser.add_argument("--seed", type=int, default=1, help="of the data and the order of rounds")
    parser.add_argument("--fresh-seed", type=int, help="draws the shapes of the list \"fresh\"; default: another one in each run, which the report names")
    parser.add_argument("--resume", action="store_true", help="keep what --out has and measure the rest")
    parser.add_argument("--report-only", action="store_true", help="write Markdown and SVG again from peers.json or peers.json.gz; needs no GPU")
    options = parser.parse_args()
    options.systems, options.lists, options.modes = (text.split(",") for text in (options.systems, options.lists, options.modes))
    for given, known in ((options.systems, SYSTEMS), (options.lists, list(shapes.LISTS)), (options.modes, ["cold", "warm"])):
        for name in given:
            if name not in known:
                parser.error(f"{name!r} is not one of {', '.join(known)}")
    if options.tune and not options.program:
        parser.error("--tune needs --program")
    return options


def chosen_cases(options, fresh_seed):
    cases = [case for name in options.lists for case in shapes.LISTS[name](fresh_seed)]
    return [cases[int(i)] for i in options.only.split(",")] if options.only else cases


def tune(options):
    """Runs `leanattn tune` for the published shapes, once per problem and batch, as bench/shape_table.py does; with and without dependent launch
    where the program can."""
    program, database = str(options.program), ["--db", str(options.db.resolve())] if options.db else []
    help_text = shape_table.run(program, ["tune", "--help"])
    budget = shape_table.seconds(options.tune)
    every = list(shape_table.SHAPES)
    for problem in dict.fromkeys(shape[1:4] for shape in every):
        for batch in dict.fromkeys(s[0] for s in every if s[1:4] == problem):
            contexts = [str(s[4]) for s in every if s[1:4] == problem and s[0] == batch]
            for pdl in [[], ["--pdl"]] if "--pdl" in help_text else [[]]:
                shape_table.run(program, ["--quiet", *database, "tune", *shape_table.problem_flags(*problem), "--batch", str(batch), "--context",
                                          ",".join(contexts), "--budget", f"{budget * len(contexts):g}s", *pdl])


def measure(options, cases, results):
    import torch  # after --help and --report-only, which need none of this

    from peers import environment, measure as one_case, systems

    began = time.monotonic()
    path = options.out / "peers.json"
    with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
        all_systems = make_systems(options, results)
        results["environment"] = environment.environment(all_systems)
        done = {(case["list"], case["name"]) for case in results["cases"]}
        left = 0
        for case in cases:
            if (case.group, case.name) in done:
                continue
            if time.monotonic() - began > options.time_limit:
                left += 1
                continue
            avoided = {}
            for crash in results["crashed"]:
                if crash["head_dim"] == case.head_dim:
                    reason = f"broke the CUDA context at this head_dim before ({crash['name']})"
                    avoided.setdefault(crash["system"], {})[systems.kernel_of(crash["variant"])] = reason
            try:
                record = one_case.measure_case(case, all_systems, options.modes, options.seconds, avoided, options.seed)
            except systems.ContextLost as lost:
                # Nothing works in this process any more: note who did it, and go on in a fresh one without that candidate.
                results["crashed"].append(dict(vars(lost.failure), list=case.group, name=case.name, head_dim=case.head_dim))
                files.write_json(path, results)
                restart(options, time.monotonic() - began)
            except Exception as problem:  # out of memory, say: the other shapes are still worth having
                record = one_case.without_figures(case, systems.reason_of(problem))
                if not systems.context_works():
                    results["cases"].append(record)
                    files.write_json(path, results)
                    restart(options, time.monotonic() - began)
            results["cases"].append(record)
            files.write_json(path, results)
            print(progress(record), flush=True)
            torch.cuda.empty_cache()
    wrong = any(failure.get("wrong") and failure["system"] == "leanattn" for case in results["cases"] for failure in case["failures"])
    write_reports(options.out, results)
    print(report.failures(results), flush=True)
    if left:
        print(f"{left} shapes are left over; --resume goes on", file=sys.stderr)
    return 5 if wrong else 6 if left else 0


def make_systems(options, results):
    """Adapters of what is there; what is not is named in the results."""
    from peers import system_flash3, system_flashinfer, system_leanattn, system_limit, system_torch

    def leanattn():
        if not options.library:
            raise ImportError("no --library")
        return [system_leanattn.LeanattnSystem(options.library, options.db and options.db.resolve())]

    factories = {
        "leanattn": leanattn,
        **{system.name: (lambda system=system: [system]) for system in system_torch.torch_systems()},
        "FlashInfer": lambda: [system_flashinfer.FlashInferSystem()],
        "FA3": lambda: [system_flash3.FlashAttention3System()],
    }
    made = [system_limit.ReadLimitSystem()]
    results["not_installed"] = {}
    for name in options.systems:
        try:
            made += factories[name]()
        except ImportError as missing:
            results["not_installed"][name] = str(missing)
            print(f"{name} is left out: {missing}", file=sys.stderr, flush=True)
    return made


def restart(options, elapsed):
    """Replaces this process by one that resumes; --time-limit shrinks by what is spent."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--resume"]
    if options.time_limit != float("inf"):
        arguments += ["--time-limit", f"{max(options.time_limit - elapsed, 0):.0f}"]
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, str(pathlib.Path(__file__).resolve().parent), *arguments, "--resume"])


def progress(record):
    """One line a shape: medians with a cold L2."""
    from peers import summary

    measured = record["modes"].get("cold") or record["modes"].get("warm")
    found = dict.fromkeys((line["system"], line["pdl"]) for line in summary.timed(measured))
    medians = [f"{summary.label(*key)} {summary.median_us(summary.best_line(measured, *key)):.2f}" for key in found]
    return f"{record['list']} {record['name']}: {', '.join(medians) or 'nothing ran'} ({record.get('seconds', 0):.1f} s)"


def write_reports(out, results):
    files.write_text(out / "peers.md", report.markdown(results))
    for name, theme in (("peers-speedup", plot.LIGHT), ("peers-speedup-dark", plot.DARK)):
        picture = speedup_plot.svg(results, theme)
        if picture:
            files.write_text(out / f"{name}.svg", picture)


if __name__ == "__main__":
    sys.exit(main())
