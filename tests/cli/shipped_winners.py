#!/usr/bin/env python3
"""scripts/shipped-winners on a simulated GPU, and what programs make of the file that it writes: as an installation has it, beside winners of the user,
on other GPUs, damaged and turned off."""

import argparse
import contextlib
import gzip
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import unittest

import contract

SIMULATE = None
SOURCE = None
BUILD = None

# The leanattn program as the script sees it: it tunes on a simulated GPU, and `tuned` notes how many shapes of which capture.
STAND_IN = """#!{python}
import os, subprocess, sys
arguments = sys.argv[1:]
if "devices" in arguments:
    print('{{"devices": [{{"ordinal": 0, "name": "Simulated H200", "arch": "sm_90a", "sms": 132}}]}}')
elif "tune" not in arguments:
    os.execv({program!r}, ["leanattn", *arguments])
elif "recurrent" in arguments:
    assert "--missing" in arguments, arguments
    with open({log!r}, "a") as log:
        log.write(" ".join(arguments[arguments.index("--model"):]) + "\\n")
elif "--arch" not in arguments:
    capture = arguments[arguments.index("--from-capture") + 1]
    assert "--missing" in arguments and "--budget" in arguments, arguments
    if os.environ.get("STAND_IN_ENDS_AT", "") == capture:
        sys.exit(int(os.environ["STAND_IN_CODE"]))
    tuned = subprocess.run([{simulate!r}, os.getcwd(), "--from-capture", capture], stdout=subprocess.PIPE, text=True, check=True).stdout
    with open({log!r}, "a") as log:
        log.write(capture + " " + tuned)
"""
LIST = {"schema_version": 1, "largest_kv_bytes": 1 << 32, "shapes": {"three": [[1, 1024], [16, 8192], [64, 3000]], "one": [[4, 3000]]},
        "variants": {"dense": {}, "paged": {"features": {"page_size": 16}}},
        "steps": [{"models": ["llama-3-8b"], "variants": ["dense"], "shapes": "three"}, {"models": ["qwen3-8b", "gemma-3-4b"], "variants": ["paged"], "shapes": "one"}]}
LLAMA = ["--model", "llama-3-8b"]
H200 = ["--arch", "sm_90a", "--sms", "132"]


def script():
    """The script as a module."""
    path = str(SOURCE / "scripts/shipped-winners")
    loader = importlib.machinery.SourceFileLoader("shipped_winners_script", path)
    made = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    loader.exec_module(made)
    sys.dont_write_bytecode = writes
    return made


def put_program(where):
    """The program as an installation has it: with a name of its own there, because it looks beside the file that it is."""
    try:
        os.link(contract.PROGRAM, where)
    except OSError:  # on another disk
        shutil.copy(contract.PROGRAM, where)


class Simulated(contract.Contract):
    """What the tests here share: a folder in which the script runs."""

    def prepare(self, root):
        self.stand_in, self.log, self.list = root / "leanattn", root / "tuned", root / "problems.json"
        self.stand_in.write_text(STAND_IN.format(python=sys.executable, program=contract.PROGRAM, simulate=SIMULATE, log=str(self.log)))
        self.stand_in.chmod(0o700)
        self.out, self.work = root / "data" / "tuning.db", root / "work"
        self.write_list(LIST)

    def write_list(self, listed):
        self.list.write_text(json.dumps(listed))

    def make(self, *flags, code=0, **changes):
        """Runs the script. Returns what it printed, and which captures had how many shapes tuned."""
        self.log.unlink(missing_ok=True)
        done = subprocess.run([sys.executable, str(SOURCE / "scripts/shipped-winners"), "--program", str(self.stand_in), "--list", str(self.list),
                               "--out", str(self.out), "--work", str(self.work), *flags],
                              capture_output=True, text=True, env={**self.environment(), **changes}, timeout=300)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout, self.log.read_text().split("\n")[:-1] if self.log.exists() else []

    def count(self, sql, file=None):
        with sqlite3.connect(f"file:{file or self.out}?mode=ro", uri=True) as db:
            found = db.execute(sql).fetchone()[0]
        db.close()
        return found


