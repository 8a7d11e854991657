#!/usr/bin/env python3
"""What `leanattn doctor` finds with a fake driver and NVML, broken NVRTCs, hostile caches and odd variables."""

import json
import os
import re
import sqlite3
import subprocess

import contract


class Doctor(contract.OnMachine):
    def findings(self, code=0, **changes):
        result = self.on_machine("doctor", "--json", **changes)
        self.assertEqual(result.returncode, code, result.stdout + result.stderr)
        document = json.loads(result.stdout)
        self.assertEqual(document["healthy"], code == 0)
        return document["findings"]

    def expect_finding(self, level, subject, text, hint, code=0, **changes):
        """Exactly one finding has this level, subject and text, and its hint has this text."""
        findings = self.findings(code, **changes)
        found = [f for f in findings if f["level"] == level and f["subject"] == subject and re.search(text, f["text"])]
        self.assertEqual(len(found), 1, json.dumps(findings, indent=1))
        self.assertRegex(found[0]["hint"], hint)
        return findings


class Machine(Doctor):
    def test_a_sound_machine_has_no_warnings(self):
        findings = self.findings()
        self.assertEqual([f for f in findings if f["level"] != "ok"], [])
        subjects = {f["subject"] for f in findings}
        self.assertLessEqual({"driver", "device 0", "NVRTC", "cache", "SQLite", "tuning.db", "cubin.db", "winners of NVIDIA Fictional 1"}, subjects)

    def test_every_fault_has_a_way_out(self):
        findings = self.findings(3, gpu=False, nvml=False, LEANATTN_NVRTC_LIB="/nonexistent/libnvrtc.so", LEANATTN_DEBUG="1", LEANATTN_TYPO="1")
        faults = [f for f in findings if f["level"] != "ok"]
        self.assertGreater(len(faults), 4)
        for fault in faults:
            self.assertNotEqual(fault["hint"], "", fault)

    def test_an_nccl_that_is_no_file_is_doubted(self):
        self.expect_finding("warning", "LEANATTN_NCCL_LIB", "/nonexistent/libnccl.so.2' is not a file", "unset it", LEANATTN_NCCL_LIB="/nonexistent/libnccl.so.2")
        self.assertIn({"subject": "LEANATTN_NCCL_LIB", "level": "ok"},
                      [{key: f[key] for key in ("subject", "level")} for f in self.findings(LEANATTN_NCCL_LIB="libnccl.so.2")])

    def test_nccl_is_needed_where_it_is_named_alone(self):
        unnamed = [f for f in self.findings() if f["subject"] == "NCCL"]
        self.assertEqual([f["level"] for f in unnamed], ["ok"])
        self.assertRegex(unnamed[0]["text"], r"^2\.\d+\.\d+ at .*libnccl|cannot be loaded.*Only groups of GPUs")
        self.expect_finding("warning", "NCCL", "libm.so.6 lacks entry points: ncclGetVersion", "NCCL 2.14 or newer", LEANATTN_NCCL_LIB="libm.so.6")

    def test_the_text_says_what_the_json_says(self):
        text = self.on_machine("doctor", FAKE_PERSISTENCE=0).stdout
        self.assertRegex(text, r"(?m)^warning  device 0: persistence mode is off.*\n         .*nvidia-smi -pm 1")

    def test_no_driver(self):
        if self.on_machine("devices", gpu=False).returncode == 0:
            self.skipTest("this machine has a driver of its own")
        findings = self.expect_finding("failure", "driver", "libcuda|driver", "NVIDIA driver", code=3, gpu=False, nvml=False)
        self.assertIn("ok", [f["level"] for f in findings if f["subject"] == "NVRTC"])

    def test_a_driver_that_does_not_start(self):
        self.expect_finding("failure", "driver", "cuInit", "nvidia-smi", code=3, FAKE_FAILURE="cuInit:3")
        self.expect_finding("failure", "driver", "cuInit", "stub", code=3, FAKE_FAILURE="cuInit:34")
        self.expect_finding("failure", "driver", "cuInit", "reboot", code=3, FAKE_FAILURE="cuInit:803")

    def test_gpus_that_cuda_does_not_show(self):
        hidden = {"code": 3, "FAKE_FAILURE": "cuInit:100"}
        self.expect_finding("warning", "driver", "NVML sees 1 GPU,", "CUDA_VISIBLE_DEVICES", **hidden)
        self.expect_finding("warning", "driver", "MIG mode", "nvidia-smi mig", FAKE_MIG_MODE=1, **hidden)
        self.expect_finding("warning", "driver", "Prohibited", "-c DEFAULT", FAKE_COMPUTE_MODE=2, **hidden)

    def test_a_driver_older_than_nvrtc(self):
        self.expect_finding("failure", "device 0", r"driver is for CUDA 11\.8", "Update the NVIDIA driver", code=3,
                    FAKE_DRIVER_VERSION=11080, FAKE_FAILURE="cuLibraryLoadData:200")

    def test_a_gpu_that_gives_no_context(self):
        self.expect_finding("failure", "device 0", "cuDevicePrimaryCtxRetain", "nvidia-smi", code=3, FAKE_FAILURE="cuDevicePrimaryCtxRetain:46")

    def test_a_gpu_that_is_too_old(self):
        self.expect_finding("failure", "device 0", r"compute capability 7\.5", "sm_80", code=2, FAKE_COMPUTE_CAPABILITY=75)

    def test_a_gpu_that_nvrtc_does_not_know(self):
        self.expect_finding("failure", "device 0", "does not compile for sm_139a", "install a newer NVRTC", code=2, FAKE_COMPUTE_CAPABILITY=139)

    def test_a_mig_slice_is_named_as_one(self):
        findings = self.findings(FAKE_NAME="NVIDIA H200 MIG 1g.18gb")
        self.assertTrue(any("MIG slice" in f["text"] for f in findings))

    def test_no_nvml(self):
        self.expect_finding("warning", "device 0", "NVML says nothing", "NVIDIA_DRIVER_CAPABILITIES", nvml=False)

    def test_settings_and_neighbours(self):
        for changes, text, hint in [
            ({"FAKE_COMPUTE_MODE": 3}, "Exclusive_Process", "-c DEFAULT"),
            ({"FAKE_PERSISTENCE": 0}, "persistence mode is off", "nvidia-persistenced"),
            ({"FAKE_THROTTLE_REASONS": "0x44"}, r"slowed down now: power cap, hardware thermal \(90 of 700 W, 35 C", "nvidia-smi -q"),
            ({"FAKE_POWER_LIMIT_W": 400}, "lowered to 400 W from 700 W", "-pl 700"),
            ({"FAKE_APPLICATION_CLOCK_MHZ": 1200}, "limited to 1200 MHz from 1980", "-rac"),
            ({"FAKE_OTHER_PROCESSES": 2, "FAKE_BUSY_PERCENT": 35}, r"shared with 2 other processes, 35 % busy", "GPU of your own"),
        ]:
            with self.subTest(changes=changes):
                self.expect_finding("warning", "device 0", text, hint, **changes)
        self.expect_finding("failure", "device 0", "Prohibited", "-c DEFAULT", code=3, FAKE_COMPUTE_MODE=2)


