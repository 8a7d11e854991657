#!/usr/bin/env python3
"""Compiles the sources of the Python module as scripts/wheels does: with libc++ and for Python's stable ABI, where headers bring less along than
with libstdc++ and all of Python.h. No object is made. Argument: the compile_commands.json of a tree that has the module, whose options are taken."""

import json
import pathlib
import shlex
import shutil
import subprocess
import sys

# The stable ABI of 3.12, with which wheels are built, has what headers of 3.11 leave out of theirs. Our sources need these of it.
PROLOGUE = """
#include <patchlevel.h>
#if PY_VERSION_HEX < 0x030C0000
#include <cstddef>
struct _object;
extern "C" {
_object* PyErr_GetRaisedException();
void PyErr_SetRaisedException(_object*);
_object* PyObject_Vectorcall(_object*, _object* const*, std::size_t, _object*);
_object* PyObject_VectorcallMethod(_object*, _object* const*, std::size_t, _object*);
}
#endif
"""


def options(command):
    """Those that say what the compiler finds, and in which language."""
    words = iter(shlex.split(command))
    for word in words:
        if word == "-Xclang":  # a precompiled header
            next(words)
        elif word in ("-isystem", "-include"):
            yield from (word, next(words))
        elif word.startswith(("-D", "-I", "-std=")):
            yield word


def main():
    compiler = shutil.which("clang++")
    if compiler is None:
        sys.exit("clang++ is not installed")
    commands = [entry["command"] for entry in json.loads(pathlib.Path(sys.argv[1]).read_text()) if "/leanattn_python.dir/" in entry["command"]]
    sources = sorted((pathlib.Path(__file__).resolve().parent.parent / "src").glob("*.cpp"))
    unit = PROLOGUE + "".join(f'#include "{source}"\n' for source in sources)
    done = subprocess.run([compiler, "-fsyntax-only", "-stdlib=libc++", "-DPy_LIMITED_API=0x030C0000", *options(commands[0]), "-x", "c++", "-"],
                          input=unit, text=True)
    print(f"{len(sources)} files {'do not compile' if done.returncode else 'compile'}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
