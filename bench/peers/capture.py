"""capture.py -- tunes steps: as lines of a call capture, which name any problem and shape."""
import json
import subprocess

from . import files


def line(problem, shape, features):
    """A call capture's line that asks once for a bf16 problem. `problem`, `shape` and `features` name what is not the default."""
    return {"leanattn_capture": 1, "calls": 1, "answer": "fallback", "device": "", "sms": 0, "written": "2000-01-01T00:00:00.000Z",
            "problem": {"dtype": "bf16", "layout": "contiguous", "lse": False, "pdl": False, **problem, "features": features},
            "shape": {"max_batch": 0, "total_context": 0, **shape}}


def tune(program, db, path, lines, seconds):
    """Runs `leanattn tune` for the lines, which it writes to `path`, `seconds` each. Returns None, or why it failed."""
    files.write_text(path, "".join(json.dumps(each) + "\n" for each in lines))
    command = [str(program.resolve()), "--quiet", *(["--db", str(db.resolve())] if db else []), "tune", "--from-capture", str(path), "--budget",
               f"{seconds * len(lines):g}s"]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    return f"{' '.join(command)}: exit code {done.returncode}: {done.stderr.strip()}" if done.returncode else None