class Command(Simulated):
    def setUp(self):
        super().setUp()
        self.prepare(self.root)

    def test_it_writes_winners_the_trials_that_decide_them_and_a_report(self):
        said, tuned = self.make()
        self.assertEqual(tuned, ["captures/0.jsonl 3", "captures/1.jsonl 1", "captures/2.jsonl 1"])
        self.assertIn("has 5 winners for Simulated H200", said)
        self.assertIn("3 of 3 problems were reached.\n", said)
        self.assertEqual(self.count("SELECT count(*) FROM winners"), 5)
        self.assertLessEqual(self.count("SELECT count(*) FROM trials"), 3 * 5)
        self.assertGreater(self.count("SELECT count(*) FROM trials", self.work / "tuning.db"), 40)
        self.assertGreater(self.count("SELECT count(*) FROM read_limits"), 0)
        self.assertEqual(self.count("PRAGMA freelist_count"), 0)
        self.assertEqual(self.out.stat().st_mode & 0o777, 0o644)
        self.assertNotIn(str(self.root).encode(), self.out.read_bytes(), "a path of this machine is in the file")
        self.assertEqual(sorted(path.name for path in self.out.parent.iterdir()), ["tuning.db"])
        with gzip.open(self.work / "report.json.gz", "rt") as file:
            device, = json.load(file)["devices"]
        self.assertEqual(len(device["winners"]), 5)
        self.assertIn("<html", (self.work / "report.html").read_text())

    def test_a_later_run_goes_on_where_the_first_stopped(self):
        said, tuned = self.make(code=130, STAND_IN_ENDS_AT="captures/1.jsonl", STAND_IN_CODE="130")
        self.assertEqual(tuned, ["captures/0.jsonl 3"])
        self.assertIn("Run this again to go on", said)
        self.assertEqual(self.count("SELECT count(*) FROM winners"), 3, "what was found before the interruption is written")
        first = self.count("SELECT group_concat(uuid) FROM (SELECT t.uuid FROM winners w JOIN trials t ON t.id = w.trial_id ORDER BY t.uuid)").split(",")
        shutil.rmtree(self.work)  # on another machine there is only the file
        _, tuned = self.make()
        self.assertEqual(tuned, ["captures/0.jsonl 0", "captures/1.jsonl 1", "captures/2.jsonl 1"])
        self.assertEqual(self.count("SELECT count(*) FROM winners"), 5)
        for uuid in first:
            self.assertEqual(self.count(f"SELECT count(*) FROM trials WHERE uuid = '{uuid}'"), 1)
        _, tuned = self.make()
        self.assertEqual([line.split()[1] for line in tuned], ["0", "0", "0"])

    def test_problems_with_a_recurrent_state_come_last(self):
        self.write_list({**LIST, "recurrent": [{"models": ["qwen3.5-27b"], "tensor_parallel": [1, 5, 8]}, {"models": ["kimi-k3"], "flags": ["--tokens", "4"]}]})
        said, tuned = self.make()
        self.assertEqual(tuned[3:], ["--model qwen3.5-27b --tensor-parallel 1", "--model qwen3.5-27b --tensor-parallel 8", "--model kimi-k3 --tensor-parallel 1 --tokens 4"])
        self.assertIn("6 of 6 problems were reached.\n", said)
        self.assertIn("3 have a recurrent state.\n", said)
        _, tuned = self.make(code=130, STAND_IN_ENDS_AT="captures/1.jsonl", STAND_IN_CODE="130")
        self.assertEqual(tuned, ["captures/0.jsonl 0"], "nothing is begun behind an interruption")

    def test_a_file_from_elsewhere_is_joined_to_what_the_work_folder_has(self):
        self.make(code=130, STAND_IN_ENDS_AT="captures/1.jsonl", STAND_IN_CODE="130")
        elsewhere, self.work = self.work, self.root / "work2"
        self.out.rename(self.root / "first.db")
        self.write_list({**LIST, "steps": LIST["steps"][1:]})
        self.make()
        self.assertEqual(self.count("SELECT count(*) FROM winners"), 2)
        self.work = elsewhere
        self.write_list(LIST)
        _, tuned = self.make()
        self.assertEqual([line.split()[1] for line in tuned], ["0", "0", "0"])
        self.assertEqual(self.count("SELECT count(*) FROM winners"), 5)

    def test_a_problem_that_fails_is_left_out_and_the_exit_code_says_so(self):
        _, tuned = self.make(code=1, STAND_IN_ENDS_AT="captures/1.jsonl", STAND_IN_CODE="4")
        self.assertEqual(tuned, ["captures/0.jsonl 3", "captures/2.jsonl 1"])
        self.assertEqual(self.count("SELECT count(*) FROM winners"), 4)

    def test_without_a_gpu_nothing_is_written(self):
        self.make(code=3, STAND_IN_ENDS_AT="captures/0.jsonl", STAND_IN_CODE="3")
        self.assertFalse(self.out.exists())

    def test_wrong_input_is_named(self):
        self.write_list({**LIST, "steps": [{"models": ["llama-9"], "variants": ["dense"], "shapes": "three"}]})
        for flags, code, says in ((["--only-list"], 1, "llama-9"), (["--budget", "0"], 2, "above 0"), (["--program", "/nonexistent"], 2, "scripts/tune builds")):
            done = subprocess.run([sys.executable, str(SOURCE / "scripts/shipped-winners"), "--program", str(self.stand_in), "--list", str(self.list), "--work",
                                   str(self.work), *flags], capture_output=True, text=True, env=self.environment(), timeout=60)
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertIn(says, done.stderr)


