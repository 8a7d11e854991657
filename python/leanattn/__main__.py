"""The program leanattn, which is part of the package: `python -m leanattn` and the command `leanattn` run it.

The program tunes, verifies, benchmarks, reports and says what a machine lacks; `leanattn --help` lists its commands.
"""
import os
import pathlib
import signal
import sys

from . import _nvrtc


def program() -> pathlib.Path:
    """The program of this installation. Raises FileNotFoundError where the package was built without it."""
    path = pathlib.Path(__file__).resolve().parent / "bin" / "leanattn"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: this leanattn was built without the program (LEANATTN_BUILD_CLI=OFF). "
                                "Install it again with the program, or build that with CMake.")
    return path


def main() -> int:
    """Becomes the program, with the arguments of this process. Returns only where that fails: the exit code."""
    try:
        path = program()
        # Python ignores these, which a program that takes its place would inherit: `leanattn report | head` shall end it as any other.
        for name in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(name, signal.SIG_DFL)
        os.execve(path, ["leanattn", *sys.argv[1:]], {**os.environ, **_nvrtc.environment()})
    except OSError as error:
        print(f"leanattn: the program cannot be started: {error}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
