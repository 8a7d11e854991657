"""What the contract tests share: a cache directory for each test, calls of the built program, and rows of a tuning database. All GPUs are hidden.
Each script ends with a call of `contract.main()`."""

import argparse
import hashlib
import json
import os
import pathlib
import sqlite3
import struct
import subprocess
import sys
import tempfile
import unittest

PROGRAM = None
FAKES = None  # the folder that has cuda/libcuda.so.1 and nvidia-ml/libnvidia-ml.so.1, for OnMachine
HEADS = ["--heads", "32", "--kv-heads", "8", "--head-dim", "128"]
SHAPE = [*HEADS, "--context", "4k"]
OFFLINE = ["--arch", "sm_90a", "--sms", "132"]


class Contract(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="leanattn-contracts-")
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name)
        self.cache = self.root / "cache"

    def environment(self, **changes):
        env = {k: v for k, v in os.environ.items() if not k.startswith(("LEANATTN_", "XDG_")) or k.startswith("LEANATTN_NVRTC")}
        # To a caller, hidden devices look like a missing driver: the exit code is 3, and the message says what to do.
        env.update(LEANATTN_CACHE_DIR=str(self.cache), CUDA_VISIBLE_DEVICES="", HOME=str(self.root), LEANATTN_BUSY_TIMEOUT_MS="100")
        for name, value in changes.items():
            if value is None:
                env.pop(name, None)
            else:
                env[name] = value
        return env

    def run_program(self, *args, stdout=subprocess.PIPE, **changes):
        return subprocess.run([PROGRAM, *args], stdout=stdout, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
                              env=self.environment(**changes), cwd=self.root, timeout=300)

    def expect(self, code, *args, says=None, **changes):
        result = self.run_program(*args, **changes)
        self.assertEqual(result.returncode, code, f"{args}\nstdout: {result.stdout[:2000]}\nstderr: {result.stderr[:2000]}")
        if says is not None:
            self.assertRegex(result.stderr, says, f"{args}")
        return result

    def make_database(self):
        self.expect(0, "db", "rebuild")
        file = self.cache / "tuning.db"
        self.assertTrue(file.is_file())
        return file

    def add_winner(self, file, problem, config, us, name="Fictional GPU", sms=132, driver=13000, when="2026-11-21", batch=1, context=4096):
        """Adds one tuning session with one ok trial, as `tune` would record it."""
        device = [name, "sm_90a", sms, 50 << 20, 80 << 30, ""]
        environment = [driver, "580.1", "13.0", 1980000, 3200000, 700000, 1, "r1"]
        canonical = lambda value: json.dumps(value, sort_keys=True, separators=(",", ":"))
        session = f"session-{us}"
        trial = [f"trial-{us}", canonical(problem), canonical({"batch": batch, "longest_context": context, "max_batch": 0, "total_context": 0}), "cold",
                 canonical(config), "ok", "", 12, us, 0.1, us - 0.1, us + 0.1, "[]", "", 128, 200.0, 16 << 20, f"{when}T00:00:00.000Z"]
        digest = hashlib.sha256()
        for value in ["leanattn trial 1", session, *device, *environment, *trial]:
            if isinstance(value, str):
                digest.update(struct.pack("<q", len(value.encode())) + value.encode())
            else:
                digest.update(struct.pack("<d" if isinstance(value, float) else "<q", value))
        with sqlite3.connect(file) as db:
            def row(table, columns, values):
                db.execute(f"INSERT OR IGNORE INTO {table}({columns}) VALUES({','.join('?' * len(values))})", values)
                return db.execute(f"SELECT id FROM {table} WHERE ({columns}) = ({','.join('?' * len(values))})", values).fetchone()[0]
            device_id = row("device_models", "name,arch,sm_count,l2_bytes,memory_bytes,mig_profile", device)
            environment_id = row("environments", "driver_version,driver_release,nvrtc_version,clock_khz,memory_clock_khz,power_limit_mw,ecc,"
                                 "library_revision", environment)
            session_id = row("sessions", "uuid,device_model_id,environment_id,started,finished,command",
                             [session, device_id, environment_id, trial[-1], trial[-1], "test"])
            ids = [row(table, "json", [text]) for table, text in (("problems", trial[1]), ("shapes", trial[2]), ("configs", trial[4]))]
            row("trials", "uuid,session_id,problem_id,shape_id,policy,config_id,status,reason,samples,median_us,mad_us,low_us,high_us,"
                "samples_json,throttle,registers,compile_ms,bytes,created,digest",
                [trial[0], session_id, ids[0], ids[1], trial[3], ids[2], *trial[5:], digest.digest()])
        db.close()
        self.expect(0, "db", "rebuild")
        self.expect(0, "db", "check")


class OnMachine(Contract):
    """On a machine with a GPU that executes nothing, as FAKE_* variables say."""

    def on_machine(self, *args, gpu=True, nvml=True, sent="", **changes):
        env = {k: v for k, v in os.environ.items() if not k.startswith(("LEANATTN_", "XDG_", "CUDA_VISIBLE")) or k.startswith("LEANATTN_NVRTC")}
        folders = [str(FAKES / "cuda")] * gpu + [str(FAKES / "nvidia-ml")] * nvml + [env.get("LD_LIBRARY_PATH", "")]
        env.update(LEANATTN_CACHE_DIR=str(self.cache), HOME=str(self.root), LD_LIBRARY_PATH=":".join(filter(None, folders)))
        env.update({k: str(v) for k, v in changes.items()})
        return subprocess.run([PROGRAM, *args], capture_output=True, text=True, input=sent, env=env, cwd=self.root, timeout=120)


def main():
    global PROGRAM, FAKES
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--fakes", type=lambda folder: pathlib.Path(folder).absolute())
    options, rest = parser.parse_known_args()
    PROGRAM, FAKES = os.path.abspath(options.program), options.fakes
    unittest.main(argv=[sys.argv[0], *rest])
