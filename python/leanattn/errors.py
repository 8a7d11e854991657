"""errors.py -- what leanattn raises. Every exception carries the library's code, its hint and, for compiles, the log."""


class Error(Exception):
    """A call that failed.

    code  the library's name for what went wrong: "invalid_argument", "no_driver", "compile_failed" ...
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
    """An argument's value cannot be; the message names it. Nothing has been launched."""


class ArgumentTypeError(Error, TypeError):
    """An argument is of the wrong kind; the message names it. Nothing has been launched."""


class Unsupported(Error, NotImplementedError):
    """Valid, but this build or this GPU cannot do it; the message names the limit."""


class NotPrepared(Error, RuntimeError):
    """A kernel that must be compiled or loaded was asked for while the stream is being captured."""


class OutOfMemory(Error, MemoryError):
    """Device or host memory."""


_CLASSES = {"invalid_argument": ArgumentError, "unsupported": Unsupported, "not_prepared": NotPrepared, "out_of_memory": OutOfMemory}


def make(code: str, message: str, hint: str, log: str) -> Error:
    """The exception for a code; called by the compiled half."""
    if code == "invalid_argument_type":
        return ArgumentTypeError(message, "invalid_argument", hint, log)
    if code == "not_prepared":
        hint += " In Python: run the same decode() once before the capture, or Engine.plan() for its problem and shape."
    return _CLASSES.get(code, Error)(message, code, hint.strip(), log)
