#!/usr/bin/env python3
"""The documentation says what is so: commands run, the example is the file that is compiled, the picture is current."""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

PROGRAM = None
SOURCE = None
PAGES = ["README.md", "CONTRIBUTING.md"]


def pages():
    return [SOURCE / name for name in PAGES] + sorted((SOURCE / "docs").glob("*.md"))


def blocks(page, info):
    """Fenced blocks whose info string is exactly `info`."""
    return re.findall(rf"^```{re.escape(info)}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


class Documentation(unittest.TestCase):
    def run_block(self, text, folder):
        bin_folder = pathlib.Path(folder) / "bin"
        bin_folder.mkdir(exist_ok=True)
        link = bin_folder / "leanattn"
        if not link.exists():
            link.symlink_to(PROGRAM)
        env = {k: v for k, v in os.environ.items() if not k.startswith("LEANATTN_") or k.startswith("LEANATTN_NVRTC")}
        env.update(PATH=f"{bin_folder}:{env['PATH']}", HOME=folder, LEANATTN_CACHE_DIR=f"{folder}/cache")
        return subprocess.run(["bash", "-euo", "pipefail", "-c", text], cwd=folder, env=env, capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, timeout=300)

    def test_commands_marked_as_needing_no_gpu_run(self):
        ran = 0
        for page in pages():
            for text in blocks(page, "sh no-gpu"):
                with self.subTest(page=page.name, text=text), tempfile.TemporaryDirectory() as folder:
                    os.makedirs(f"{folder}/docs/img")
                    result = self.run_block(text, folder)
                    self.assertEqual(result.returncode, 0, result.stderr)
                    ran += 1
        self.assertGreater(ran, 0, "no block is marked `sh no-gpu`")

    def test_examples_are_the_files_that_are_compiled(self):
        for page, file in [("README.md", "decode.cpp"), ("docs/features.md", "serve.cpp"), ("docs/graphs.md", "graph.cpp")]:
            examples = blocks(SOURCE / page, "cpp")
            self.assertEqual(len(examples), 1, page)
            self.assertEqual(examples[0], (SOURCE / "examples" / file).read_text())

    def test_the_schedule_picture_is_what_the_readme_command_draws(self):
        commands = [line for text in blocks(SOURCE / "README.md", "sh no-gpu") for line in text.splitlines() if "docs/img/schedule.svg" in line]
        self.assertEqual(len(commands), 1)
        with tempfile.TemporaryDirectory() as folder:
            os.makedirs(f"{folder}/docs/img")
            result = self.run_block(commands[0], folder)
            self.assertEqual(result.returncode, 0, result.stderr)
            drawn = pathlib.Path(folder, "docs/img/schedule.svg").read_text()
        self.assertEqual(drawn, (SOURCE / "docs/img/schedule.svg").read_text(), f"run: {commands[0]}")

    def test_every_relative_link_leads_somewhere(self):
        for page in pages():
            for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
                if not re.match(r"[a-z]+:", target):
                    self.assertTrue((page.parent / target).exists(), f"{page.name}: {target}")

    def test_every_environment_variable_of_the_program_is_in_the_readme_table(self):
        used = set()
        for folder in ("generator", "cache", "runtime", "tuner", "cli"):
            for file in (SOURCE / folder).glob("*.cpp"):
                used |= set(re.findall(r'(?:getenv|environment|env)\("(LEANATTN_[A-Z_]+)"\)', file.read_text()))
        table = set(re.findall(r"^\| `(LEANATTN_[A-Z_]+)`", (SOURCE / "README.md").read_text(), re.MULTILINE))
        self.assertLessEqual(used, table)

    def test_the_command_page_has_every_command_and_every_flag(self):
        page = (SOURCE / "docs/command-line.md").read_text()
        text = subprocess.run([PROGRAM, "--help"], capture_output=True, text=True, check=True).stdout
        commands = re.findall(r"^  ([a-z]+) {2,}", text.split("Subcommands:")[1], re.MULTILINE)
        self.assertGreater(len(commands), 8)
        for command in commands:
            self.assertIn(f"leanattn {command}", page)
            shown = subprocess.run([PROGRAM, command, "--help"], capture_output=True, text=True, check=True).stdout
            for flag in set(re.findall(r"^ +(?:-\w,)?(--[a-z0-9-]+)", shown, re.MULTILINE)) - {"--help"}:
                self.assertIn(f"`{flag}", page, f"{command} {flag} is not on the page")


def main():
    global PROGRAM, SOURCE
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--source", required=True)
    options, rest = parser.parse_known_args()
    PROGRAM, SOURCE = os.path.abspath(options.program), pathlib.Path(options.source)
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
