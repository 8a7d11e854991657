"""vllm_stand_in.py -- a vLLM that is not there: modules whose classes have the names, signatures and fields that vllm_contracts/VERSION.json records.

What does something is in BEHAVIOUR, with signatures of its own that test_vllm_contract.py holds against the records; every other method raises.
Tensors are those of fake_tensors.py with what leanattn.vllm does to them.
"""
import abc
import ast
import contextlib
import copy
import dataclasses
import enum
import importlib
import json
import logging
import math
import pathlib
import sys
import types

from fake_tensors import FastTensor

CONTRACTS = pathlib.Path(__file__).resolve().parent / "vllm_contracts"
VERSIONS = sorted(path.stem for path in CONTRACTS.glob("*.json"))


def contract(version):
    return json.loads((CONTRACTS / f"{version}.json").read_text())


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
        shape, offset = list(self.shape), 0
        for dimension, part in enumerate(where):
            start, stop, step = part.indices(self.shape[dimension])
            assert step == 1
            shape[dimension], offset = max(stop - start, 0), offset + start * self.strides[dimension]
        return self._view(shape, self.strides, offset)

    def split(self, size, dim):
        assert dim == -1 and self.shape[-1] % size == 0
        return tuple(self._view((*self.shape[:-1], size), self.strides, begin) for begin in range(0, self.shape[-1], size))

    def permute(self, *order):
        return self._view([self.shape[i] for i in order], [self.strides[i] for i in order], 0)

    def view(self, shape):
        assert math.prod(shape) == self.numel()
        return self._view(shape, [math.prod(shape[i + 1:]) for i in range(len(shape))], 0)

    def reshape(self, *shape):
        return self.view(shape)

    def detach(self):
        return self

    contiguous = detach

    def float(self):
        Tensor.operations += 1
        return type(self)(self.shape, "fp32")

    def copy_(self, other):
        Tensor.operations += 1
        assert self.shape == other.shape
        self.copied = other
        return self

    def __sub__(self, _):
        Tensor.operations += 1
        return type(self)(self.shape, self.dtype)


def bytes_of(dtype):
    return {"bf16": 2, "fp16": 2, "fp32": 4, "int32": 4, "int64": 8, "uint8": 1, "fp8_e4m3": 1}[dtype]


def _flash_impl(self, num_heads, head_size, scale, num_kv_heads, alibi_slopes, sliding_window, kv_cache_dtype, logits_soft_cap=None,
                attn_type="decoder", kv_sharing_target_layer_name=None, sinks=None):
    self.num_heads, self.head_size, self.scale, self.num_kv_heads = num_heads, head_size, scale, num_kv_heads
    self.alibi_slopes = None if alibi_slopes is None else Tensor((len(alibi_slopes),), "fp32")
    self.sliding_window = (-1, -1) if sliding_window is None else (sliding_window - 1, 0)
    self.kv_cache_dtype, self.logits_soft_cap, self.attn_type, self.sinks = kv_cache_dtype, logits_soft_cap or 0, attn_type, sinks
    self.batch_invariant_enabled = sys.modules["vllm.envs"].VLLM_BATCH_INVARIANT
    self.supports_quant_query_input, self.seen = True, []


def _flash_forward(self, layer, query, key, value, kv_cache, attn_metadata, output, output_scale=None, output_block_scale=None):
    self.seen.append(types.SimpleNamespace(query=query, key=key, value=value, metadata=attn_metadata, output=output))
    return output


def _builder(self, kv_cache_spec, layer_names, vllm_config, device):
    self.kv_cache_spec, self.layer_names, self.vllm_config, self.device = kv_cache_spec, layer_names, vllm_config, device


def _flash_builder(self, kv_cache_spec, layer_names, vllm_config, device):
    super(sys.modules["vllm.v1.attention.backends.flash_attn"].FlashAttentionMetadataBuilder, self).__init__(
        kv_cache_spec, layer_names, vllm_config, device)
    self.dcp_world_size = vllm_config.parallel_config.decode_context_parallel_size


def _flash_build(self, common_prefix_len, common_attn_metadata, fast_build=False):
    common, cls = common_attn_metadata, sys.modules["vllm.v1.attention.backends.flash_attn"].FlashAttentionMetadata
    needed = {field.name: None for field in dataclasses.fields(cls) if field.default is dataclasses.MISSING}
    needed.update(num_actual_tokens=common.num_actual_tokens, max_query_len=common.max_query_len, query_start_loc=common.query_start_loc,
                  max_seq_len=common.max_seq_len, seq_lens=common.seq_lens, block_table=common.block_table_tensor, slot_mapping=common.slot_mapping)
    made = cls(**needed)
    made.scheduler_metadata = "of FlashAttention"
    return made


def _update_block_table(self, metadata, blk_table, slot_mapping):
    made = copy.copy(metadata)
    made.block_table, made.slot_mapping = blk_table, slot_mapping
    return made


def _update_draft(self, metadata):
    metadata.scheduler_metadata = "updated"


def _threshold(self, reorder_batch_threshold=1, supports_spec_as_decode=False, supports_dcp_with_varlen=False):
    assert supports_spec_as_decode
    self.reorder_batch_threshold = max(reorder_batch_threshold, _most_query_tokens(self.vllm_config))


def _most_query_tokens(vllm_config):
    return 1 + (vllm_config.speculative_config.num_speculative_tokens if vllm_config.speculative_config else 0)


def _split(common_attn_metadata, decode_threshold=1, require_uniform=False, treat_short_extends_as_decodes=True):
    starts = list(common_attn_metadata.query_start_loc_cpu)
    first = 0
    while first < common_attn_metadata.num_reqs and starts[first + 1] - starts[first] <= decode_threshold:
        first += 1
    return first, common_attn_metadata.num_reqs - first, starts[first], common_attn_metadata.num_actual_tokens - starts[first]


