"""bench/recurrent: the steps, the step in FP64 (where PyTorch is installed), processes that take turns, and the report. No GPU."""
import contextlib
import importlib.util
import io
import pathlib
import random
import tempfile
import unittest
from unittest import mock

import bench_paths  # first: it sets the path

import pack_engine
import recurrent_report
import recurrent_steps
import synthetic
from peers import c_header, files

TORCH = importlib.util.find_spec("torch") is not None
PROGRAM = bench_paths.program("recurrent")
FACTS = {"gpu": "Fictional", "l2_bytes": 50 << 20, "memory_bytes": 80 << 30}
# A process that speaks as recurrent_process.py does. What it does otherwise follows from its system.
STAND_IN = '''
import json, sys, time
name, options = sys.argv[1], json.loads(sys.argv[2])
if name == "FlashInfer":
    raise ImportError("No module named flashinfer")
print(json.dumps({"environment": FACTS}), flush=True)
times = {"leanattn": 4.0, "flash-linear-attention": 8.0, "vLLM": 6.0}
for line in sys.stdin:
    command = json.loads(line)
    if command["do"] == "prepare":
        step = command["step"]
        if name == "vLLM" and step["batch"] == 4:
            sys.exit("CUDA Error: an illegal memory access")
        if name == "vLLM" and step["batch"] == 16:
            time.sleep(60)
        lines = [{"variant": "copy", "kernel": "128x4"}]
        if not (name == "flash-linear-attention" and step["batch"] == 64):
            lines.insert(0, {"variant": name + "'s", "output_error": 0.1, "state_error": 0.1})
        print(json.dumps({"lines": lines, "failures": []}), flush=True)
    else:
        us = {False: 2.0, True: times[name]}
        print(json.dumps({"samples_us": [us[line["variant"] != "copy"] for line in lines]}), flush=True)
'''


def line(system, variant, us, seed):
    generator = random.Random(seed)
    return {"system": system, "variant": variant, "kernel": "k", "samples_us": [us * (1 + generator.uniform(-0.001, 0.001)) for _ in range(15)]}


def record(step, times, yardsticks):
    """`times` gives {(system, variant): us}, and `yardsticks` {system: {copy or traffic: us}}."""
    lines = [line(*key, us, seed) for seed, (key, us) in enumerate(times.items())]
    lines += [line(system, name, us, 7) for system, of in yardsticks.items() for name, us in of.items()]
    return {**vars(step), "name": step.name, "group": step.group, "state_bytes": step.state_bytes, "traffic_bytes": step.traffic_bytes, "copies": 3,
            "lines": lines, "failures": []}


class Steps(unittest.TestCase):
    def test_names_are_unique_and_cover_what_models_have(self):
        steps = recurrent_steps.steps()
        self.assertEqual(len({step.name for step in steps}), len(steps))
        self.assertEqual({step.batch for step in steps} >= {1, 1024}, True)
        self.assertEqual({step.tokens for step in steps}, {1, 2, 4, 8})
        self.assertFalse([step for step in steps if step.tokens == 1 and step.snapshots])

    def test_bytes_are_those_of_states(self):
        one = recurrent_steps.Step("gated_delta", 16, 32, 1)
        self.assertEqual((one.state_bytes, one.traffic_bytes), (2 << 20, 4 << 20))
        drafts = recurrent_steps.Step("gated_delta", 16, 32, 8, 4, True, "bf16")
        self.assertEqual((drafts.state_bytes, drafts.traffic_bytes, drafts.slots_of_request), (8 << 20, 40 << 20, 4))

    def test_copies_exceed_four_times_the_l2(self):
        for step in recurrent_steps.steps(states=("fp32", "bf16")):
            copies = step.copies(50 << 20)
            self.assertGreaterEqual(copies * step.state_bytes, 4 * (50 << 20))
            self.assertLess((copies - 1) * step.state_bytes, 4 * (50 << 20))

    def test_the_quick_sample_has_the_batches_of_the_goals(self):
        found = {(step.kind, step.tokens, step.batch) for step in recurrent_steps.quick()}
        self.assertLessEqual({(kind, 1, batch) for kind in recurrent_steps.KINDS for batch in (1, 4, 16, 64, 128)}, found)
        self.assertIn(("gated_delta", 4, 8), found)


