#!/usr/bin/env python3
"""What `db` promises, and what every command does with a database that is damaged, foreign or missing."""

import contextlib
import hashlib
import json
import os
import re
import resource
import sqlite3
import stat
import struct
import subprocess

import contract
from contract import Contract, OFFLINE, SHAPE


class Database(Contract):
    def test_db_path_obeys_the_flag_then_the_environment_then_home(self):
        self.assertEqual(self.expect(0, "db", "path").stdout.strip(), str(self.cache))
        other = self.root / "other"
        self.assertEqual(self.expect(0, "db", "path", "--db", str(other)).stdout.strip(), str(other))
        self.assertEqual(self.expect(0, "--db", "relative", "db", "path").stdout.strip(), str(self.root / "relative"))
        xdg = self.root / "xdg"
        xdg.mkdir()
        self.assertEqual(self.expect(0, "db", "path", LEANATTN_CACHE_DIR=None, XDG_CACHE_HOME=str(xdg)).stdout.strip(), str(xdg / "leanattn"))
        self.assertEqual(self.expect(0, "db", "path", LEANATTN_CACHE_DIR=None).stdout.strip(), str(self.root / ".cache" / "leanattn"))

    def test_the_cache_directory_is_private(self):
        self.make_database()
        self.assertEqual(stat.S_IMODE(self.cache.stat().st_mode), 0o700)

    def test_without_a_home_persistent_commands_exit_6_and_others_go_on(self):
        nowhere = {"LEANATTN_CACHE_DIR": None, "HOME": None}
        self.expect(6, "db", "path", **nowhere)
        self.expect(0, "lookup", *SHAPE, *OFFLINE, says="warning", **nowhere)

    def test_a_hostile_directory_is_refused_and_untouched(self):
        self.cache.mkdir()
        self.cache.chmod(0o777)
        for arguments in (["db", "stats"], ["report"], ["prewarm", *SHAPE, *OFFLINE], ["tune", *SHAPE, *OFFLINE]):
            with self.subTest(arguments=arguments):
                self.expect(6, *arguments, says=re.escape(str(self.cache)))
        self.expect(0, "lookup", *SHAPE, *OFFLINE, says="warning")
        self.assertEqual(list(self.cache.iterdir()), [])
        self.assertEqual(stat.S_IMODE(self.cache.stat().st_mode), 0o777)

    def test_a_file_in_place_of_the_directory_is_refused_and_untouched(self):
        self.cache.write_text("precious")
        self.expect(6, "db", "stats", says=re.escape(str(self.cache)))
        self.expect(0, "emit", *SHAPE, *OFFLINE)
        self.assertEqual(self.cache.read_text(), "precious")

    KERNEL = ["--heads", "4", "--head-dim", "64", "--context", "4k", *OFFLINE]

    def as_another(self, code, *args, says=None, **changes):
        """Runs the program as a user who has no rights here, and whom others let read."""
        def give_up_rights():
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        try:
            result = subprocess.run([contract.PROGRAM, *args], capture_output=True, text=True, stdin=subprocess.DEVNULL,
                                    env=self.environment(**changes), cwd="/", timeout=300, preexec_fn=give_up_rights)
        except PermissionError:
            self.skipTest("the checkout lies where other users cannot read")
        self.assertEqual(result.returncode, code, f"{args}\nstdout: {result.stdout[:2000]}\nstderr: {result.stderr[:2000]}")
        if says is not None:
            self.assertRegex(result.stderr, says)
        return result

    def test_a_cache_that_root_made_serves_other_users(self):
        if os.geteuid() != 0:
            self.skipTest("only root can become another user")
        self.root.chmod(0o755)
        self.cache.mkdir(mode=0o755)
        self.make_database()
        problem, configs = self.winners()
        self.add_winner(self.cache / "tuning.db", problem, configs[0], 10.5)
        self.expect(0, "prewarm", *self.KERNEL)
        before = {file.name: file.read_bytes() for file in self.cache.iterdir()}
        found = lambda result: [kernel["from_cache"] for kernel in json.loads(result.stdout)["kernels"]]
        self.assertEqual(found(self.as_another(0, "prewarm", "--json", *self.KERNEL)), [True])
        # As a site's, where the user has no cache at all.
        site = {"LEANATTN_CACHE_DIR": None, "HOME": "/nonexistent", "LEANATTN_SITE_DB": str(self.cache)}
        self.assertEqual(found(self.as_another(0, "prewarm", "--json", *self.KERNEL, **site)), [True])
        self.assertEqual(self.as_another(0, "db", "path").stdout.strip(), str(self.cache))
        self.assertEqual(json.loads(self.as_another(0, "db", "stats", "--json").stdout)["winners"], 1)
        (self.root / "open").mkdir()
        (self.root / "open").chmod(0o777)
        for arguments in (["db", "check"], ["report"], ["lookup", *SHAPE, *OFFLINE, "--require", "exact"],
                          ["db", "export", str(self.root / "open/copy.db")]):
            self.assertEqual(self.as_another(0, *arguments).stderr, "")
        for arguments in (["db", "rebuild"], ["db", "gc"], ["db", "import", "x"], ["tune", *SHAPE, *OFFLINE]):
            self.as_another(6, *arguments, says="belongs to another user")
        # Nothing new can be kept.
        self.as_another(6, "prewarm", *self.KERNEL, "--head-dim", "128", says="is not kept: .* belongs to another user")
        self.assertEqual({file.name: file.read_bytes() for file in self.cache.iterdir()}, before)
        self.cache.chmod(0o700)
        self.as_another(6, "db", "stats", says="chmod -R a.rX")

    def on_full_disk(self, code, *args, room=4096, **changes):
        """Runs the program where no file may grow beyond `room`."""
        def no_room():
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
        # Python ignores the signal of the limit, and so does the program then.
        result = subprocess.run([contract.PROGRAM, *args], capture_output=True, text=True, stdin=subprocess.DEVNULL, env=self.environment(**changes),
                                cwd=self.root, timeout=300, preexec_fn=no_room, restore_signals=False)
        self.assertEqual(result.returncode, code, f"{args}\nstdout: {result.stdout[:2000]}\nstderr: {result.stderr[:2000]}")
        return result

    def test_kernels_that_a_full_disk_does_not_keep_are_an_error(self):
        self.expect(0, "prewarm", *self.KERNEL)
        room = (self.cache / "cubin.db").stat().st_size // 2  # small kernels find room in pages that the file has
        said = self.on_full_disk(6, "prewarm", "--json", *self.KERNEL, "--head-dim", "128", room=room)
        self.assertRegex(json.loads(said.stdout)["error"]["message"], r"is not kept: .*cubin\.db")
        # What was ranked is shown all the same.
        said = self.on_full_disk(6, "tune", "--json", *self.KERNEL, "--budget", "10s", room=room)
        self.assertRegex(json.loads(said.stdout)["not_kept"], r"cubin\.db")
        self.assertRegex(said.stderr, r"error: not every kernel that was compiled is kept: .*cubin\.db")
        self.assertNotIn("cubins are in", said.stderr)

    def say_that_it_spills(self):
        """Gives the one kernel of cubin.db the log of a compiler that spills its registers."""
        with contextlib.closing(sqlite3.connect(self.cache / "cubin.db")) as db, db:
            (key, kept), = db.execute("SELECT key, metadata FROM cubins")
            log = kept.replace(" 0 bytes spill stores", " 4096 bytes spill stores")
            self.assertNotEqual(log, kept)
            cubin = b"whatever"
            # A frame of Zstandard with one block that is not compressed.
            frame = bytes.fromhex("28b52ffd20") + bytes([len(cubin)]) + (8 * len(cubin) + 1).to_bytes(3, "little") + cubin
            texts = [text if isinstance(text, bytes) else text.encode() for text in ("leanattn cubin 1", key, log, cubin)]
            digest = hashlib.sha256(b"".join(struct.pack("<q", len(text)) + text for text in texts)).digest()
            db.execute("UPDATE cubins SET metadata = ?, digest = ?, cubin_bytes = ?, stored_bytes = ?", (log, digest, len(cubin), len(frame)))
            db.execute("UPDATE cubin_data SET data = ?", (frame,))

    def test_prewarm_goes_on_where_a_kernel_is_rejected_and_says_which(self):
        prewarm = lambda: json.loads(self.expect(0, "prewarm", "--json", *self.KERNEL).stdout)
        first = prewarm()
        self.assertEqual((len(first["kernels"]), first["rejected"]), (1, []))
        self.say_that_it_spills()
        second = prewarm()
        (rejected,), (kernel,) = second["rejected"], second["kernels"]
        self.assertEqual(rejected["kernel"], first["kernels"][0]["kernel"])
        self.assertIn("spills registers", rejected["reason"])
        self.assertNotEqual(kernel["kernel"], rejected["kernel"])
        self.assertFalse(kernel["from_cache"])
        self.assertIn(f"An engine here passes {rejected['kernel']} over: ", self.expect(0, "prewarm", *self.KERNEL).stdout)

    def test_a_full_disk_is_no_usage_error(self):
        for arguments in (["emit", *SHAPE, *OFFLINE], ["explain", *SHAPE]):
            with self.subTest(arguments=arguments):
                said = self.on_full_disk(1, *arguments, "--out", "out.txt", room=100)
                self.assertRegex(said.stderr, "--out .*out.txt: cannot be written")
                self.assertFalse((self.root / "out.txt").exists())
        self.expect(2, "emit", *SHAPE, *OFFLINE, "--out", str(self.root), says="cannot be written")
        self.make_database()
        problem, configs = self.winners()
        self.add_winner(self.cache / "tuning.db", problem, configs[0], 10.5)
        self.assertRegex(self.on_full_disk(1, "report", "--out", "report.html").stderr, "--out .*report.html: cannot be written")
        said = self.on_full_disk(6, "db", "export", "copy.db", room=8192)
        self.assertRegex(said.stderr, r"error: cannot write .*/copy\.db: ")
        self.assertNotIn("tuning.db", said.stderr)

    def test_an_empty_database_reports_nothing_with_4(self):
        self.expect(4, "report", says="leanattn tune")
        self.make_database()
        self.expect(4, "report", "--format", "json", says="leanattn tune")

    def test_a_newer_database_is_refused_and_byte_identical_afterwards(self):
        file = self.make_database()
        with sqlite3.connect(file) as connection:
            connection.execute("PRAGMA user_version = 4711")
        before = file.read_bytes()
        for arguments in (["db", "stats"], ["db", "check"], ["db", "rebuild"], ["db", "gc"], ["report"]):
            with self.subTest(arguments=arguments):
                self.expect(6, *arguments, says="newer|4711")
        self.expect(0, "lookup", *SHAPE, *OFFLINE)
        self.assertEqual(file.read_bytes(), before)

    def test_a_corrupt_database_is_never_lost(self):
        file = self.make_database()
        garbage = b"not a database" * 1000
        file.write_bytes(garbage)
        for arguments in (["db", "stats"], ["db", "check"], ["report"]):
            with self.subTest(arguments=arguments):
                self.expect(6, *arguments)
                self.assertEqual(file.read_bytes(), garbage)
        # A rebuild that can read nothing is an error, and leaves the file as it is.
        self.expect(6, "db", "rebuild", says="left as it is")
        self.assertEqual(file.read_bytes(), garbage)

    def test_a_locked_database_exits_6_and_says_so(self):
        file = self.make_database()
        connection = sqlite3.connect(file, isolation_level=None)
        try:
            connection.execute("BEGIN EXCLUSIVE")
            self.expect(6, "db", "rebuild", says="lock|busy")
        finally:
            connection.execute("ROLLBACK")
            connection.close()
        self.expect(0, "db", "rebuild")

    def winners(self):
        """A problem and two configurations that differ from its default."""
        document = json.loads(self.expect(0, "lookup", "--json", *SHAPE, *OFFLINE).stdout)
        return document["problem"], [{**document["answers"][0]["config"], "grid": grid} for grid in (101, 53)]

    def with_address_space(self, size, *args):
        """Runs the program with so many bytes of address space, as under `ulimit -v`."""
        limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (size, size))
        return subprocess.run([contract.PROGRAM, *args], capture_output=True, text=True, stdin=subprocess.DEVNULL, env=self.environment(),
                              cwd=self.root, timeout=300, preexec_fn=limit)

    def test_too_little_memory_neither_moves_nor_empties_a_sound_database(self):
        file = self.make_database()
        problem, configs = self.winners()
        for i in range(8):
            self.add_winner(file, {**problem, "q_heads": 8 * (i + 1), "kv_heads": 8}, configs[i % 2], 10.5 + i)
        def content():
            with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as db:
                return {table: db.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall() for table in ("trials", "winners", "sessions")}
        before = content()
        self.assertEqual((len(before["trials"]), len(before["winners"])), (8, 8))
        step, most = 1 << 16, 1 << 28
        if self.with_address_space(most, "--version").returncode != 0:
            self.skipTest("this build of the program needs terabytes of address space: it is a sanitizer's")
        lowest = next(size for size in range(1 << 24, most + 1, 4 * step) if self.with_address_space(size, "--version").returncode == 0)
        for arguments in (["db", "rebuild"], ["db", "check"]):
            refused, size = 0, lowest
            while True:
                result = self.with_address_space(size, *arguments)
                said = f"{arguments} in {size} bytes: {result.returncode}: {result.stderr[-500:]}"
                self.assertGreaterEqual(result.returncode, 0, said)
                self.assertEqual(sorted(p.name for p in self.cache.iterdir() if "corrupt" in p.name or ".new" in p.name), [], said)
                self.assertEqual(content(), before, said)
                if result.returncode == 0:
                    break
                self.assertNotEqual(result.stderr, "", said)
                refused += 1
                size += step
            self.assertGreater(refused, 0, "memory never ran out")

    def test_gpu_models_in_one_file_are_counted_and_answered_apart(self):
        file = self.make_database()
        problem, (of_large, of_small) = self.winners()
        self.add_winner(file, problem, of_large, 12.5)
        self.add_winner(file, problem, of_small, 30.5, name="Fictional GPU MIG 3g.40gb", sms=60)
        for sms, grid, us in (("132", 101, 12.5), ("60", 53, 30.5)):
            answer = json.loads(self.expect(0, "lookup", "--json", *SHAPE, "--arch", "sm_90a", "--sms", sms).stdout)["answers"][0]
            self.assertEqual((answer["provenance"], answer["config"]["grid"], answer["tuned_us"]), ("exact", grid, us))
        stats = json.loads(self.expect(0, "db", "stats", "--json").stdout)
        self.assertEqual([(d["name"], d["sms"], d["trials"], d["winners"]) for d in stats["devices"]],
                         [("Fictional GPU", 132, 1, 1), ("Fictional GPU MIG 3g.40gb", 60, 1, 1)])
        self.assertRegex(self.expect(0, "db", "stats").stdout, r"60 +1 +1 +1 +0 +Fictional GPU MIG 3g\.40gb")

    def test_winners_of_several_gpus_that_match_are_one_warning(self):
        file = self.make_database()
        problem, (config, other) = self.winners()
        for us, name in enumerate(("NVIDIA H100", "NVIDIA H200", "NVIDIA GH200"), start=11):
            self.add_winner(file, problem, config, us + 0.5, name=name)
        said = self.expect(0, "lookup", *SHAPE, "--arch", "sm_90a").stderr
        self.assertEqual(said.count("warning"), 1, said)
        for name in ("H100", "H200", "GH200"):
            self.assertIn(f"NVIDIA {name} (132 SMs, 80 GiB)", said)
        self.assertEqual(self.expect(0, "lookup", *SHAPE, "--arch", "h200").stderr, "")

    def test_a_winner_of_an_earlier_driver_is_stale_and_used(self):
        file = self.make_database()
        problem, (config, other) = self.winners()
        self.add_winner(file, problem, config, 12.5)
        answer = lambda: json.loads(self.expect(0, "lookup", "--json", *SHAPE, *OFFLINE).stdout)["answers"][0]
        self.assertEqual((answer()["provenance"], answer()["stale"]), ("exact", False))
        self.add_winner(file, {**problem, "q_heads": 64}, other, 20.5, driver=13010, when="2026-11-22")
        self.assertEqual((answer()["provenance"], answer()["tuned_us"], answer()["stale"]), ("exact", 12.5, True))
        self.assertIn("stale", self.expect(0, "lookup", *SHAPE, *OFFLINE, "--explain").stdout)
        self.assertEqual(json.loads(self.expect(0, "db", "stats", "--json").stdout)["devices"][0]["stale_winners"], 1)

    def test_gc_by_size_keeps_winners_and_says_what_is_left(self):
        file = self.make_database()
        problem, (config, other) = self.winners()
        self.add_winner(file, problem, config, 12.5)
        self.add_winner(file, problem, other, 99.5, when="2020-01-01")
        self.assertEqual(json.loads(self.expect(0, "db", "gc", "--max-size", "1g", "--json").stdout)["dropped_trials"], 0)
        result = json.loads(self.expect(0, "db", "gc", "--max-size", "1", "--json", says="winners").stdout)
        self.assertEqual((result["dropped_trials"], result["bytes"]), (1, file.stat().st_size))
        answer = json.loads(self.expect(0, "lookup", "--json", *SHAPE, *OFFLINE).stdout)["answers"][0]
        self.assertEqual(answer["tuned_us"], 12.5)
        self.expect(2, "db", "gc", "--max-size", "-1", says="--max-size -1")
        self.expect(2, "db", "gc", "--keep-days", "soon", says="soon")

    def test_a_report_says_where_a_file_is_no_json(self):
        file = self.make_database()
        problem, (config, _) = self.winners()
        self.add_winner(file, problem, config, 12.5)
        broken = self.root / "broken.json"
        broken.write_text('{"schema_version": 1,\n "devices": [}')
        for flag in ("--against", "--paper", "--regret"):
            self.expect(2, "report", flag, str(broken), says=f"{flag} {broken}: .*: line 2, column 14: ")

    def test_export_and_import_carry_everything_and_never_overwrite(self):
        self.make_database()
        copy = self.root / "copy.db"
        self.expect(0, "db", "export", str(copy))
        self.assertTrue(copy.is_file())
        before = copy.read_bytes()
        self.assertNotEqual(self.run_program("db", "export", str(copy)).returncode, 0)
        self.assertEqual(copy.read_bytes(), before)
        nowhere = self.root / "nowhere"
        result = self.expect(2, "db", "export", str(nowhere / "copy.db"), says=f"there is no folder {nowhere}")
        self.assertNotIn("LEANATTN_CACHE_DIR", result.stderr)
        self.expect(0, "db", "import", str(copy))
        copy.write_bytes(b"not a database" * 1000)
        self.assertNotIn("db import", self.expect(6, "db", "import", str(copy), says=re.escape(f"{copy} is damaged")).stderr)
        missing = self.run_program("db", "import", str(self.root / "missing.db"))
        self.assertNotEqual(missing.returncode, 0)
        self.assertIn("missing.db", missing.stderr)


if __name__ == "__main__":
    contract.main()