class Nvrtc(Doctor):
    def test_missing(self):
        findings = self.expect_finding("failure", "NVRTC", "/nonexistent/libnvrtc.so", "LEANATTN_NVRTC_LIB", code=3, LEANATTN_NVRTC_LIB="/nonexistent/libnvrtc.so")
        self.assertIn("/nonexistent/libnvrtc.so:", next(f for f in findings if f["subject"] == "NVRTC")["detail"])
        self.assertIn("warning", [f["level"] for f in findings if f["subject"] == "LEANATTN_NVRTC_LIB"])

    def test_not_a_library(self):
        file = self.root / "libnvrtc.so"
        file.write_text("nothing")
        self.expect_finding("failure", "NVRTC", "cannot be loaded", "nvidia-cuda-nvrtc", code=3, LEANATTN_NVRTC_LIB=file)

    def test_without_its_builtins(self):
        self.expect_finding("failure", "NVRTC", "cannot load its built-in functions", "libnvrtc-builtins of the same version", code=3,
                    LEANATTN_NVRTC_LIB=contract.FAKES / "nvrtc/libnvrtc.so.1")

    def test_some_other_library(self):
        self.expect_finding("failure", "NVRTC", "lacks entry points", "LEANATTN_NVRTC_LIB", code=3, LEANATTN_NVRTC_LIB=contract.FAKES / "cuda/libcuda.so.1")