class Arguments(unittest.TestCase):
    def test_steps_follow_from_arguments(self):
        options = PROGRAM.parse("--library l --out o --kinds kda --heads 32/32,8/8 --batches 1,2 --tokens 1,4 --snapshots with --states bf16".split())
        steps = PROGRAM.chosen_steps(options)
        self.assertEqual(len(steps), 2 * 2 * 2)
        self.assertEqual({(step.kind, step.state, step.snapshots) for step in steps}, {("kda", "bf16", False), ("kda", "bf16", True)})

    def test_quick_has_limits_of_its_own(self):
        options = PROGRAM.parse("--library l --out o --quick".split())
        self.assertLess(options.time_limit, 100)
        self.assertEqual(PROGRAM.chosen_steps(options), recurrent_steps.quick())

    def test_what_is_wrong_is_refused(self):
        for arguments in ("--out o", "--out o --library l --kinds mamba", "--out o --library l --systems vllm"):
            with contextlib.redirect_stderr(io.StringIO()), self.assertRaises(SystemExit) as refused:
                PROGRAM.parse(arguments.split())
            self.assertEqual(refused.exception.code, 2)


class Turns(unittest.TestCase):
    def run_program(self, arguments=""):
        """(exit code, record) of a run in which STAND_IN takes the place of the processes."""
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder)
            (out / "recurrent_process.py").write_text(STAND_IN.replace("FACTS", repr(FACTS)))
            given = f"--library l --out {out} --kinds gated_delta --heads 16/32 --tokens 1 --batches 1,4,16,64 --rounds 3 {arguments}".split()
            with mock.patch.object(PROGRAM, "HERE", out), mock.patch.dict(PROGRAM.PATIENCE, {"prepare": 2}), contextlib.redirect_stdout(io.StringIO()):
                code = PROGRAM.measure(PROGRAM.parse(given))
            return code, files.read_json(out / "recurrent.json"), (out / "recurrent.md").read_text()

    def test_a_process_that_dies_or_hangs_is_named_and_started_again(self):
        code, results, page = self.run_program()
        self.assertEqual(code, 0)
        by_batch = {step["batch"]: step for step in results["steps"]}
        self.assertEqual({line["system"] for line in by_batch[1]["lines"]}, {"leanattn", "flash-linear-attention", "vLLM"})
        self.assertTrue(all(len(line["samples_us"]) == 3 for step in results["steps"] for line in step["lines"]))
        self.assertIn("illegal memory access", by_batch[4]["failures"][0]["reason"])
        self.assertIn("not answered", by_batch[16]["failures"][0]["reason"])
        self.assertEqual({line["system"] for line in by_batch[16]["lines"]}, {"leanattn", "flash-linear-attention"})
        self.assertEqual({line["system"] for line in by_batch[64]["lines"]}, {"leanattn", "vLLM"})  # the other has no kernel for it
        self.assertIn("No module named flashinfer", results["not_started"]["FlashInfer"])
        self.assertIn("FlashInfer is left out", page)
        self.assertIn("2.00 | 4.00 (2.000)", page)

    def test_a_step_that_does_not_fit_is_named(self):
        with mock.patch.dict(FACTS, {"memory_bytes": 10 << 30}):
            _, results, _ = self.run_program("--batches 1024")
        self.assertIn("a process needs", results["steps"][0]["failures"][0]["reason"])

    def test_what_the_time_limit_leaves_over_is_counted(self):
        code, results, page = self.run_program("--time-limit -1")
        self.assertEqual((code, results["left"]), (6, 4))
        self.assertIn("left out 4 steps", page)


