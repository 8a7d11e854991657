"""Times decode steps of layers with a recurrent state: leanattn, flash-linear-attention, vLLM, FlashInfer, and copies of the same states.

    python3 bench/engines/pack_engine.py recurrent-peers peers.tar.xz       # where there is a package index
    mkdir -p peers && tar -C peers -xJf peers.tar.xz                        # on the GPU machine
    python3 bench/recurrent --library build/shared/libleanattn.so --peers peers --out results --quick

Each system has a process of its own, because a peer's fault must not end the run. In a round every process in turn times all of its kernels and, as a
yardstick, a kernel that reads and writes the same states in place; processes take their turns in another order in each round, and kernels within a turn
as well, while the other processes wait. All are CUDA graphs over copies of the states that together exceed four times the L2. A kernel is timed only after
its graph has reproduced the step in FP64, outputs and states. A process that dies or does not answer is started again for the next step, and left out
after its third end. This program needs a GPU and PyTorch. It writes recurrent.json (raw samples, after every step) and recurrent.md. Exit codes: 0 done;
2 wrong usage; 5 a result of leanattn was wrong; 6 the run ended with steps left over, by --time-limit.
"""
import argparse
import dataclasses
import datetime
import json
import os
import pathlib
import random
import selectors
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))  # for the packages beside this one

from peers import files  # noqa: E402  (the path first)
import recurrent_report  # noqa: E402
import recurrent_steps  # noqa: E402

ROUNDS, QUICK_ROUNDS, QUICK_LIMIT = 15, 9, 90
PATIENCE = {"start": 90, "prepare": 120, "round": 20}  # seconds until a process that does not answer is ended
MOST_ENDS = 3
MEMORY_SHARE = 0.85  # of the GPU's memory that all processes together may take
CONTEXT_BYTES = 1 << 30  # of a process, beside its tensors


def main():
    options = parse()
    if options.report_only:
        files.write_text(options.out / "recurrent.md", recurrent_report.markdown(files.read_json(options.out / "recurrent.json")))
        return 0
    return measure(options)


def parse(arguments=None):
    parser = argparse.ArgumentParser(prog="recurrent", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = recurrent_report.SYSTEMS
    numbers = lambda text: tuple(int(number) for number in text.split(","))  # noqa: E731
    names = lambda allowed: (lambda text: [one(name, allowed) for name in text.split(",")])  # noqa: E731
    parser.add_argument("--library", type=pathlib.Path, help="libleanattn.so")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder of the results")
    parser.add_argument("--peers", type=pathlib.Path, help="folder with packages of the peers, put in front of PYTHONPATH")
    parser.add_argument("--db", type=pathlib.Path, help="leanattn's cache directory; default: the user's")
    parser.add_argument("--systems", type=names(known), default=list(known), metavar="NAMES", help=f"of {','.join(known)}")
    parser.add_argument("--kinds", type=names(recurrent_steps.KINDS), default=recurrent_steps.KINDS, help=f"of {','.join(recurrent_steps.KINDS)}")
    parser.add_argument("--heads", type=lambda text: tuple(tuple(map(int, pair.split("/"))) for pair in text.split(",")), metavar="QK/V,..",
                        help="default: those of the models")
    parser.add_argument("--batches", type=numbers, default=recurrent_steps.BATCHES, help="default: 1 to 1024")
    parser.add_argument("--tokens", type=numbers, default=recurrent_steps.TOKENS, help="of a request in a step; default: 1,2,4,8")
    parser.add_argument("--states", type=names(recurrent_steps.STATE_BYTES), default=["fp32"], help="fp32, bf16; default: fp32")
    parser.add_argument("--snapshots", choices=["with", "without", "both"], default="both", help="of several tokens (%(default)s)")
    parser.add_argument("--quick", action="store_true", help=f"one token of 16/32 heads and of KDA, four drafts, {QUICK_ROUNDS} rounds, at most "
                        f"{QUICK_LIMIT} seconds")
    parser.add_argument("--rounds", type=int, help=f"default: {ROUNDS}")
    parser.add_argument("--seed", type=int, default=1, help="of the data and the order of turns (%(default)s)")
    parser.add_argument("--time-limit", type=float, metavar="SECONDS", help="start no further step after this long")
    parser.add_argument("--report-only", action="store_true", help="write Markdown again from the JSON, also where it is compressed; needs no GPU")
    options = parser.parse_args(arguments)
    if not options.report_only and "leanattn" in options.systems and not options.library:
        parser.error("--library is missing")
    options.rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    options.time_limit = options.time_limit or (QUICK_LIMIT if options.quick else float("inf"))
    return options


def one(name, allowed):
    if name not in allowed:
        raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(allowed)}")
    return name


def chosen_steps(options):
    if options.quick:
        return recurrent_steps.quick()
    stored = {"with": (True,), "without": (False,), "both": (True, False)}[options.snapshots]
    return recurrent_steps.steps(options.kinds, options.batches, options.tokens, options.states, stored, options.heads)


