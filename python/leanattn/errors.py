"""errors.py -- the exceptions of leanattn. Each has the code and the hint of the library and, after a compilation, its log."""
import re


class Error(Exception):
    """A call that failed.

    code  the kind of error, such as "invalid_argument", "no_driver" or "compile_failed"
    hint  what to do about it; may be empty
    log   the compiler's log, where there is one
    """

    def __init__(self, message: str, code: str = "internal", hint: str = "", log: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.hint = hint
        self.log = log

    def __str__(self) -> str:
        return f"{self.message}. {self.hint}" if self.hint else self.message

    def __reduce__(self):
        return type(self), (self.message, self.code, self.hint, self.log)


class ArgumentError(Error, ValueError):
    """The value of an argument is wrong; the message names the argument. Nothing has been launched."""


class ArgumentTypeError(Error, TypeError):
    """An argument has the wrong type; the message names the argument. Nothing has been launched."""


class Unsupported(Error, NotImplementedError):
    """What was asked for is valid, but this build or GPU cannot do it; the message names the limit."""


class NotPrepared(Error, RuntimeError):
    """A kernel must be compiled or loaded first, and the stream is being captured."""


class OutOfMemory(Error, MemoryError):
    """There is no more device or host memory."""


class GroupBroken(Error, RuntimeError):
    """A rank of a group did not come in time, failed, or launched something else than the others: results since then are wrong.

    rank  the rank that is at fault; None where NCCL has found the error, which does not say
    """

    @property
    def rank(self) -> int | None:
        named = re.match(r"rank (\d+) ", self.message)
        return int(named[1]) if named else None


_CLASSES = {"invalid_argument": ArgumentError, "unsupported": Unsupported, "not_prepared": NotPrepared, "out_of_memory": OutOfMemory,
            "group_broken": GroupBroken}


def make(code: str, message: str, hint: str, log: str) -> Error:
    """The exception for a code. The compiled half calls this."""
    if code == "invalid_argument_type":
        return ArgumentTypeError(message, "invalid_argument", hint, log)
    if code == "not_prepared":
        hint += " In Python: run the same decode() once before the capture, or Engine.plan() for its problem and shape."
    if code == "workspace_corrupt":
        hint += " In Python: Engine.reset_workspaces() does so."
    if code == "group_broken":
        hint += " In Python: Group.connect_nccl()." if "connect_nccl" in hint else " In Python: Group.reset()."
    return _CLASSES.get(code, Error)(message, code, hint.strip(), log)