class CompilingAhead(unittest.TestCase):
    def test_it_compiles_for_the_next_problem_and_is_ended_at_its_turn(self):
        made, started = script(), []
        here = sys.executable

        class Program:
            def start(self, *arguments, **options):
                started.append(arguments)
                # It ignores the request to end, as a compiler that is in the middle of a kernel does.
                process = subprocess.Popen([here, "-c", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); signal.pause()"],
                                           stdout=subprocess.PIPE)
                process.stdout.readline()
                return process

        device = {"ordinal": 0, "arch": "sm_89", "sms": 58}
        process = made.compile_ahead(Program(), 7, device, 3)
        self.addCleanup(process.stdout.close)
        text = " ".join(started[0])
        for part in ("tune --from-capture captures/7.jsonl", "--arch sm_89 --sms 58", "--jobs 3"):
            self.assertIn(part, text)
        made.stop(process)
        self.assertIsNotNone(process.returncode)
        self.assertIsNone(made.compile_ahead(Program(), 8, device, 0))
        self.assertEqual(len(started), 1)
        made.stop(None)


class CommittedList(contract.Contract):
    """data/problems.json."""

    def setUp(self):
        super().setUp()
        self.models = json.loads(self.expect(0, "--json", "models").stdout)["models"]
        self.listed = json.loads((SOURCE / "data/problems.json").read_text())

    def test_it_has_every_built_in_model(self):
        named = {name for step in self.listed["steps"] for name in step.get("models", [])}
        self.assertEqual(named, {model["name"] for model in self.models})
        windows = {name for step in self.listed["steps"] if step.get("layers") == "window" for name in step["models"]}
        kinds = lambda names: {(m["q_heads"], m["kv_heads"], m["head_dim"], m["layer_window"]) for m in self.models if m["name"] in names}
        self.assertEqual(kinds(windows), kinds({model["name"] for model in self.models if model["layer_window"]}))

    def test_the_library_reads_every_problem_and_shape_of_it(self):
        made = script()
        problems = made.problems_of(self.listed, self.models)
        self.assertGreater(len(problems), 400)
        shapes = sum(len(shapes) for _, shapes in problems)
        # An engine that captures the same calls would give each problem the same text, so none is in the list under two texts.
        capture = self.root / "all.jsonl"
        capture.write_text("".join(made.capture_of(problem, shapes[:1]) for problem, shapes in problems))
        # Where no GPU is, a capture is read and summed before that is found out.
        said = self.expect(3, "tune", "--from-capture", str(capture), "--missing").stderr
        self.assertRegex(said, f"has {len(problems) * 10 ** 6} calls of {len(problems)} shapes")
        self.assertNotRegex(said, "is skipped|cannot be read")
        self.assertGreater(shapes, 2000)
        for problem, shapes in problems:
            for shape in shapes:
                self.assertLessEqual(made.kv_bytes(problem, *shape), self.listed["largest_kv_bytes"])

    def test_every_problem_with_a_recurrent_state_has_kernels_and_every_model_is_there(self):
        models = json.loads(self.expect(0, "--json", "models").stdout)["recurrent"]
        for flags in script().recurrent_of(self.listed, models):
            self.expect(0, "recurrent", "lookup", "--arch", "h100", "--batch", "1", *flags)
        named = {name for step in self.listed["recurrent"] for name in step["models"]}
        problems = lambda names: {json.dumps(model["problem"]) for model in models if model["name"] in names}
        self.assertEqual(problems(named), problems({model["name"] for model in models}))

    def test_a_step_is_sliced_for_tensor_parallelism(self):
        made = script()
        model = {"q_heads": 64, "kv_heads": 4, "head_dim": 128, "dtype": "bf16", "features": {}, "layer_window": 0}
        self.assertEqual([cut[:2] for cut in made.slices(model, {"tensor_parallel": [1, 2, 4, 8]})], [(64, 4), (32, 2), (16, 1), (8, 1)])
        self.assertEqual([cut[:2] for cut in made.slices({**model, "q_heads": 40, "kv_heads": 10}, {"tensor_parallel": [2, 4, 8]})], [(20, 5)])