class Process:
    """One system's process, asked and answered in lines of JSON."""

    def __init__(self, system, options, log):
        given = {"library": str(options.library), "db": str(options.db) if options.db else None, "seed": options.seed}
        environment = dict(os.environ)
        if options.peers:
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(options.peers.resolve()), environment.get("PYTHONPATH")]))
        self.log = log
        with log.open("w") as errors:
            self.process = subprocess.Popen([sys.executable, HERE / "recurrent_process.py", system, json.dumps(given)], stdin=subprocess.PIPE,
                                            stdout=subprocess.PIPE, stderr=errors, start_new_session=True, env=environment)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.process.stdout, selectors.EVENT_READ)
        self.read = b""

    def tell(self, command):
        try:
            self.process.stdin.write(json.dumps(command).encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            pass  # it has ended; its answer will say so

    def answer(self, patience):
        """The next answer, a dict. Raises Ended when the process has ended, or after `patience` seconds, when it is ended."""
        deadline = time.monotonic() + patience
        while b"\n" not in self.read:
            if not self.selector.select(max(0, deadline - time.monotonic())):
                self.end()
                raise Ended(f"it had not answered after {patience} s")
            part = os.read(self.process.stdout.fileno(), 1 << 16)
            if not part:
                code = self.process.wait()
                self.end()
                raise Ended(self.last_words() or f"it ended with {code}")
            self.read += part
        line, self.read = self.read.split(b"\n", 1)
        return json.loads(line)

    def last_words(self):
        """The last line of its standard error that names an error."""
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return next((line for line in reversed(lines) if "Error" in line), lines[-1] if lines else "")[:300]

    def end(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            try:
                pipe.close()
            except OSError:
                pass


class Ended(Exception):
    """A process that cannot go on, and why."""


class Processes:
    """Those of all systems, {name: process}. One that ends is started again before the next step."""

    def __init__(self, options, results):
        self.options, self.results, self.running, self.ends = options, results, {}, dict.fromkeys(options.systems, 0)

    def start(self):
        """Starts what is not running and has not ended too often."""
        begun = {}
        for name in self.options.systems:
            if name not in self.running and self.ends[name] < MOST_ENDS:
                begun[name] = Process(name, self.options, self.options.out / f"{name}.log")
        for name, process in begun.items():
            try:
                for fact, value in process.answer(PATIENCE["start"])["environment"].items():
                    self.results["environment"].setdefault(fact, value)
                self.running[name] = process
            except Ended as end:
                self.ends[name] = MOST_ENDS  # it would not start next time either
                self.results["not_started"][name] = str(end)

    def answers(self, names, command, kind):
        """Tells all `names` at once, and returns {name: answer} of those that answer and {name: why} of the others."""
        for name in names:
            self.running[name].tell(command)
        given, lost = {}, {}
        for name in names:
            try:
                given[name] = self.running[name].answer(PATIENCE[kind])
            except Ended as end:
                lost[name] = str(end)
                del self.running[name]
                self.ends[name] += 1
        return given, lost

    def end(self):
        for process in self.running.values():
            process.end()


def measure(options):
    options.out.mkdir(parents=True, exist_ok=True)
    began, left, chosen = time.monotonic(), 0, chosen_steps(options)
    results = {"schema_version": 1, "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), "seed": options.seed,
               "rounds": options.rounds, "environment": {}, "not_started": {}, "steps": []}
    processes, turns = Processes(options, results), random.Random(options.seed)
    print(f"{len(chosen)} steps", flush=True)
    try:
        for i, step in enumerate(chosen):
            processes.start()
            if not processes.running or time.monotonic() - began > options.time_limit:
                left = len(chosen) - i
                break
            results["steps"].append(measure_step(step, processes, options.rounds, turns))
            files.write_json(options.out / "recurrent.json", results)
            print(recurrent_report.progress(results["steps"][-1]), flush=True)
    finally:
        processes.end()
    results["left"] = left
    files.write_json(options.out / "recurrent.json", results)
    text = recurrent_report.markdown(results)
    files.write_text(options.out / "recurrent.md", text)
    print(text)
    wrong = any(failure["wrong"] and failure["system"] == recurrent_report.OURS for step in results["steps"] for failure in step["failures"])
    return 5 if wrong else 6 if left else 0


def measure_step(step, processes, rounds, turns):
    """The record of one step: {"lines": [{"system", "variant", "samples_us", ..}], "failures": [..]}. The yardsticks are lines of each system."""
    began, environment = time.monotonic(), processes.results["environment"]
    copies = step.copies(environment["l2_bytes"])
    record = {**dataclasses.asdict(step), "name": step.name, "group": step.group, "state_bytes": step.state_bytes, "traffic_bytes": step.traffic_bytes,
              "copies": copies, "lines": [], "failures": []}

    def failed(system, failure):
        record["failures"].append({"system": system, "variant": "-", "wrong": False, **failure})

    room = environment["memory_bytes"] * MEMORY_SHARE / len(processes.running) - CONTEXT_BYTES
    if step.held_bytes(copies) > room:
        failed("all", {"reason": f"a process needs {step.held_bytes(copies) >> 20} MB, and has {int(room) >> 20}"})
        return record
    # All prepare at once: they compile. Nothing is timed yet.
    made, lost = processes.answers(list(processes.running), {"do": "prepare", "step": dataclasses.asdict(step), "copies": copies}, "prepare")
    samples = {name: [[] for _ in answer["lines"]] for name, answer in made.items()}
    for name, answer in made.items():
        for failure in answer["failures"]:
            failed(name, failure)
    # Only the yardsticks are left of a system that has no kernel for this step.
    racing = [name for name, answer in made.items() if any(line["variant"] not in recurrent_report.YARDSTICKS for line in answer["lines"])]
    for index in range(rounds + 1):
        turns.shuffle(racing)
        for name in list(racing):
            order = list(range(len(samples[name])))
            turns.shuffle(order)
            answer, gone = processes.answers([name], {"do": "round", "order": order}, "round")
            lost |= gone
            if gone:
                racing.remove(name)
            elif index:  # the first round is a warm-up
                for series, sample in zip(samples[name], answer[name]["samples_us"], strict=True):
                    series.append(sample)
    for name, why in lost.items():
        failed(name, {"reason": why})
    for name in (name for name in made if name in racing):
        record["lines"] += [{"system": name, **line, "samples_us": series} for line, series in zip(made[name]["lines"], samples[name])]
    record["seconds"] = time.monotonic() - began
    return record


if __name__ == "__main__":
    sys.exit(main())
