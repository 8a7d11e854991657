"""engine_stand_in.py -- how an inference engine that is not there is made from the record of its interface: classes that have the recorded names,
signatures and fields, and tensors with the operations of torch that the backends use.

What does something is in the `behaviour` of an engine's own stand-in: {class, or None for functions: {name: function}}. Every other method raises.
"""
import abc
import ast
import contextlib
import copy
import dataclasses
import enum
import inspect
import itertools
import json
import math
import sys
import types

from fake_tensors import FastTensor


def without(*packages):
    """The beginning of a program for which these packages are not installed."""
    return f"""
import sys
class Absent:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in {packages!r}:
            raise ModuleNotFoundError("No module named " + repr(name), name=name)
sys.meta_path.insert(0, Absent)
"""


def contract(folder, version):
    return json.loads((folder / f"{version}.json").read_text())


class Tensor(FastTensor):
    """With the operations of torch that leanattn.vllm uses. `operations` counts those that made a tensor."""

    operations = 0

    def stride(self, dimension):
        return self.strides[dimension]

    def numel(self):
        return math.prod(self.shape)

    @property
    def device(self):
        return types.SimpleNamespace(type="cuda", index=self.device_id)

    def _view(self, shape, strides, offset):
        Tensor.operations += 1
        made = copy.copy(self)
        made.shape, made.strides, made.no_strides, made._kept = tuple(shape), tuple(strides), False, []
        made.data = self.data + offset * bytes_of(self.dtype)
        return made

    def __getitem__(self, where):
        where = where if isinstance(where, tuple) else (where,)
        if where[0] is ...:
            where = (*[slice(None)] * (len(self.shape) + 1 - len(where)), *where[1:])
        shape, strides, offset = [], [], 0
        for size, stride, part in itertools.zip_longest(self.shape, self.strides, where, fillvalue=slice(None)):
            one = not isinstance(part, slice)
            start, stop, step = slice(part, part + 1).indices(size) if one else part.indices(size)
            assert step == 1
            offset += start * stride
            if not one:
                shape, strides = [*shape, max(stop - start, 0)], [*strides, stride]
        return self._view(shape, strides, offset)

    def split(self, size, dim):
        assert dim == -1 and self.shape[-1] % size == 0
        return tuple(self._view((*self.shape[:-1], size), self.strides, begin) for begin in range(0, self.shape[-1], size))

    def unsqueeze(self, dimension):
        stride = self.strides[dimension] * self.shape[dimension]
        return self._view([*self.shape[:dimension], 1, *self.shape[dimension:]], [*self.strides[:dimension], stride, *self.strides[dimension:]], 0)

    def permute(self, *order):
        return self._view([self.shape[i] for i in order], [self.strides[i] for i in order], 0)

    def view(self, *shape):
        """Another shape over the same memory, or another type of elements, which may be larger."""
        if isinstance(shape[0], str):
            times, left = divmod(bytes_of(shape[0]), bytes_of(self.dtype))
            assert left == 0 and self.strides[-1] == 1 and all(size % times == 0 for size in (*self.strides[:-1], self.shape[-1]))
            made = self._view((*self.shape[:-1], self.shape[-1] // times), (*(stride // times for stride in self.strides[:-1]), 1), 0)
            made.dtype = shape[0]
            return made
        shape = shape[0] if isinstance(shape[0], tuple) else shape
        shape = tuple(self.numel() // -math.prod(shape) if size == -1 else size for size in shape)
        assert math.prod(shape) == self.numel()
        dense = _dense(self.shape)
        if tuple(self.strides) == dense:
            return self._view(shape, _dense(shape), 0)
        # Rows that are a part of longer ones: the first dimensions are of rows, and the others within one.
        rows, step = self.shape[0], self.strides[0]
        lead = next(count for count in range(1, len(shape)) if math.prod(shape[:count]) == rows)
        assert tuple(self.strides[1:]) == dense[1:]
        return self._view(shape, [step * stride for stride in _dense(shape[:lead])] + [*_dense(shape[lead:])], 0)

    def reshape(self, *shape):
        return self.view(*shape)

    def new_full(self, shape, value, dtype):
        made = type(self)(shape, dtype)
        made.value = value
        return made

    def new_empty(self, shape, dtype=None):
        return type(self)(shape, {None: self.dtype, "float32": "fp32"}[dtype])

    def detach(self):
        return self

    def is_contiguous(self):
        return tuple(self.strides) == _dense(self.shape)

    def contiguous(self):
        return self if self.is_contiguous() else type(self)(self.shape, self.dtype)

    def float(self):
        Tensor.operations += 1
        return type(self)(self.shape, "fp32")

    def to(self, dtype):
        Tensor.operations += 1
        return type(self)(self.shape, dtype)

    def transpose(self, one, other):
        order = list(range(len(self.shape)))
        order[one], order[other] = other, one
        return self.permute(*order)

    @property
    def T(self):
        return self.transpose(0, 1)

    def fill_(self, value):
        Tensor.operations += 1
        self.value = value
        return self

    def zero_(self):
        return self.fill_(0)

    def copy_(self, other, non_blocking=False):
        Tensor.operations += 1
        assert tuple(self.shape) == tuple(other.shape)
        self.copied = other
        return self

    def __sub__(self, _):
        Tensor.operations += 1
        return type(self)(self.shape, self.dtype)

    def __truediv__(self, divisor):
        Tensor.operations += 1
        made = type(self)(self.shape, self.dtype)
        made.quotient = (self, divisor)
        return made


def _dense(shape):
    """The strides of a tensor without gaps."""
    return tuple(math.prod(shape[i + 1:]) for i in range(len(shape)))


def bytes_of(dtype):
    return {"bf16": 2, "fp16": 2, "fp32": 4, "int32": 4, "int64": 8, "int8": 1, "uint8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}[dtype]


def signature_of(text):
    """A recorded signature. Names in its defaults mean nothing here."""
    names = {node.id for node in ast.walk(ast.parse(f"def f{text}: pass")) if isinstance(node, ast.Name)}
    namespace = {name: types.SimpleNamespace(DECODER=None) for name in names}
    exec(f"def f{text}: pass", namespace)
    return inspect.signature(namespace["f"])


def parameters(text_or_function):
    """Names and kinds of parameters and whether they have a default, of a function or of a signature as text."""
    signature = signature_of(text_or_function) if isinstance(text_or_function, str) else inspect.signature(text_or_function)
    return [(parameter.name, parameter.kind, parameter.default is not inspect.Parameter.empty) for parameter in signature.parameters.values()]


def takes_anything(function):
    kinds = [kind for _, kind, _ in parameters(function)]
    return inspect.Parameter.VAR_POSITIONAL in kinds and inspect.Parameter.VAR_KEYWORD in kinds


def recorded_methods(recorded):
    """{(class, method): signature as text}."""
    return {(name, method): what["signature"] for module in recorded["modules"].values()
            for name, made in module["classes"].items() for method, what in made["methods"].items()}


BASES = {"ABC": abc.ABC, "Enum": enum.Enum, "IntEnum": enum.IntEnum, "str": str}


def literal(text):
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return None


def _method(name, of, recorded, behaviour):
    def missing(*_, **__):
        raise NotImplementedError(f"{of}.{name} of the stand-in")

    made = behaviour.get(of, {}).get(name) or missing
    for decorator in reversed(recorded["decorators"]):
        made = {"staticmethod": staticmethod, "classmethod": classmethod, "property": property, "abstractmethod": abc.abstractmethod}.get(
            decorator, lambda function: function)(made)
    return made


def _class(name, recorded, known, behaviour, roots):
    bases = tuple(known.get(base, roots.get(base)) for base in recorded["bases"] if base in known or base in roots)
    methods = {method: _method(method, name, what, behaviour) for method, what in recorded["methods"].items() if method != "__new__"}
    values = {attribute: None if text is None else literal(text) for attribute, text in recorded["attributes"].items()}
    if any(issubclass(base, enum.Enum) for base in bases):
        made = enum.Enum(name, {member: value or member for member, value in values.items()}, **({"type": str} if str in bases else {}))
        for method, function in methods.items():
            setattr(made, method, function)
        return made
    if recorded["dataclass"]:
        fields = [(field, object, dataclasses.MISSING if text is None else literal(text)) for field, text in recorded["attributes"].items()]
        return dataclasses.make_dataclass(name, [(field, kind) if default is dataclasses.MISSING else (field, kind, default)
                                                 for field, kind, default in fields], namespace=methods)
    return types.new_class(name, bases, {}, lambda namespace: namespace.update({**values, **methods}))


def modules_of(recorded, behaviour, roots=BASES):
    """The modules of a record by path, and its classes by name. `roots` has the bases that no record has."""
    modules, known = {}, {}
    for path, content in recorded["modules"].items():
        parts = path.split(".")
        for depth in range(1, len(parts) + 1):
            modules.setdefault(".".join(parts[:depth]), types.ModuleType(".".join(parts[:depth])))
        for name, what in content["classes"].items():
            known[name] = _class(name, what, known, behaviour, roots)
        for name in [*content["classes"], *content["functions"]]:
            if name in known or name in behaviour[None]:  # functions that no test runs are left out
                setattr(modules[path], name, known[name] if name in known else behaviour[None][name])
        for name, text in content["constants"].items():
            owner, _, method = text.rpartition(".")
            setattr(modules[path], name, getattr(getattr(modules[path], owner), method) if hasattr(modules[path], owner) else literal(text))
    for path, content in recorded["modules"].items():
        for name, source in content.get("imports", {}).items():
            setattr(modules[path], name, getattr(modules[source], name))
    return modules, known


@contextlib.contextmanager
def in_place(modules, *prefixes):
    """Puts modules in place of all whose names are a prefix or begin with it and a dot, and puts these back afterwards."""
    def ours():
        return {name: module for name, module in sys.modules.items() if any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)}

    parents = [(sys.modules[parent], child) for parent, _, child in (prefix.rpartition(".") for prefix in prefixes) if parent in sys.modules]
    members = [(parent, child, vars(parent)[child]) for parent, child in parents if child in vars(parent)]
    before = ours()
    for name in before:
        del sys.modules[name]
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in ours():
            del sys.modules[name]
        sys.modules.update(before)
        for parent, child in parents:
            vars(parent).pop(child, None)
        for parent, child, module in members:
            setattr(parent, child, module)
