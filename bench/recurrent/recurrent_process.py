"""recurrent_process.py -- the process of one system. It reads a command a line on its input, JSON, and answers each with one line.

    {"do": "prepare", "step": {..}, "copies": N}   makes the data, checks every kernel and captures it beside the copies:
                                                   {"lines": [..], "failures": [..]}
    {"do": "round", "order": [..]}                 times each line once, in this order: {"samples_us": [..]}

Whatever else a library prints goes to the standard error.
"""
import contextlib
import gc
import json
import os
import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))  # for the packages beside this one

import torch  # noqa: E402  (the path first)

from peers import environment, systems, timing  # noqa: E402
import recurrent_data  # noqa: E402
import recurrent_steps  # noqa: E402
import recurrent_systems  # noqa: E402

COPY, TRAFFIC = "copy", "traffic"  # the yardsticks: states read and written once, and written as often as the step writes them


def main():
    name, options = sys.argv[1], json.loads(sys.argv[2])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # answers have a pipe of their own

    def answer(value):
        print(json.dumps(value), file=answers, flush=True)

    with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
        copies = recurrent_systems.Copies()
        system = recurrent_systems.SYSTEMS[name](options)
        answer({"environment": environment.environment([system])})
        prepared = None
        for line in sys.stdin:
            command = json.loads(line)
            if command["do"] == "prepare":
                prepared = None
                gc.collect()
                torch.cuda.empty_cache()
                try:
                    prepared = Prepared(system, copies, recurrent_steps.Step(**command["step"]), command["copies"], options["seed"])
                    answer({"lines": prepared.lines, "failures": prepared.failures})
                except (RuntimeError, AssertionError) as problem:  # out of memory, say
                    answer({"lines": [], "failures": [failure("-", problem)]})
                    systems.ensure_context(name, "-", False, str(problem))
            else:
                answer({"samples_us": timing.time_round(prepared.replays, command["order"])})


def failure(variant, problem, wrong=False):
    return {"variant": variant, "reason": problem if isinstance(problem, str) else systems.reason_of(problem), "wrong": wrong}


class Prepared:
    """A step that can be timed: a graph for each line, those of the yardsticks last."""

    def __init__(self, system, yardsticks, step, copies, seed):
        self.system, self.failures, self.lines, self.replays = system.name, [], [], []
        data = recurrent_data.StepData(step, copies, seed)
        launches = timing.launches_for(step.traffic_bytes, copies)
        candidates = system.candidates(data, self.attempt)
        for candidate in (made for made in candidates if made):
            with contextlib.suppress(Skipped), self.named(candidate.variant):
                self.check(candidate, data, timing.Replay(candidate.launch, copies, launches))
        for name, writes in ((COPY, 1), (TRAFFIC, step.slots_of_request))[:1 + step.snapshots]:
            replays = [timing.Replay(launch, copies, launches) for launch in yardsticks.launches(data, writes)]
            times = [timing.time_round(replays, list(range(len(replays)))) for _ in range(timing.SCREEN_ROUNDS)]
            best = min(range(len(replays)), key=lambda i: min(of[i] for of in times))
            self.add({"variant": name, "kernel": " ".join(map(str, recurrent_systems.COPY_VARIANTS[best]))}, replays[best])
        self.data = data  # graphs read it

    def add(self, line, replay):
        self.lines.append(line)
        self.replays.append(replay)

    @contextlib.contextmanager
    def named(self, variant):
        """What goes wrong inside is a failure of the variant, and of the process only if the context is lost."""
        try:
            yield
        except Exception as problem:  # whatever a library raises is a result of this bench
            self.failures.append(failure(variant, problem))
            systems.ensure_context(self.system, variant, False, self.failures[-1]["reason"])
            raise Skipped from problem

    def attempt(self, variant, build):
        """The candidate that build() returns, if a launch of it succeeds, or None."""
        with contextlib.suppress(Skipped), self.named(variant):
            candidate = build()
            candidate.launch(0)
            torch.cuda.synchronize()
            return candidate
        return None

    def check(self, candidate, data, replay):
        """Keeps a graph whose results agree with the step in FP64, in the first and the last copy."""
        data.reset()
        for copy in range(data.copies):
            candidate.output(copy).fill_(float("nan"))
        replay()
        torch.cuda.synchronize()
        step, repeated = data.step, replay.launches // data.copies if candidate.goes_on else 1
        outputs, states = data.reference(repeated, candidate.first)
        errors = []
        for copy in {0, data.copies - 1}:
            found = candidate.output(copy).view(step.batch, step.tokens, step.v_heads, -1)[data.sample()]
            errors.append((recurrent_data.error(found, outputs, recurrent_data.OUTPUT_TOLERANCE),
                           recurrent_data.error(candidate.states(copy), states, recurrent_data.STATE_TOLERANCE[step.state])))
        of_output, of_state = map(max, zip(*errors))
        if max(of_output, of_state) > 1:
            reason = f"disagrees with FP64: {of_output:.3g} and {of_state:.3g} times the tolerances of outputs and states"
            self.failures.append(failure(candidate.variant, reason, wrong=True))
            return
        self.add({"variant": candidate.variant, "output_error": of_output, "state_error": of_state, **candidate.facts}, replay)


class Skipped(Exception):
    """A variant that failed; its failure has been noted."""


if __name__ == "__main__":
    main()