class CommittedWinners(contract.Contract):
    """data/tuning.db."""

    def test_no_winner_is_left_out_and_one_answers_for_its_shape(self):
        file = SOURCE / "data/tuning.db"
        with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro&immutable=1", uri=True)) as database:
            won = {problem for problem, in database.execute("SELECT DISTINCT problem_id FROM winners")}
            shapes = database.execute("SELECT COUNT(*) FROM winners").fetchone()[0]
        self.assertGreater(len(won), 20)
        self.assertGreater(shapes, 150)
        # A look-up reads all problems where it has to compare them, and says what it leaves out.
        said = self.expect(0, "--json", "lookup", "--heads", "6", "--kv-heads", "2", "--head-dim", "128", "--arch", "sm_90a", LEANATTN_SHIPPED_DB=str(file))
        self.assertNotIn("left out", said.stderr)
        said = self.expect(0, "--json", "lookup", "--model", "llama-3-70b", "--page-size", "16", "--layout", "strided", "--batch", "64", "--context", "3000",
                           "--arch", "sm_90a", LEANATTN_SHIPPED_DB=str(file))
        found, = json.loads(said.stdout)["answers"]
        self.assertEqual((found["provenance"], found["layer"]), ("exact", "shipped"))


class Layer(Simulated):
    """What programs make of the file."""

    @classmethod
    def setUpClass(cls):
        cls.made = tempfile.TemporaryDirectory(prefix="leanattn-shipped-")
        cls.addClassCleanup(cls.made.cleanup)
        one = cls("setUp")
        one.root, one.cache = pathlib.Path(cls.made.name), pathlib.Path(cls.made.name) / "cache"
        one.prepare(one.root)
        one.make()
        cls.file = one.out

    def setUp(self):
        super().setUp()
        self.prefix = self.root / "prefix"
        (self.prefix / "bin").mkdir(parents=True)
        (self.prefix / "share/leanattn").mkdir(parents=True)
        put_program(self.prefix / "bin/leanattn")
        self.shipped = self.prefix / "share/leanattn/tuning.db"
        shutil.copy(self.file, self.shipped)

    def installed(self, *arguments, code=0, **changes):
        done = subprocess.run([str(self.prefix / "bin/leanattn"), *arguments], capture_output=True, text=True, env=self.environment(**changes), timeout=120)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def answer(self, *flags, **changes):
        return json.loads(self.installed("--json", "lookup", *LLAMA, "--batch", "1", "--context", "1k", *(flags or H200), **changes).stdout)["answers"][0]

    def findings(self, subject, **changes):
        document = json.loads(subprocess.run([str(self.prefix / "bin/leanattn"), "--json", "doctor"], capture_output=True, text=True,
                                             env=self.environment(**changes), timeout=120).stdout)
        return [finding for finding in document["findings"] if finding["subject"] == subject]

    def test_an_installed_program_finds_it_without_a_variable(self):
        answer = self.answer()
        self.assertEqual((answer["provenance"], answer["layer"]), ("exact", "shipped"))
        self.assertGreater(answer["tuned_us"], 0)
        self.assertRegex(self.installed("lookup", *LLAMA, "--context", "1k", *H200, "--explain").stdout, r"layer +shipped: a database that came with leanattn")
        self.assertRegex(self.installed("lookup", *LLAMA, "--context", "1k", *H200).stdout, r"(?m)^ *1 +1k +exact +shipped ")
        found, = self.findings("shipped winners")
        self.assertEqual(found["level"], "ok")
        self.assertRegex(found["text"], rf"^5 for Simulated H200 \(sm_90a, 132 SMs\), measured with driver .*, in {re.escape(str(self.shipped))}$")

    def test_a_link_in_the_directories_of_libraries_of_a_distribution_is_followed(self):
        (self.prefix / "lib/x86_64-linux-gnu").mkdir(parents=True)
        (self.prefix / "bin/leanattn").rename(self.prefix / "lib/x86_64-linux-gnu/leanattn")
        (self.prefix / "bin/leanattn").symlink_to("../lib/x86_64-linux-gnu/leanattn")
        self.assertEqual(self.answer()["layer"], "shipped")

    def test_shapes_beside_those_that_are_shipped_go_by_them(self):
        answer = self.answer(*H200, "--batch", "1", "--context", "1000")
        self.assertEqual((answer["provenance"], answer["layer"]), ("bucket", "shipped"))

    def test_a_problem_that_streams_alike_takes_over_what_was_measured(self):
        exact, alike = self.answer(), self.answer(*H200, "--lse")
        self.assertEqual((alike["provenance"], alike["layer"]), ("nearest", "shipped"))
        self.assertIn("was measured for a problem that streams KV alike", alike["why"])
        self.assertEqual((alike["config"]["grid"], alike["tuned_us"]), (exact["config"]["grid"], exact["tuned_us"]))
        self.assertTrue(alike["config"]["spec"]["lse"])
        explained = self.installed("lookup", *LLAMA, "--context", "1k", *H200, "--lse", "--explain").stdout
        self.assertNotIn("by the cost model", explained)

    def test_a_winner_of_the_user_goes_first(self):
        shutil.copytree(self.shipped.parent, self.cache)
        self.cache.chmod(0o700)
        (self.cache / "tuning.db").chmod(0o600)
        self.assertEqual(self.answer()["layer"], "user")

    def test_another_gpu_gets_no_winner_of_it(self):
        for flags in (["--arch", "l4"], ["--arch", "sm_90a", "--sms", "78"], ["--arch", "h100"]):
            answer = self.answer(*flags)
            self.assertEqual((answer["provenance"], answer["layer"], answer["tuned_us"]), ("fallback", "", None), flags)
        self.assertRegex(self.installed("lookup", *LLAMA, "--arch", "l4", "--explain").stdout, r"layer +none")

    def test_it_is_read_only_and_needs_no_lock(self):
        self.shipped.chmod(0o444)
        self.shipped.parent.chmod(0o555)
        self.addCleanup(self.shipped.parent.chmod, 0o755)
        before = self.shipped.read_bytes()
        with sqlite3.connect(self.file, isolation_level=None) as db:
            db.execute("BEGIN EXCLUSIVE")
            self.shipped.parent.chmod(0o755)
            self.shipped.unlink()
            self.shipped.symlink_to(self.file)  # as installers with a shared store do
            self.assertEqual(self.answer()["layer"], "shipped")
            db.execute("ROLLBACK")
        db.close()
        self.assertEqual(self.file.read_bytes(), before)
        self.assertEqual(sorted(path.name for path in self.shipped.parent.iterdir()), ["tuning.db"])

    def test_without_it_the_default_answers(self):
        self.shipped.unlink()
        self.assertEqual(self.answer()["provenance"], "fallback")
        found, = self.findings("shipped winners")
        self.assertEqual((found["level"], found["text"]), ("ok", f"none: there is no {self.shipped}"))
        self.assertEqual(self.findings("layers"), [])

    def test_a_damaged_one_is_left_out_and_doctor_says_how_to_mend_it(self):
        whole = self.shipped.read_bytes()
        # No winner's configuration is what was measured any more, in whichever order the file has them.
        flipped = re.sub(rb'"grid":(\d)', lambda found: b'"grid":' + (b"8" if found[1] == b"9" else b"9"), whole)
        self.assertNotEqual(flipped, whole)
        for damaged in (b"", b"not a database" * 400, whole[:len(whole) // 2], whole[:100] + b"\xff" * 4000 + whole[4100:]):
            self.shipped.write_bytes(damaged)
            done = self.installed("--json", "lookup", *LLAMA, "--context", "1k", *H200)
            self.assertEqual(json.loads(done.stdout)["answers"][0]["provenance"], "fallback")
            self.assertIn("the shipped database was skipped", done.stderr)
            found, = self.findings("layers")
            self.assertEqual(found["level"], "warning")
            self.assertIn("Install leanattn again, or set LEANATTN_SHIPPED_DB=none", found["hint"])
            self.assertEqual(self.findings("shipped winners"), [])
        self.shipped.write_bytes(flipped)
        self.assertIn("damaged winners", self.installed("lookup", *LLAMA, "--context", "1k", *H200).stderr)

    def test_it_can_be_turned_off(self):
        self.assertEqual(self.answer(LEANATTN_SHIPPED_DB="none")["layer"], "")
        found, = self.findings("shipped winners", LEANATTN_SHIPPED_DB="none")
        self.assertIn("none are looked for", found["text"])


class Installation(contract.Contract):
    """What `cmake --install` installs, where this tree was configured with LEANATTN_SHIPPED_WINNERS, or has data/tuning.db."""

    def test_the_library_comes_with_its_winners(self):
        cache = (BUILD / "CMakeCache.txt").read_text()
        file = pathlib.Path(re.search(r"(?m)^LEANATTN_SHIPPED_WINNERS:FILEPATH=(.*)$", cache)[1])
        if not re.search(r"(?m)^LEANATTN_INSTALL:BOOL=ON$", cache) or not file.is_file():
            self.skipTest("this build tree installs no winners")
        if not any(BUILD.glob("libleanattn.*")):
            self.skipTest("the library is not built")
        prefix = self.root / "prefix"
        subprocess.run(["cmake", "--install", str(BUILD), "--prefix", str(prefix), "--component", "leanattn_library"], check=True, capture_output=True, timeout=300)
        installed = prefix / "share/leanattn/tuning.db"
        self.assertEqual(installed.read_bytes(), file.read_bytes())
        self.assertEqual(installed.stat().st_mode & 0o777, 0o644)
        (prefix / "bin").mkdir()
        put_program(prefix / "bin/leanattn")
        done = subprocess.run([str(prefix / "bin/leanattn"), "--json", "doctor"], capture_output=True, text=True, env=self.environment(), timeout=120)
        found, = [one for one in json.loads(done.stdout)["findings"] if one["subject"] == "shipped winners"]
        self.assertIn(str(installed), found["text"])
        self.assertRegex(found["text"], r"^\d+ for ")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("program", "simulate", "source", "build"):
        parser.add_argument(f"--{name}", required=True)
    options, rest = parser.parse_known_args()
    contract.PROGRAM, SIMULATE = os.path.abspath(options.program), os.path.abspath(options.simulate)
    SOURCE, BUILD = pathlib.Path(options.source).resolve(), pathlib.Path(options.build).resolve()
    unittest.main(argv=[sys.argv[0], *rest])
