#!/usr/bin/env python3
"""scripts/setup and scripts/tune in a tree of their own, with a package manager and a CMake that only note what they are asked for, and of other
tools only what the smallest container has."""

import os
import pathlib
import pty
import re
import shlex
import shutil
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parent.parent.parent
NOTES = '#!/bin/sh\necho "${0##*/} $*" >>"$LOG"\n'
FAKES = {
    "apt-get": NOTES + '[ "$1" != "$FAILS" ]\n',
    "sudo": NOTES + 'exec "$@"\n',
    "dpkg-query": '#!/bin/sh\nfor name; do :; done\ncase " $INSTALLED " in *" all "* | *" $name "*) printf installed ;; *) exit 1 ;; esac\n',
    "id": '#!/bin/sh\necho "$FAKE_USER"\n',
    # An environment whose pip notes what it is asked for, and which has the packages once that was done.
    "python3": NOTES + 'mkdir -p build/venv/bin && ln -sf "$(command -v pip)" "$(command -v python)" build/venv/bin/\n',
    "pip": NOTES + ": >build/venv/packages\n",
    # What it builds is a program that finds no GPU unless told so.
    "cmake": NOTES + '[ "$1" != --build ] || { mkdir -p "$2/cli" && ln -sf "$(command -v leanattn)" "$2/cli/leanattn"; }\n',
    "leanattn": NOTES + '[ "$1" != devices ] || [ -n "$GPU" ]\n',
    "python": "#!/bin/sh\n[ -e build/venv/packages ]\n",
}


class FirstUse(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="leanattn-first-use-")
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.log, self.tools = self.root / "log", self.root / "tools"
        for made in ("tree/scripts", "cuda/include", "tools"):
            (self.root / made).mkdir(parents=True)
        (self.root / "cuda/include/cuda.h").touch()
        for name in ("setup", "tune"):
            shutil.copy(SOURCE / "scripts" / name, self.root / "tree/scripts" / name)
        for name, text in FAKES.items():
            (self.tools / name).write_text(text)
            (self.tools / name).chmod(0o700)
        for name in ("bash", "cat", "dirname", "env", "grep", "ln", "mkdir"):
            (self.tools / name).symlink_to(shutil.which(name))

    def run_script(self, script, *arguments, stdin=subprocess.DEVNULL, user=0, installed="", fails="", **changes):
        """The finished process, and what was asked of package managers."""
        self.log.write_text("")
        env = {"PATH": str(self.tools), "LOG": str(self.log), "FAKE_USER": str(user), "INSTALLED": installed, "FAILS": fails,
               "CUDA_HOME": str(self.root / "cuda"), "LEANATTN_NVRTC_LIB": "libnvrtc.so", **changes}
        done = subprocess.run([self.root / "tree/scripts" / script, *arguments], stdin=stdin, capture_output=True, text=True, env=env, timeout=60)
        return done, self.log.read_text().splitlines()

    def run_setup(self, *arguments, **changes):
        return self.run_script("setup", *arguments, **changes)

    def at_a_terminal(self, typed, *arguments, **changes):
        keyboard, terminal = pty.openpty()
        os.write(keyboard, typed)
        try:
            return self.run_setup(*arguments, stdin=terminal, **changes)
        finally:
            os.close(keyboard)
            os.close(terminal)


