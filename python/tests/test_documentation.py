"""The Python of the documentation: every block runs, up to the launch, and every call that a line of text shows takes what it is shown with."""
import ast
import inspect
import os
import pathlib
import re
import subprocess
import sys

import pytest

pytest.importorskip("_fake_gpu", reason="built with the tests only")

import leanattn  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
SOURCE = HERE.parents[1]
PAGES = [SOURCE / "README.md", SOURCE / "CONTRIBUTING.md", SOURCE / "python/README.md", *sorted((SOURCE / "docs").rglob("*.md"))]
TEXT = {page.relative_to(SOURCE).as_posix(): page.read_text() for page in PAGES}
BLOCKS = [pytest.param(block, id=f"{page}:{text[:match.start()].count(chr(10)) + 1}")
          for page, text in TEXT.items() for match in re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
          for block in match.groups()]
# `leanattn.name`, `leanattn.name(arguments)` and `leanattn.Class.name(arguments)` in a line of text.
SHOWN = [pytest.param(code, id=f"{page}:{code}") for page, text in TEXT.items()
         for code in sorted(set(re.findall(r"`(leanattn\.[A-Za-z_.]+(?:\([^`]*\))?)`", text))) if not re.search(r"\.(hpp|h|json|db|so)$", code)]


def signature(function):
    """That of a function of the compiled half is in the text that stubs are made of; its defaults do not matter here."""
    overloads = getattr(function, "__nb_signature__", None)
    if not overloads:
        return inspect.signature(function)
    (text, *_), = overloads
    names = {}
    exec("from __future__ import annotations\n" + re.sub(r"\\\d+", "None", text) + ": ...", names)
    return inspect.signature(names[function.__name__])


def test_there_are_blocks_and_lines_to_check():
    assert len(BLOCKS) >= 5 and len(SHOWN) >= 5


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_runs(block, tmp_path):
    os.chmod(tmp_path, 0o700)
    env = {k: v for k, v in os.environ.items() if not k.startswith("LEANATTN_") or k.startswith("LEANATTN_NVRTC")}
    env.update(PYTHONPATH=f"{env.get('PYTHONPATH', '')}:{HERE}", LEANATTN_CACHE_DIR=str(tmp_path), HOME=str(tmp_path), PYTHONDONTWRITEBYTECODE="1")
    ran = subprocess.run([sys.executable, HERE / "documented_python.py"], input=block, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    if "nvrtc_missing" in ran.stderr:
        pytest.skip("NVRTC is not installed")
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("code", SHOWN)
def test_what_a_line_of_text_names_is_there(code):
    shown = ast.parse(code, mode="eval").body
    path = ast.unparse(shown.func if isinstance(shown, ast.Call) else shown).split(".")[1:]
    if path[0] in ("torch", "transformers"):  # modules that need what they are for
        assert (SOURCE / "python/leanattn" / f"{path[0]}.py").exists() and path[1:] == []
        return
    found = leanattn
    for name in path:
        found = getattr(found, name)
    if isinstance(shown, ast.Call):
        if isinstance(found, type) and not hasattr(found, "__dataclass_fields__"):
            found = found.__init__
            shown.args.insert(0, ast.Constant(None))  # self
        signature(found).bind_partial(*shown.args, **{keyword.arg: keyword.value for keyword in shown.keywords})
