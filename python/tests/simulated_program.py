"""simulated_program.py -- where the tests find the leanattn program on a simulated GPU (tests/unit/tuner/worker/simulated_program.cpp), and what it is
to know of that GPU."""
import contextlib
import json
import os
import pathlib
import tempfile

import _fake_gpu

SOURCE = pathlib.Path(__file__).resolve().parents[2]
_RELATIVE = "tests/unit/tuner/worker/simulated_program"
DEVICE = json.dumps({"name": "NVIDIA Fictional 1", "l2_bytes": 0, "memory_bytes": 1 << 30})  # as fake_cuda.hpp has it


def find():
    """The program of this build tree, else that of the tree with the sanitizers, else of any other; None where none is built."""
    own = pathlib.Path(_fake_gpu.__file__).resolve().parents[2] / _RELATIVE
    for program in (own, SOURCE / "build/sanitize" / _RELATIVE, *sorted(SOURCE.glob(f"build/*/{_RELATIVE}"))):
        if program.is_file():
            return str(program)
    return None


def environment():
    """The variables with which a process tunes in it; empty where it is not built."""
    program = find()
    return {"LEANATTN_PROGRAM": program, "LEANATTN_SIMULATED_DEVICE": DEVICE} if program else {}


@contextlib.contextmanager
def cache_directory():
    """A directory for databases, in memory where possible, because every trial is a commit that waits for the disk."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK | os.X_OK) else None) as folder:
        yield folder