class Setup(FirstUse):
    def test_without_a_terminal_it_says_what_it_installs_and_goes_on(self):
        for stdin in (subprocess.DEVNULL, subprocess.PIPE):
            done, asked = self.run_setup(stdin=stdin)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertRegex(done.stderr, r"this will be installed:\n  through apt-get: .*\bcmake\b.*\n")
            self.assertEqual(asked[0], "apt-get update -qq")
            self.assertRegex(asked[1], r"^apt-get install -y .* cmake ")
            self.assertEqual(len(asked), 2)

    def test_only_what_is_missing_is_installed(self):
        done, asked = self.run_setup(installed="g++ cmake")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotRegex(asked[1], r" (g\+\+|cmake) ")
        self.assertRegex(asked[1], " ninja-build ")
        done, asked = self.run_setup(installed="all")
        self.assertEqual((done.returncode, done.stderr, asked), (0, "", []))

    def test_what_tests_need_is_installed_once(self):
        done, asked = self.run_setup("--tests", installed="all")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([line.split(" --")[0] for line in asked], ["python3 -m venv", "pip install"])
        done, asked = self.run_setup("--tests", installed="all")
        self.assertEqual((done.returncode, done.stderr, asked), (0, "", []))

    def test_at_a_terminal_it_asks(self):
        for typed, code in ((b"y\n", 0), (b"n\n", 1), (b"\n", 1), (b"\x04", 1)):
            done, asked = self.at_a_terminal(typed)
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertEqual(len(asked), 0 if code else 2)
            self.assertEqual("nothing was installed" in done.stderr, code == 1)

    def test_at_a_terminal_it_can_be_told_not_to_ask(self):
        for arguments, changes in ((["--yes"], {}), ([], {"CI": "true"})):
            done, asked = self.at_a_terminal(b"", *arguments, **changes)
            self.assertEqual((done.returncode, len(asked)), (0, 2), done.stderr)

    def test_another_user_than_root_needs_sudo(self):
        done, asked = self.run_setup(user=1000)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([line.split()[0] for line in asked], ["sudo", "apt-get", "sudo", "apt-get"])
        (self.tools / "sudo").unlink()
        done, asked = self.run_setup(user=1000)
        self.assertEqual((done.returncode, asked), (1, []))
        self.assertRegex(done.stderr, r"no sudo; as root: apt-get install --no-install-recommends .*\bcmake\b")

    def test_an_index_that_cannot_be_updated_may_still_serve(self):
        done, asked = self.run_setup(fails="update")
        self.assertEqual((done.returncode, len(asked)), (0, 2), done.stderr)
        self.assertIn("cannot be brought up to date", done.stderr)
        done, _ = self.run_setup(fails="install")
        self.assertEqual(done.returncode, 1)
        self.assertIn("apt-get cannot install them", done.stderr)


class Tune(FirstUse):
    """scripts/tune installs, builds and tunes. Its build is the short one."""

    def test_it_installs_builds_and_tunes_for_the_gpu(self):
        done, asked = self.run_script("tune", GPU="1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("this will be installed", done.stderr)
        self.assertEqual([line.split()[:2] for line in asked], [["apt-get", "update"], ["apt-get", "install"], ["cmake", "-S"], ["cmake", "--build"],
                                                                ["leanattn", "devices"], ["leanattn", "tune"]])
        self.assertIn(" -DLEANATTN_PCH=ON ", asked[2])
        self.assertIn(" --model llama-3-8b ", asked[-1])
        self.assertNotIn("--arch", asked[-1])

    @unittest.skipUnless(shutil.which("cmake") and shutil.which("ninja"), "cmake and ninja build it")
    def test_it_builds_the_program_and_nothing_else(self):
        """Of a clean clone: few files to compile, since a folder is one, and none of tests, benchmarks and the Python module."""
        _, asked = self.run_script("tune", installed="all", GPU="1")
        configure, build = (shlex.split(line)[1:] for line in asked if line.startswith("cmake "))
        self.assertEqual((configure[:4], build[:3]), (["-S", ".", "-B", "build/tune"], ["--build", "build/tune", "--target"]))
        made = self.root / "made"
        subprocess.run(["cmake", "-S", SOURCE, "-B", made, *configure[4:]], check=True, capture_output=True, timeout=60)
        plan = subprocess.run(["ninja", "-C", made, "-t", "commands", *build[3:]], check=True, capture_output=True, text=True, timeout=60).stdout
        sources = [source for source in re.findall(r" -c (\S+)", plan) if source.endswith((".cxx", ".cpp", ".cc", ".c"))]
        self.assertLess(len(sources), 60, "files of one folder are compiled as one unit")
        folders = {pathlib.Path(source).relative_to(made if source.startswith(str(made)) else SOURCE).parts[0] for source in sources}
        self.assertEqual(folders, {"cache", "cli", "generator", "precompiled", "runtime", "tuner"})

    def test_without_a_gpu_it_does_the_part_that_needs_none(self):
        done, asked = self.run_script("tune", "--model", "mistral-7b", installed="all", GPU="")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(asked[-1], "leanattn tune --model mistral-7b --arch sm_90a --sms 132")


if __name__ == "__main__":
    unittest.main()
