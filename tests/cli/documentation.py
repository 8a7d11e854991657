#!/usr/bin/env python3
"""The documentation is true: its commands run, its examples are files that are compiled, and its picture is current."""

import argparse
import ast
import contextlib
import json
import os
import pathlib
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import unittest

PROGRAM = None
SOURCE = None
EXCERPT = re.compile(r"(cpp|cuda) \S+/\S+")  # the language, and the file that a block is from
PAGES = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "python/README.md"]


def pages():
    return [SOURCE / name for name in PAGES] + sorted((SOURCE / "docs").rglob("*.md"))


def numbered_blocks(page):
    """The (line, info string, text) of every fenced block, also of those in lists."""
    text = page.read_text()
    found = re.finditer(r"^( *)```([^\n]*)\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, block.start()) + 2, block[2], re.sub(rf"(?m)^{block[1]}", "", block[3])) for block in found]


def all_blocks(page):
    return [(info, text) for _, info, text in numbered_blocks(page)]


def blocks(page, info):
    """The texts of the blocks whose info string is `info`."""
    return [text for has, text in all_blocks(page) if has == info]


def anchors(page):
    """What links to headings of the page end with: lower case, hyphens for spaces, no punctuation, neither code marks nor addresses."""
    headings = re.findall(r"(?m)^#+ (.*)$", re.sub(r"(?ms)^ *```.*?^ *```$", "", page.read_text()))
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in plain]


def code_lines(text):
    """Lines of CUDA without indentation and comments."""
    lines = (re.sub(r"\s*//.*", "", line).strip() for line in text.splitlines())
    return [line for line in lines if line and line != "#pragma unroll"]


def commands(text):
    """The command lines of a shell block. Continued lines are joined, and comments and leading assignments are left out."""
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    for line in (part for line in lines for part in re.split(r"&&|;", re.sub(r"(^|\s)#.*", "", line))):
        words = shlex.split(line)
        while words and re.match(r"[A-Z_]+=", words[0]):
            words.pop(0)
        if words:
            yield words