class Caches(Doctor):
    def test_a_directory_that_others_may_write(self):
        self.cache.mkdir()
        self.cache.chmod(0o777)
        self.expect_finding("failure", "cache", "writable by others", "chmod 700", code=6)

    def test_a_relative_directory(self):
        self.expect_finding("failure", "cache", "not an absolute path", "LEANATTN_CACHE_DIR", code=6, LEANATTN_CACHE_DIR="here")

    def test_a_database_that_others_may_write(self):
        self.make_database()
        (self.cache / "tuning.db").chmod(0o666)
        self.expect_finding("failure", "tuning.db", "tuning.db", "chmod 600", code=6)

    def test_a_damaged_tuning_db(self):
        self.make_database()
        (self.cache / "tuning.db").write_bytes(b"not a database" * 100)
        self.expect_finding("failure", "tuning.db", "tuning.db", ".", code=6)

    def test_a_newer_tuning_db(self):
        self.make_database()
        with sqlite3.connect(self.cache / "tuning.db") as db:
            db.execute("PRAGMA user_version=999")
        db.close()
        self.expect_finding("failure", "tuning.db", "newer|999", "leanattn", code=6)

    def test_a_damaged_cubin_db(self):
        self.cache.mkdir(mode=0o700)
        file = self.cache / "cubin.db"
        file.write_bytes(b"not a database" * 100)
        file.chmod(0o600)
        self.expect_finding("failure", "cubin.db", "cubin.db", ".", code=6)

    def test_damaged_files_put_aside(self):
        self.make_database()
        (self.cache / "tuning.db.corrupt-20260101").write_bytes(bytes(2048))
        self.expect_finding("warning", "cache", r"1 damaged file put aside, 2\.0 KiB", "Delete")

    def test_layers_that_are_not_there(self):
        for variable, layer in [("LEANATTN_SITE_DB", "site"), ("LEANATTN_SHIPPED_DB", "shipped")]:
            for gpu in (True, False):
                if not gpu and self.on_machine("devices", gpu=False).returncode == 0:
                    continue
                with self.subTest(layer=layer, gpu=gpu):
                    self.expect_finding("warning", "layers", f"the {layer} database was skipped", variable, code=0 if gpu else 3, gpu=gpu, nvml=gpu,
                                **{variable: self.root / "nowhere.db"})

    def test_kernels_of_a_site(self):
        self.expect(0, "prewarm", "--heads", "4", "--head-dim", "64", "--context", "4k", *contract.OFFLINE)
        self.cache.rename(self.root / "site")
        site = {"LEANATTN_SITE_DB": self.root / "site"}
        self.expect_finding("ok", "site kernels", "^1 in ", "^$", **site)
        (self.root / "site").chmod(0o777)
        self.expect_finding("warning", "layers", "the site kernels were skipped: .* writable by others", "chmod", **site)

    def test_a_cache_that_is_only_read(self):
        if os.geteuid() != 0:
            self.skipTest("only root can have a file system that is read-only")
        self.make_database()
        mounted = f"mount --bind {self.cache} {self.cache} && mount -o remount,bind,ro {self.cache}"
        if subprocess.run(["unshare", "-m", "sh", "-c", mounted], capture_output=True).returncode != 0:
            self.skipTest("nothing can be mounted here")
        result = subprocess.run(["unshare", "-m", "sh", "-c", f"{mounted} && exec {contract.PROGRAM} doctor --json"], capture_output=True, text=True,
                                env=self.environment())
        found, = [one for one in json.loads(result.stdout)["findings"] if (one["subject"], one["level"]) == ("cache", "warning")]
        self.assertRegex(found["text"], "Read-only file system.*; what is in it is used, but nothing is added")

    def test_winners_of_this_gpu_and_stale_ones(self):
        file = self.make_database()
        problem = {"q_heads": 32, "kv_heads": 8, "head_dim": 128, "dtype": "bf16", "layout": "contiguous", "lse": False}
        self.add_winner(file, problem, {"grid": 132}, 10.0, name="NVIDIA Fictional 1")
        self.expect_finding("warning", "winners of NVIDIA Fictional 1", "1: 1 from the user database; 1 is stale", "--revalidate")
        self.expect_finding("ok", "winners of NVIDIA Other", "none", "leanattn tune", FAKE_NAME="NVIDIA Other")

    def test_stale_winners_that_were_shipped_are_nothing_to_mend(self):
        problem = {"q_heads": 32, "kv_heads": 8, "head_dim": 128, "dtype": "bf16", "layout": "contiguous", "lse": False}
        self.add_winner(self.make_database(), problem, {"grid": 132}, 10.0, name="NVIDIA Fictional 1")
        shipped = self.root / "shipped.db"
        (self.cache / "tuning.db").rename(shipped)
        findings = self.expect_finding("ok", "winners of NVIDIA Fictional 1", "^1: 1 from the shipped database; 1 of the shipped under another driver", "^$",
                                       LEANATTN_SHIPPED_DB=shipped)
        found, = [finding for finding in findings if finding["subject"] == "shipped winners"]
        self.assertEqual(found["text"], "1 for NVIDIA Fictional 1 (sm_90a, 132 SMs), measured with driver 580.1 and NVRTC 13.0; 1 with kernels that have changed since, "
                         f"in {shipped}")
        self.expect_finding("ok", "site winners", f"in {shipped}$", "^$", LEANATTN_SITE_DB=shipped)

    def test_the_journal_follows_from_the_sqlite_version(self):
        text = next(f["text"] for f in self.findings() if f["subject"] == "SQLite")
        version = [int(x) for x in re.match(r"(\d+)\.(\d+)\.(\d+), ", text).groups()]
        self.assertIn("write-ahead" if version >= [3, 51, 3] else "rollback", text)