_overridden = {}


def _register_backend(backend, class_path=None, is_mamba=False):
    _overridden[backend] = class_path
    return lambda cls: cls


BEHAVIOUR = {
    "FlashAttentionImpl": {"__init__": _flash_impl, "forward": _flash_forward},
    "AttentionImplBase": {"process_weights_after_loading": lambda self, act_dtype: None, "get_impl_variants": lambda self: (self,)},
    "AttentionMetadataBuilder": {"__init__": _builder, "_init_reorder_batch_threshold": _threshold,
                                 "get_varlen_cudagraph_max_query_len": lambda cls, vllm_config, kv_cache_spec: None},
    "FlashAttentionMetadataBuilder": {"__init__": _flash_builder, "build": _flash_build, "update_block_table": _update_block_table,
                                      "update_draft_decode_metadata": _update_draft,
                                      "get_cudagraph_support": lambda cls, vllm_config, kv_cache_spec: cls._cudagraph_support},
    "FlashAttentionBackend": {"supports_head_size": lambda cls, head_size: head_size % 8 == 0,
                              "supports_combination": lambda cls, head_size, dtype, kv_cache_dtype, block_size, use_mla, has_sink, use_sparse,
                              use_mm_prefix, device_capability: None},
    "CommonAttentionMetadata": {"replace": lambda self, **kwargs: dataclasses.replace(self, **kwargs)},
    "AttentionBackendEnum": {"is_overridden": lambda self: self in _overridden,
                             "get_path": lambda self, include_classname=True: _overridden[self]},
    "QuantFP8": {"__init__": lambda self, static, group_shape, *rest, **more: setattr(self, "group_shape", group_shape)},
    None: {"split_decodes_and_prefills": _split, "register_backend": _register_backend, "max_decode_query_len": _most_query_tokens,
           "init_logger": logging.getLogger},
}


class _Quantiser:
    """What CustomOp makes of a module: a call returns the quantised tensor and its scale."""

    def __call__(self, tensor, scale):
        assert len(tensor.shape) == 2
        return Tensor(tensor.shape, "fp8_e4m3"), scale


class _Shape(tuple):
    def __new__(cls, *sizes):
        return super().__new__(cls, sizes)


_BASES = {"ABC": abc.ABC, "Enum": enum.Enum, "str": str, "CustomOp": _Quantiser, "_GroupShape": _Shape}


def _literal(text):
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return None


def _method(name, of, recorded):
    behaviour = BEHAVIOUR.get(of, {}).get(name)

    def missing(*_, **__):
        raise NotImplementedError(f"{of}.{name} of the stand-in")

    made = behaviour or missing
    for decorator in reversed(recorded["decorators"]):
        made = {"staticmethod": staticmethod, "classmethod": classmethod, "property": property, "abstractmethod": abc.abstractmethod}.get(
            decorator, lambda function: function)(made)
    return made


def _class(name, recorded, known):
    bases = tuple(known.get(base, _BASES.get(base)) for base in recorded["bases"] if base in known or base in _BASES)
    methods = {method: _method(method, name, what) for method, what in recorded["methods"].items() if method != "__new__"}
    values = {attribute: None if text is None else _literal(text) for attribute, text in recorded["attributes"].items()}
    if enum.Enum in bases:
        made = enum.Enum(name, {member: value or member for member, value in values.items()}, **({"type": str} if str in bases else {}))
        for method, function in methods.items():
            setattr(made, method, function)
        return made
    if recorded["dataclass"]:
        fields = [(field, object, dataclasses.MISSING if text is None else _literal(text)) for field, text in recorded["attributes"].items()]
        return dataclasses.make_dataclass(name, [(field, kind) if default is dataclasses.MISSING else (field, kind, default)
                                                 for field, kind, default in fields], namespace=methods)
    return types.new_class(name, bases, {}, lambda namespace: namespace.update({**values, **methods}))


@contextlib.contextmanager
def installed(version):
    """Puts the modules of a version in place, and leanattn's own, made with them, away afterwards. Yields leanattn.vllm's module of it."""
    recorded = contract(version)
    modules = {"vllm": types.ModuleType("vllm"), "vllm.envs": types.ModuleType("vllm.envs")}
    modules["vllm"].__version__ = recorded["vllm"]
    modules["vllm.envs"].VLLM_BATCH_INVARIANT = False
    modules["vllm"].envs = modules["vllm.envs"]
    known = {}
    for path, content in recorded["modules"].items():
        parts = path.split(".")
        for depth in range(1, len(parts) + 1):
            modules.setdefault(".".join(parts[:depth]), types.ModuleType(".".join(parts[:depth])))
        for name, what in content["classes"].items():
            known[name] = _class(name, what, known)
        for name in [*content["classes"], *content["functions"]]:
            setattr(modules[path], name, known[name] if name in known else BEHAVIOUR[None][name])
        for name, text in content["constants"].items():
            setattr(modules[path], name, _literal(text))
    support, builders = known["AttentionCGSupport"], known["FlashAttentionMetadataBuilder"]
    builders._cudagraph_support = support.ALWAYS
    before = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "vllm" or name.startswith("leanattn.vllm")}
    for name in before:
        del sys.modules[name]
    sys.modules.update(modules)
    _overridden.clear()
    try:
        own = importlib.import_module("leanattn.vllm")
        yield importlib.import_module(f"leanattn.vllm.{own.module_for(recorded['vllm'])}")
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "vllm" or name.startswith("leanattn.vllm")]:
            del sys.modules[name]
        sys.modules.update(before)