def variables_of_the_page():
    """The environment variables of leanattn's own that docs/environment.md lists. A row may have several."""
    rows = re.findall(r"(?m)^\|([^|]*)\|", (SOURCE / "docs/environment.md").read_text())
    return {name for cell in rows for name in re.findall(r"`(LEANATTN_[A-Z_0-9]+)`", cell)}


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

    def test_the_contract_of_dependent_launches_has_one_text(self):
        header = (SOURCE / "include/leanattn/leanattn.h").read_text()
        comment = re.search(r"docs/api.md has in the same words:\n(.*?)\n \*\n", header, re.DOTALL).group(1)
        page = (SOURCE / "docs/api.md").read_text()
        listed = re.search(r"`leanattn_plan_launch` has in the same words:\n\n(.*?)\n\n", page, re.DOTALL).group(1)
        in_header = " ".join(re.sub(r"(?m)^ \*", "", comment).split())
        self.assertEqual(in_header, " ".join(listed.split()))
        self.assertIn("- A kernel that may still be running must not write context_lengths", in_header)

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

    def test_every_block_is_of_a_kind_that_is_checked(self):
        for page in pages():
            for info, text in all_blocks(page):
                kinds = ["sh no-gpu", "sh gpu", "sh build", "cpp", "c", "cmake", "python", "json"] + ["cuda"] * (page.name == "annotated-kernel.md")
                self.assertTrue(info in kinds or EXCERPT.fullmatch(info), f"{page.name}:\n{text}")

    def test_commands_that_need_a_gpu_are_accepted_without_one(self):
        """Blocks marked `sh gpu` and `sh build` have flags and files that exist. What the commands do is not checked."""
        asked = 0
        for page in pages():
            for words in (words for info in ("sh gpu", "sh build") for text in blocks(page, info) for words in commands(text)):
                with self.subTest(page=page.name, command=words), tempfile.TemporaryDirectory() as folder:
                    if words[0] == "leanattn":
                        for name in ("capture-4711", "today.json", "report.json", "paper.json", "regret.json"):
                            pathlib.Path(folder, name).touch()
                        pathlib.Path(folder, "bench").symlink_to(SOURCE / "bench")
                        words = [word.replace("/tmp/", "").replace("$PWD", folder) for word in words]
                        env = {"CUDA_VISIBLE_DEVICES": "", "HOME": folder, "PATH": os.environ["PATH"], "LEANATTN_CACHE_DIR": f"{folder}/cache"}
                        result = subprocess.run([PROGRAM, *words[1:]], cwd=folder, env=env, capture_output=True, text=True, timeout=120)
                        usage = result.returncode == 2 and "JSON" not in result.stderr  # The program may refuse the files above, which are empty.
                        self.assertFalse(usage, result.stderr)
                        asked += 1
                    elif words[0].startswith(("scripts/", "bench/")):
                        self.assertTrue((SOURCE / words[0]).exists())
                    elif words[0] == "python3":
                        self.assertTrue((SOURCE / words[1]).exists())
                    elif words[0] == "vllm":
                        self.assertIn("--attention-backend CUSTOM", " ".join(words))
                    elif words[0] == "sglang":
                        self.assertRegex(" ".join(words), "attention-backend leanattn$")
                    elif not re.fullmatch(r"build/\w+/tests/(unit_\w+|compile_matrix|simulated_tuning|source_hashes|fit_costs)", words[0]):
                        self.assertIn(words[0], ["cmake", "ninja", "ctest", "pip"])
        self.assertGreater(asked, 5)

    def test_every_block_that_needs_a_gpu_is_listed_with_its_commands(self):
        pages = [SOURCE / "README.md", SOURCE / "docs/how-to/report.md"]
        listed = subprocess.run([SOURCE / "scripts/documented-commands", *pages], capture_output=True, text=True, check=True).stdout
        wanted = [line for page in pages for info, text in all_blocks(page) if info in ("sh gpu", "python") for line in text.splitlines()]
        self.assertEqual(re.findall(r"(?m)^    \| (.*)$", listed), wanted)
        self.assertIn("needs today.json", listed)

    def test_examples_compile(self):
        """A block that is a file of examples/ is compiled there. Others are compiled here, and a fragment of C is the body of a function."""
        examples = {file.read_text() for file in (SOURCE / "examples").rglob("*.c*")}
        compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
        prologue = ("#include <leanattn/leanattn.h>\n#include <stdio.h>\nvoid block(leanattn_problem problem, leanattn_shape shape, "
                    "leanattn_decode_args args, void* workspace, leanattn_stream stream);\nvoid block(leanattn_problem problem, leanattn_shape shape, "
                    "leanattn_decode_args args, void* workspace, leanattn_stream stream) {\n")
        compiled = 0
        for page in pages():
            for language, text in [("c++", text) for text in blocks(page, "cpp")] + [("c", text) for text in blocks(page, "c")]:
                compiled += 1
                if text in examples:
                    continue
                standard = "-std=c++17" if language == "c++" else "-std=c11"
                source = text if "#include" in text else prologue + text + "}\n"
                result = subprocess.run([compiler, "-x", language, standard, "-Wall", "-Werror", "-fsyntax-only", "-I", SOURCE / "include", "-"],
                                        input=source, capture_output=True, text=True)
                self.assertEqual(result.returncode, 0, f"{page.name}:\n{result.stderr}")
        self.assertGreater(compiled, 2)

    def test_the_examples_of_the_first_pages_are_whole_files(self):
        for page, file in [("README.md", "decode.cpp"), ("docs/features.md", "serve.cpp"), ("docs/graphs.md", "graph.cpp")]:
            self.assertEqual(blocks(SOURCE / page, "cpp"), [(SOURCE / "examples" / file).read_text()], page)

    def test_cmake_lines_are_those_of_projects_that_are_built(self):
        """The name of the target that is linked to leanattn may differ, and so may leanattn's folder."""
        plain = lambda line: re.sub(r"add_subdirectory\(.*\)", "add_subdirectory(FOLDER)", re.sub(r"(target_link_libraries)\(\w+ ", r"\1(TARGET ", line.strip()))
        built = {plain(line) for file in (SOURCE / "examples").rglob("CMakeLists.txt") for line in file.read_text().splitlines()}
        for page in pages():
            for text in blocks(page, "cmake"):
                for line in filter(str.strip, text.splitlines()):
                    self.assertIn(plain(line), built, page.name)

    def test_python_blocks_parse_and_name_what_the_package_has(self):
        package = ast.parse((SOURCE / "python/leanattn/__init__.py").read_text())
        exported = next(ast.literal_eval(node.value) for node in package.body if isinstance(node, ast.Assign) and node.targets[0].id == "__all__")
        modules = {file.stem for file in (SOURCE / "python/leanattn").glob("[a-z]*.py")}
        for page in pages():
            for text in blocks(page, "python"):
                for node in ast.walk(ast.parse(text, page.name)):
                    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "leanattn":
                        self.assertIn(node.attr, exported, page.name)
                    if isinstance(node, ast.Import):
                        for name in (alias.name for alias in node.names if alias.name.startswith("leanattn.")):
                            self.assertIn(name.split(".")[1], modules, page.name)

    def test_json_blocks_parse(self):
        for page in pages():
            for text in blocks(page, "json"):
                for line in text.splitlines():
                    json.loads(line.replace("{...}", "{}"))

    def test_the_schedule_picture_is_what_the_readme_command_draws(self):
        drawing = [line for text in blocks(SOURCE / "README.md", "sh no-gpu") for line in text.splitlines() if "docs/img/schedule.svg" in line]
        self.assertEqual(len(drawing), 1)
        with tempfile.TemporaryDirectory() as folder:
            os.makedirs(f"{folder}/docs/img")
            result = self.run_block(drawing[0], folder)
            self.assertEqual(result.returncode, 0, result.stderr)
            drawn = pathlib.Path(folder, "docs/img/schedule.svg").read_text()
        self.assertEqual(drawn, (SOURCE / "docs/img/schedule.svg").read_text(), f"run: {drawing[0]}")

    def test_every_relative_link_leads_somewhere(self):
        for page in pages():
            for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", page.read_text()):
                if not re.match(r"[a-z]+:", target):
                    file = page.parent / target if target else page
                    self.assertTrue(file.exists(), f"{page.name}: {target}")
                    if anchor:
                        self.assertIn(anchor, anchors(file), f"{page.name}: {target}")

    def test_the_index_of_the_lab_notes_has_a_row_for_every_entry(self):
        notes = SOURCE / "docs/lab-notes"
        linked = re.findall(r"(?m)^\| \[[^]]+\]\(([^)]+)\) \|", (notes / "README.md").read_text())
        entries = [f"{page.name}#{anchor}" for page in notes.glob("*.md") for anchor in anchors(page) if re.match(r"\d{4}-", anchor)]
        self.assertGreater(len(entries), 50)
        self.assertEqual(sorted(linked), sorted(entries))

    def test_the_readme_of_the_package_has_no_relative_links(self):
        """It is shown by package indexes, where the files beside it are not."""
        targets = re.findall(r"\]\(([^)\s]+)\)", (SOURCE / "python/README.md").read_text())
        self.assertTrue(targets)
        for target in targets:
            self.assertRegex(target, "^https://")

    def test_every_environment_variable_of_the_program_is_on_its_page(self):
        used = set()
        for folder in ("generator", "cache", "runtime", "tuner", "cli"):
            for file in (SOURCE / folder).rglob("*.cpp"):
                used |= set(re.findall(r'(?:getenv|environment_variable|env)\("(LEANATTN_[A-Z_]+)"\)', file.read_text()))
        for file in (SOURCE / "python/leanattn").rglob("*.py"):
            used |= set(re.findall(r'"(LEANATTN_[A-Z_]+)"', file.read_text()))
        for folder in ("python/tests", "bench", "tests"):
            for file in [*(SOURCE / folder).rglob("*.py"), *(SOURCE / folder).rglob("*.cpp")]:
                used |= set(re.findall(r'(?:environ\.get|getenv)\("(LEANATTN_[A-Z_0-9]+)"', file.read_text()))
        used.remove("LEANATTN_TEST_LIBRARY")  # by which CTest says what it has built
        self.assertGreater(len(used), 5)
        self.assertLessEqual(used, variables_of_the_page())

    def test_doctor_knows_every_environment_variable_of_the_page(self):
        known = set(re.findall(r'\{"(LEANATTN_[A-Z_0-9]+)", \w+\}', (SOURCE / "cli/commands/doctor_environment.cpp").read_text()))
        self.assertEqual(known, variables_of_the_page())

    def test_the_tables_of_families_are_what_the_program_prints(self):
        printed = subprocess.run([PROGRAM, "families"], capture_output=True, text=True, check=True).stdout
        page = (SOURCE / "docs/kernel.md").read_text()
        self.assertIn("<!-- leanattn families -->\n" + printed + "<!-- end -->\n", page, "run: leanattn families")

    def test_gpus_are_as_measured_and_as_untuned_as_the_readme_says(self):
        """Winners are shipped for no other architectures than the tested ones. Of those whose kernels it calls untuned and without tcgen05, kernels
        are emitted, for decode and for prefill, and these have no such instruction."""
        row = next(line for line in (SOURCE / "README.md").read_text().splitlines() if line.startswith("| GPU |"))
        _, _, tested, compiled, _ = (cell.strip() for cell in row.split("|")[:5])
        named = lambda text: re.findall(r"sm_\d+a?", text)
        untuned, = (named(part) for part in compiled.split(";") if "untuned and do not use tcgen05" in part)
        self.assertEqual((named(tested), len(untuned)), (["sm_90a"], 2))
        if (SOURCE / "data/tuning.db").exists():
            with contextlib.closing(sqlite3.connect(f"file:{SOURCE / 'data/tuning.db'}?immutable=1", uri=True)) as db:
                self.assertEqual(db.execute("SELECT DISTINCT arch FROM device_models").fetchall(), [(arch,) for arch in named(tested)])
        for arch in named(compiled):
            for step in ([], ["--ragged-q", "--q-len", "4096", "--lengths", "8k", "--q-lens", "4k"]):
                emitted = subprocess.run([PROGRAM, "emit", "--json", "--model", "llama-3-8b", "--arch", arch, *step], capture_output=True, text=True)
                self.assertEqual(emitted.returncode, 0, emitted.stderr)
                kernel = json.loads(emitted.stdout)
                self.assertEqual(kernel["spec"]["arch"], arch)
                self.assertNotIn("tcgen05", kernel["source"])
                self.assertIn(kernel["provenance"], ("model", "fallback"))

    def check_excerpt(self, excerpt, text):
        """Lines between two `...` follow each other in the text. Comments and `#pragma unroll` do not count."""
        lines_of_text, at = code_lines(text), 0
        for piece in re.split(r"(?m)^\s*\.\.\.$", excerpt):
            lines = code_lines(piece)
            found = [i for i in range(at, len(lines_of_text)) if lines_of_text[i:i + len(lines)] == lines]
            self.assertTrue(found, "\n".join(["not there:", *lines]))
            at = found[0] + len(lines)

    def test_the_excerpts_of_a_kernel_are_in_what_emit_prints(self):
        page = SOURCE / "docs/annotated-kernel.md"
        with tempfile.TemporaryDirectory() as folder:
            result = self.run_block(blocks(page, "sh no-gpu")[0], folder)
            self.assertEqual(result.returncode, 0, result.stderr)
            kernel = pathlib.Path(folder, "decode.cu").read_text()
        excerpts = blocks(page, "cuda")
        self.assertGreater(len(excerpts), 7)
        for excerpt in excerpts:
            self.check_excerpt(excerpt, kernel)

    def test_the_excerpts_of_files_are_in_them(self):
        excerpts = [(info.split()[1], text) for page in pages() for info, text in all_blocks(page) if EXCERPT.fullmatch(info)]
        self.assertGreater(len(excerpts), 5)
        for file, text in excerpts:
            self.check_excerpt(text, (SOURCE / file).read_text())

    def test_the_command_page_has_every_command_and_every_flag(self):
        page = (SOURCE / "docs/command-line.md").read_text()
        text = subprocess.run([PROGRAM, "--help"], capture_output=True, text=True, check=True).stdout
        commands = re.findall(r"^  ([a-z]+) {2,}", text.split("Commands:")[1].split("\n\n")[0], re.MULTILINE)
        self.assertGreater(len(commands), 8)
        for command in commands:
            self.assertIn(f"leanattn {command}", page)
            shown = subprocess.run([PROGRAM, command, "--help"], capture_output=True, text=True, check=True).stdout
            for flag in set(re.findall(r"^ +(?:-\w, )?(--[a-z0-9-]+)", shown, re.MULTILINE)) - {"--help"}:
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