class Environment(Doctor):
    def test_values_that_mean_nothing(self):
        for name, value, text, hint in [
            ("LEANATTN_CUBIN_CACHE_MB", "lots", "'lots' is not a whole number", "unset"),
            ("LEANATTN_CUBIN_CACHE_MB", "-1", "'-1' is not a whole number", "unset"),
            ("LEANATTN_BUSY_TIMEOUT_MS", "2s", "'2s' is not a whole number", "unset"),
            ("LEANATTN_WAIT_BOUND_MS", "ten", "'ten' is not a number of milliseconds from 1 to 3600000", "unset"),
            ("LEANATTN_WAIT_BOUND_MS", "0", "'0' is not a number of milliseconds from 1 to 3600000", "unset"),
            ("LEANATTN_JOIN_BOUND_MS", "3600001", "'3600001' is not a number of milliseconds from 1 to 3600000", "unset"),
            ("LEANATTN_VLLM_TUNE", "a minute", "'a minute' is not a plain number of seconds", "unset"),
            ("LEANATTN_VLLM_TUNE", "inf", "'inf' is not a plain number of seconds", "unset"),
            ("LEANATTN_NVRTC_DIR", "/nonexistent", "not a directory", "libnvrtc"),
            ("LEANATTN_CAPTURE", "/nonexistent/capture", "no calls are captured", "directory"),
            ("LEANATTN_CAPTURE", "/", "no calls are captured", "directory"),
            ("LEANATTN_PROGRAM", "/nonexistent/leanattn", "engines cannot tune", "leanattn program"),
            ("LEANATTN_DEBUG", "1", "check every launch", "Unset"),
            ("LEANATTN_CACHEDIR", "/tmp", "no part of leanattn reads", "misspelling"),
            ("CUDA_VISIBLE_DEVICES", "", "hides every GPU", "Unset"),
        ]:
            with self.subTest(name=name, value=value):
                self.expect_finding("warning", name, text, hint, **{name: value})

    def test_values_that_are_fine(self):
        fine = {"LEANATTN_CUBIN_CACHE_MB": "0", "LEANATTN_BUSY_TIMEOUT_MS": "100", "LEANATTN_WAIT_BOUND_MS": "20", "LEANATTN_VLLM_TUNE": "2.5", "LEANATTN_CAPTURE": "capture-%p", "LEANATTN_DEBUG": "0"}
        self.assertEqual([f for f in self.findings(**fine) if f["level"] != "ok"], [])
        self.assertEqual(list(self.root.glob("capture-*")), [], "looking must not make the file")


if __name__ == "__main__":
    contract.main()