class Report(unittest.TestCase):
    STEP = recurrent_steps.Step("gated_delta", 16, 32, 32)
    DRAFTS = recurrent_steps.Step("gated_delta", 16, 32, 8, 4, True)

    def results(self):
        one = record(self.STEP, {("leanattn", "rule"): 50.0, ("vLLM", "gating"): 99.0, ("vLLM", "packed"): 60.0},
                     {"leanattn": {"copy": 40.0}, "vLLM": {"copy": 50.0}})
        drafts = record(self.DRAFTS, {("leanattn", "rule"): 30.0}, {"leanattn": {"copy": 10.0, "traffic": 25.0}})
        drafts["failures"] = [{"system": "vLLM", "variant": "gating", "reason": "CUDA | error", "wrong": False}]
        return {"environment": synthetic.ENVIRONMENT, "rounds": 15, "not_started": {"FlashInfer": "no"}, "left": 0, "steps": [one, drafts]}

    def test_ratios_are_over_the_copy_of_the_same_turn(self):
        one = self.results()["steps"][0]
        # 50 / 40 against 60 / 50: the peer is ahead although its time is longer.
        self.assertAlmostEqual(recurrent_report.speed_ups(one, "vLLM")[0], 1.2 / 1.25, delta=0.01)
        self.assertEqual(recurrent_report.best_line(one, "vLLM")["variant"], "packed")

    def test_drafts_are_over_their_traffic_and_goals_follow_from_it(self):
        one, drafts = self.results()["steps"]
        self.assertAlmostEqual(recurrent_report.over_yardstick(drafts, "leanattn")[0], 1.2, delta=0.01)
        self.assertEqual((recurrent_report.goal(one), recurrent_report.goal(drafts)), (1.03, 1.08))
        self.assertIsNone(recurrent_report.goal({**one, "state": "bf16"}))

    def test_the_page_has_every_step_and_every_failure(self):
        page = recurrent_report.markdown(self.results())
        self.assertIn("## gated_delta, 16/32 heads, fp32, 4 tokens with snapshots", page)
        self.assertIn("| 1.03\\* |", page)
        self.assertIn("CUDA \\| error", page)
        self.assertIn("| 3.0", page)  # copies of the drafts
        self.assertIn("leanattn 30", recurrent_report.progress(self.results()["steps"][1]))


class Interface(unittest.TestCase):
    def test_the_header_says_what_the_process_needs(self):
        text = (bench_paths.ROOT / "include/leanattn/recurrent.h").read_text()
        constants, structs = c_header.constants(text), c_header.structs(text)
        self.assertEqual(constants["LEANATTN_RECURRENT_SNAPSHOTS"], 4)
        for kind in recurrent_steps.KINDS:
            self.assertIn(f"LEANATTN_{kind.upper()}", constants)
        self.assertIn("slots_stride", dict(structs["leanattn_recurrent_args"]._fields_))

    def test_peers_are_packed_without_the_rest_of_vllm(self):
        package = pack_engine.PACKAGES["recurrent-peers"]
        for path in ("vllm/third_party/flash_linear_attention/ops/__init__.py", "vllm/models/__init__.py", "vllm/__init__.py", "vllm/platforms.py"):
            self.assertIn(path, package.files)
        for text in package.files.values():
            compile(text, "stand-in", "exec")


