"""Times decode steps whose contexts two GPUs share: a group of leanattn, and what engines do instead, beside one GPU and split heads.

    python3 bench/groups --tune 3 --out results

One process a GPU. All ways to do a step run in interleaved rounds, as CUDA graphs of many steps in a row, with a cold L2; the time of a step is that of
the slower rank. Every result is first compared with attention in FP64, on every rank and in every copy of the caches. NCCL does the collectives of the
baselines, with NVLink's multicast off (NCCL_NVLS_ENABLE=0). This program needs two GPUs of one host, PyTorch with NCCL, and the leanattn package.

It writes groups.json.gz (raw samples of every rank) and groups.md, both after every row. Exit codes: 0 done; 1 a result was wrong, or something failed; 2 wrong usage;
6 --seconds ended the run with rows left over.
"""
import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]  # for the packages beside this one

import group_report  # noqa: E402  (the path first)
import group_steps  # noqa: E402
from peers import files  # noqa: E402

RANKS = 2
SETTINGS = {"NCCL_NVLS_ENABLE": "0", "LEANATTN_WAIT_BOUND_MS": "3000", "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}


def main():
    began = time.monotonic()
    options = parse()
    if options.report_only:
        results = files.read_json(options.out / "groups.json")
    else:
        results = measure(options, began)
    group_report.write(options.out, results)
    print(group_report.markdown(results))
    return exit_code(results)


def parse():
    parser = argparse.ArgumentParser(prog="groups", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder of the results")
    parser.add_argument("--rows", default=",".join(group_steps.steps()), help="of %(default)s")
    parser.add_argument("--rounds", type=int, default=21, help="(%(default)s)")
    parser.add_argument("--seconds", type=float, default=100, help="start no further row after this long; at most half of it is for --tune (%(default)s)")
    parser.add_argument("--db", type=pathlib.Path, help="cache directory with leanattn's tuning database; default: the user's")
    parser.add_argument("--tune", type=float, metavar="SECONDS", help="first tune what the rows look up, this long a shape: the parts on GPU 0, then the groups on both")
    parser.add_argument("--program", type=pathlib.Path, help="the leanattn program, for --tune; default: the package's")
    parser.add_argument("--seed", type=int, default=1, help="of the data and the order of rounds")
    parser.add_argument("--ranks-on-one-gpu", action="store_true", help="a test of this program: both ranks are processes on one GPU, without NCCL; the times mean nothing")
    parser.add_argument("--report-only", action="store_true", help="write Markdown again from groups.json.gz; needs no GPU")
    options = parser.parse_args()
    options.rows = options.rows.split(",")
    for row in options.rows:
        if row not in group_steps.steps():
            parser.error(f"--rows: {row!r} is not one of {', '.join(group_steps.steps())}")
    if options.rounds < 1:
        parser.error("--rounds takes a number from 1 on")
    if options.tune is not None and not options.tune > 0:
        parser.error("--tune takes seconds above 0")
    return options


def measure(options, began):
    """The record of a run. Rank 0 writes what there is after every step, so that nothing is lost where a rank fails or somebody ends the run."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    import torch  # after --help and --report-only, which need none of this

    import group_ranks

    needed = 1 if options.ranks_on_one_gpu else RANKS
    if torch.cuda.device_count() < needed:
        sys.exit(f"groups: {torch.cuda.device_count()} GPUs are there, and {needed} are needed; --ranks-on-one-gpu tries the program on one")
    environment = {**group_ranks.environment(), "leanattn": version(), "link": link()}
    if options.tune:
        tune(options, began + options.seconds / 2)
    results = {"schema_version": 1, "ranks": RANKS, "one_gpu": options.ranks_on_one_gpu, "rounds": options.rounds, "seed": options.seed, "environment": environment,
               "finished": False, "steps": []}
    group_report.write(options.out, results)
    failure = None
    with tempfile.TemporaryDirectory() as folder:
        settings = {"folder": folder, "out": str(options.out.resolve()), "ranks": RANKS, "one_gpu": options.ranks_on_one_gpu, "steps": options.rows,
                    "rounds": options.rounds, "seed": options.seed, "deadline": began + options.seconds, "environment": environment,
                    "cache_dir": str(options.db.resolve()) if options.db else None}
        try:
            torch.multiprocessing.spawn(group_ranks.run, args=(settings,), nprocs=RANKS)
        except Exception as problem:  # of a rank, with its traceback
            failure = str(problem)
            print(failure, file=sys.stderr, flush=True)
    return dict(files.read_json(options.out / "groups.json"), failure=failure)


def tune(options, until):
    """Tunes what the rows look up, in the database that the ranks then read, and ends at `until` at the latest."""
    import group_systems
    import leanattn

    engine = leanattn.Engine(0, cache_dir=options.db.resolve()) if options.db else leanattn.engine(0)
    steps = group_steps.steps()
    for problem, shapes in group_systems.tuned_shapes([steps[row] for row in options.rows], RANKS).items():
        budget = min(options.tune * len(shapes), until - time.monotonic())
        if budget < 1:
            return print("no time was left to tune more", flush=True)
        for tuned in leanattn.tune(problem, shapes, budget=budget, program=options.program, engine=engine):
            print(f"{problem.q_heads}/{problem.kv_heads} heads{', LSE' if problem.lse else ''}, {tuned.shape}: {tuned.status}, {tuned.median_us:.2f} us", flush=True)


    tune_groups(options, until)


def tune_groups(options, until):
    """Tunes the groups themselves with `leanattn tune`, which races what was best for the parts on both GPUs together."""
    lines = group_steps.captured_groups([group_steps.steps()[row] for row in options.rows], RANKS)
    budget = min(options.tune * len(lines), until - time.monotonic())
    if budget < 1:
        return print("no time was left to tune the groups", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        capture = pathlib.Path(folder, "groups.jsonl")
        capture.write_text("".join(json.dumps(line) + "\n" for line in lines))
        program = [str(options.program.resolve())] if options.program else [sys.executable, "-m", "leanattn"]
        database = ["--db", str(options.db.resolve())] if options.db else []
        devices = "0" if options.ranks_on_one_gpu else ",".join(str(rank) for rank in range(RANKS))
        subprocess.run([*program, *database, "tune", "--from-capture", str(capture), "--device", devices, "--budget", f"{budget:.0f}s"], check=True)


def exit_code(results):
    failures = [failure for step in results["steps"] for failure in step["failures"]]
    if not results["finished"] or any(not failure.get("left") for failure in failures):
        return 1
    return 6 if failures else 0


def version():
    """The version of the package and the revision of its kernels."""
    import leanattn

    return f"{leanattn.__version__}, library {leanattn._leanattn._revision}"


def link():
    """How the first two GPUs are connected, as nvidia-smi calls it: NV18 is 18 links of NVLink."""
    return link_of(output(["nvidia-smi", "topo", "-m"]))


def link_of(topology):
    """What the table of `nvidia-smi topo -m` has between GPU 0 and GPU 1; None where there is no such table."""
    lines = [line.split() for line in re.sub(r"\x1b\[[0-9;]*m", "", topology).splitlines()]
    try:
        head = next(cells for cells in lines if "GPU1" in cells)  # has no name over the first column
        row = next(cells for cells in lines if cells and cells[0] == "GPU0" and cells is not head)
        return row[1 + head.index("GPU1")]
    except (StopIteration, IndexError):
        return None


def output(command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout if done.returncode == 0 else ""


if __name__ == "__main__":
    sys.exit(main())
