"""leanattn_c.py -- leanattn through its C interface: engine, plan, launch. Structs come from leanattn/leanattn.h itself.

Pointers and streams are plain integers (a torch tensor's data_ptr(), a torch stream's cuda_stream). One thread.
"""
import ctypes
import pathlib

from . import c_header

HEADER = pathlib.Path(__file__).resolve().parents[2] / "include" / "leanattn" / "leanattn.h"


class LeanattnError(RuntimeError):
    """A call that failed: status name, message and hint, as the library words them."""


class Library:
    """A loaded libleanattn.so and the types of its interface."""

    def __init__(self, path, headers=(HEADER,)):
        text = "".join(pathlib.Path(header).read_text() for header in headers)
        self.structs = c_header.structs(text)
        self.enums = c_header.enums(text)
        self.functions = ctypes.CDLL(str(path))
        pointer, status = ctypes.c_void_p, ctypes.c_int
        for name, result, arguments in [
            ("version", ctypes.c_char_p, []),
            ("status_name", ctypes.c_char_p, [status]),
            ("last_error_message", ctypes.c_char_p, []),
            ("last_error_hint", ctypes.c_char_p, []),
            ("engine_create", status, [pointer, pointer]),
            ("engine_destroy", None, [pointer]),
            ("engine_warnings", ctypes.c_char_p, [pointer]),
            ("engine_plan", status, [pointer, pointer, pointer, pointer, pointer]),
            ("plan_get_info", status, [pointer, pointer]),
            ("plan_workspace_bytes", ctypes.c_int64, [pointer]),
            ("plan_init_workspace", status, [pointer, pointer, ctypes.c_int64, pointer]),
            ("plan_launch", status, [pointer, pointer, pointer, pointer]),
        ]:
            self.bind(name, result, arguments)

    def bind(self, name, result, arguments):
        """Makes the function leanattn_NAME the method `name`."""
        function = getattr(self.functions, "leanattn_" + name)
        function.restype, function.argtypes = result, arguments
        setattr(self, name, function)

    def make(self, struct, **values):
        """A struct of the interface with its struct_size set; an unknown field is an error."""
        made = self.structs["leanattn_" + struct]()
        made.struct_size = ctypes.sizeof(made)
        known = {name for name, _ in made._fields_}
        for name, value in values.items():
            if name not in known:
                raise AttributeError(f"leanattn_{struct} has no field {name}")
            setattr(made, name, value)
        return made

    def has_field(self, struct, name):
        return any(field == name for field, _ in self.structs["leanattn_" + struct]._fields_)

    def constant(self, enum, value):
        """The name of a value without prefix, in lower case: constant("provenance", 1) is "bucket"."""
        for name, number in self.enums["leanattn_" + enum].items():
            if number == value:
                return name.removeprefix("LEANATTN_").lower()
        return str(value)

    def check(self, status):
        if status != 0:
            message, hint = self.last_error_message().decode(), self.last_error_hint().decode()
            raise LeanattnError(f"{self.status_name(status).decode()}: {message}" + (f" {hint}" if hint else ""))


class Engine:
    """One GPU and what was tuned for it. `cache_dir` None: LEANATTN_CACHE_DIR or the user's cache."""

    def __init__(self, library, device=0, cache_dir=None):
        self.library = library
        handle = ctypes.c_void_p()
        options = library.make("engine_options", device=device, cache_dir=None if cache_dir is None else str(cache_dir).encode())
        library.check(library.engine_create(ctypes.byref(options), ctypes.byref(handle)))
        self.handle = handle

    def warnings(self):
        return self.library.engine_warnings(self.handle).decode()

    def query(self, q_heads, kv_heads, head_dim, batch, longest_context, total_context, max_batch=0, pdl=False, stream=0, **features):
        """Asks for a bf16 plan for a dense cache, [batch, kv_heads, context_capacity, head_dim], or with further fields of the problem for
        what they say. Programmatic dependent launch is the problem's field `pdl`; a header without it raises here, a library older than the
        header when the plan is asked for."""
        problem = self.library.make("problem", q_heads=q_heads, kv_heads=kv_heads, head_dim=head_dim, **({"pdl": 1} if pdl else {}), **features)
        shape = self.library.make("shape", batch=batch, max_batch=max_batch, longest_context=longest_context, total_context=total_context)
        return Query(self, problem, shape, stream)


class Query:
    """A problem and a shape for which plans can be asked repeatedly."""

    def __init__(self, engine, problem, shape, stream):
        self.engine, self.problem, self.shape, self.stream = engine, problem, shape, stream
        self.handle = ctypes.c_void_p()
        self.arguments = (engine.handle, ctypes.byref(problem), ctypes.byref(shape), stream, ctypes.byref(self.handle))

    def ask(self):
        """One call of leanattn_engine_plan and nothing else, as in a decode step. The first call for a kernel compiles it."""
        self.engine.library.check(self.engine.library.engine_plan(*self.arguments))

    def plan(self):
        self.ask()
        return Plan(self.engine.library, ctypes.c_void_p(self.handle.value))


class Plan:
    """The plan of a problem and a shape. It lives as long as its engine."""

    def __init__(self, library, handle):
        self.library, self.handle = library, handle

    def info(self):
        """The plan's facts as a dict: kernel_name, grid, provenance and layer as text, tuned_us, compile_ms ..."""
        info = self.library.make("plan_info")
        self.library.check(self.library.plan_get_info(self.handle, ctypes.byref(info)))
        facts = {name: getattr(info, name) for name, _ in info._fields_ if name not in ("struct_size", "reserved")}
        facts = {name: value.decode() if isinstance(value, bytes) else value for name, value in facts.items()}
        facts["provenance"] = self.library.constant("provenance", facts["provenance"])
        return facts

    def workspace_bytes(self):
        return self.library.plan_workspace_bytes(self.handle)

    def init_workspace(self, workspace, workspace_bytes, stream):
        self.library.check(self.library.plan_init_workspace(self.handle, workspace, workspace_bytes, stream))

    def arguments(self, q, k, v, o, context_lengths, batch, context_capacity, **more):
        """Launch arguments for dense tensors, and what features need; device pointers as integers."""
        return self.library.make("decode_args", q=q, k=k, v=v, o=o, context_lengths=context_lengths, batch=batch,
                                 context_capacity=context_capacity, **more)

    def launch(self, arguments, workspace, stream):
        self.library.check(self.library.plan_launch(self.handle, ctypes.byref(arguments), workspace, stream))