@unittest.skipUnless(TORCH, "needs PyTorch")
class Data(unittest.TestCase):
    def test_the_step_in_fp64_is_that_of_a_plain_loop(self):
        import torch

        import recurrent_data

        for step in (recurrent_steps.Step("gated_delta", 1, 2, 3, 2), recurrent_steps.Step("kda", 2, 2, 3, 2, True)):
            data = recurrent_data.StepData(step, 2, 5, "cpu")
            outputs, states = data.reference(2)
            q, k, v = (part.double() for part in data.parts(1))
            for request in data.sample():
                s = data.initial[int(data.first_slots()[request])].double()
                for launch in range(2):
                    stored = []
                    for token in range(request * 2, request * 2 + 2):
                        for head in range(step.v_heads):
                            of = head // (step.v_heads // step.qk_heads)
                            query, key = (x[token, of] / torch.sqrt(x[token, of] @ x[token, of] + 1e-6) for x in (q, k))
                            gate = -torch.exp(data.a_log[head].double()) * torch.log1p(torch.exp(data.a[0][token, head].double() + data.dt_bias[head].double()))
                            s = s.clone()
                            s[head] = s[head] * torch.exp(gate)
                            s[head] += torch.outer(torch.sigmoid(data.b[0][token, head].double()) * (v[token, head] - s[head] @ key), key)
                            found = outputs[data.sample().index(request), token - request * 2, head]
                            if launch == 1:
                                torch.testing.assert_close(found, s[head] @ query / 128 ** 0.5, rtol=1e-5, atol=1e-7)
                        stored.append(s)
                    s = stored[0].float().double() if step.snapshots else s.float().double()
                kept = stored if step.snapshots else stored[-1:]
                torch.testing.assert_close(states[data.sample().index(request)], torch.stack(kept), rtol=1e-5, atol=1e-7)

    def test_an_error_shows(self):
        import torch

        import recurrent_data

        reference = torch.randn(4, 128, dtype=torch.float64)
        self.assertEqual(recurrent_data.error(reference, reference, (0.01, 0.01)), 0)
        wrong = reference.clone()
        wrong[1, 5] += 1
        self.assertGreater(recurrent_data.error(wrong, reference, (0.01, 0.01)), 1)
        wrong[1, 5] = float("nan")
        self.assertEqual(recurrent_data.error(wrong, reference, (0.01, 0.01)), float("inf"))

    def test_only_kernels_that_agree_with_the_step_are_timed(self):
        import torch

        import recurrent_process
        import recurrent_systems
        from recurrent_data import StepData

        class Eager:
            """In the place of a graph: launches at once."""

            def __init__(self, launch, copies, launches):
                self.launch, self.copies, self.launches = launch, copies, launches

            def __call__(self):
                for i in range(self.launches):
                    self.launch(i % self.copies)

        class Made:
            name = "made up"

            def candidates(self, data, attempt):
                return [attempt(variant, lambda: self.candidate(data, variant)) for variant in ("right", "wrong output", "wrong state", "broken")]

            def candidate(self, data, variant):
                outputs, states = data.reference(1)
                kept = {}

                def launch(copy):
                    if variant == "broken":
                        raise RuntimeError("no such kernel")
                    kept[copy] = (outputs + (variant == "wrong output")).bfloat16(), (states + (variant == "wrong state")).float()

                return recurrent_systems.StepCandidate("made up", variant, launch, lambda copy: kept[copy][0] if copy in kept else torch.empty(1),
                                                       states=lambda copy: kept[copy][1], goes_on=False)

        class Yardsticks:
            def launches(self, data, writes):
                return [lambda copy: None] * len(recurrent_systems.COPY_VARIANTS)

        step = recurrent_steps.Step("gated_delta", 1, 2, 2, 2, True)
        with mock.patch.object(recurrent_process.timing, "Replay", Eager), mock.patch.object(torch.cuda, "synchronize"), \
                mock.patch.object(recurrent_process.timing, "time_round", lambda replays, order: [3.0 - i % 2 for i in range(len(replays))]), \
                mock.patch.object(recurrent_process.systems, "context_works", lambda: True), \
                mock.patch.object(recurrent_process.recurrent_data, "StepData", lambda *of: StepData(*of, "cpu")):
            made = recurrent_process.Prepared(Made(), Yardsticks(), step, 3, 1)
        self.assertEqual([line["variant"] for line in made.lines], ["right", "copy", "traffic"])
        self.assertEqual(made.lines[1]["kernel"], " ".join(map(str, recurrent_systems.COPY_VARIANTS[1])))
        self.assertEqual({failure["variant"]: failure["wrong"] for failure in made.failures}, {"wrong output": True, "wrong state": True, "broken": False})


if __name__ == "__main__":
    unittest.main()
