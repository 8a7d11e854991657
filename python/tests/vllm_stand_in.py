"""vllm_stand_in.py -- a vLLM that is not there: modules whose classes have the names, signatures and fields that vllm_contracts/VERSION.json records.

What does something is in BEHAVIOUR, with signatures of its own that test_vllm_contract.py holds against the records; every other method raises.
"""
import contextlib
import copy
import dataclasses
import importlib
import itertools
import logging
import pathlib
import sys
import types

import engine_stand_in
from engine_stand_in import Tensor

CONTRACTS = pathlib.Path(__file__).resolve().parent / "vllm_contracts"
VERSIONS = sorted(path.stem for path in CONTRACTS.glob("*.json"))


def contract(version):
    return engine_stand_in.contract(CONTRACTS, version)


def _flash_impl(self, num_heads, head_size, scale, num_kv_heads, alibi_slopes, sliding_window, kv_cache_dtype, logits_soft_cap=None,
                attn_type="decoder", kv_sharing_target_layer_name=None, sinks=None):
    self.num_heads, self.head_size, self.scale, self.num_kv_heads = num_heads, head_size, scale, num_kv_heads
    self.alibi_slopes = None if alibi_slopes is None else Tensor((len(alibi_slopes),), "fp32")
    self.sliding_window = (-1, -1) if sliding_window is None else (sliding_window - 1, 0)
    self.kv_cache_dtype, self.logits_soft_cap, self.attn_type, self.sinks = kv_cache_dtype, logits_soft_cap or 0, attn_type, sinks
    self.batch_invariant_enabled = sys.modules["vllm.envs"].VLLM_BATCH_INVARIANT
    self.supports_quant_query_input, self.seen = True, []
    self.dcp_combine = _combine


def _impl_of_a_rank(cls, *args, **kwargs):
    """AttentionImplBase.__new__, which sets the sizes of the groups of ranks."""
    made = object.__new__(cls)
    made.dcp_world_size, made.pcp_world_size = group.world_size, group.prefill_ranks
    made.need_to_return_lse_for_decode = made.dcp_world_size > 1 and made.can_return_lse_for_decode
    return made


def _flash_forward(self, layer, query, key, value, kv_cache, attn_metadata, output, output_scale=None, output_block_scale=None):
    self.seen.append(types.SimpleNamespace(query=query, key=key, value=value, metadata=attn_metadata, output=output))
    return output


def _update_cache(key, value, key_cache, value_cache, slot_mapping, kv_cache_dtype, k_scale, v_scale):
    """vLLM's own operation. It notes what it was given."""
    cached.append(types.SimpleNamespace(**locals()))


cached = []


class Platform:
    """The GPU that vLLM finds, of compute capability 9.0 unless a test says otherwise."""

    family = 90

    def is_device_capability_family(self, capability):
        return capability == self.family


def _builder(self, kv_cache_spec, layer_names, vllm_config, device):
    self.kv_cache_spec, self.layer_names, self.vllm_config, self.device = kv_cache_spec, layer_names, vllm_config, device


def _flash_builder(self, kv_cache_spec, layer_names, vllm_config, device):
    super(sys.modules["vllm.v1.attention.backends.flash_attn"].FlashAttentionMetadataBuilder, self).__init__(
        kv_cache_spec, layer_names, vllm_config, device)
    self.aot_schedule, self.aot_sliding_window = True, None


def _triton_impl(self, *given, **named):
    self.seen, self.updated = [], []


def _update_inline(self, layer, key, value, kv_cache, slot_mapping):
    self.updated.append(types.SimpleNamespace(key=key, value=value, kv_cache=kv_cache, slot_mapping=slot_mapping))


def _inline_shape(num_blocks, block_size, num_kv_heads, head_size, cache_dtype_str="auto"):
    return "of Triton", num_blocks, block_size, num_kv_heads, head_size, cache_dtype_str


def _triton_builder(self, kv_cache_spec, layer_names, vllm_config, device):
    _builder(self, kv_cache_spec, layer_names, vllm_config, device)


def _triton_build(self, common_prefix_len, common_attn_metadata, fast_build=False):
    return types.SimpleNamespace(num_actual_tokens=common_attn_metadata.num_actual_tokens, of="Triton")


def _rotate(x, inverse=False):
    """vLLM's own operation. It notes what it was given, and what came of it."""
    rotated.append(types.SimpleNamespace(given=x, inverse=inverse, made=Tensor(x.shape, x.dtype)))
    return rotated[-1].made


rotated = []


def _builder_of_a_rank(builder):
    builder.dcp_world_size = group.world_size
    builder.cp_kv_cache_interleave_size = builder.vllm_config.parallel_config.cp_kv_cache_interleave_size


def _flash_build(self, common_prefix_len, common_attn_metadata, fast_build=False):
    common, cls = common_attn_metadata, sys.modules["vllm.v1.attention.backends.flash_attn"].FlashAttentionMetadata
    needed = {field.name: None for field in dataclasses.fields(cls) if field.default is dataclasses.MISSING}
    needed.update(num_actual_tokens=common.num_actual_tokens, max_query_len=common.max_query_len, query_start_loc=common.query_start_loc,
                  max_seq_len=common.max_seq_len, seq_lens=common.seq_lens, block_table=common.block_table_tensor, slot_mapping=common.slot_mapping)
    made = cls(**needed)
    made.scheduler_metadata = "of FlashAttention"
    return made


def _latent_impl(self, num_heads, head_size, scale, num_kv_heads, alibi_slopes, sliding_window, kv_cache_dtype, logits_soft_cap, attn_type,
                 kv_sharing_target_layer_name, q_lora_rank, kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, qk_head_dim, v_head_dim, kv_b_proj,
                 indexer=None, q_pad_num_heads=None):
    self.num_heads, self.scale, self.kv_cache_dtype = num_heads, scale, kv_cache_dtype
    self.kv_lora_rank, self.qk_rope_head_dim, self.supports_quant_query_input = kv_lora_rank, qk_rope_head_dim, True
    self.dcp_world_size = -1  # vLLM's own forgets what __new__ found, until the first step


def _latent_builder(self, kv_cache_spec, layer_names, vllm_config, device, metadata_cls=None, supports_dcp_with_varlen=False):
    _builder(self, kv_cache_spec, layer_names, vllm_config, device)
    _builder_of_a_rank(self)
    _threshold(self, supports_spec_as_decode=True, supports_dcp_with_varlen=supports_dcp_with_varlen)


def _latent_build(self, common_prefix_len, common_attn_metadata, fast_build=False):
    common = common_attn_metadata
    decodes, prefills, tokens, _ = _split(common, self.reorder_batch_threshold)
    lengths, whole = (common.seq_lens, None) if self.dcp_world_size == 1 else (common.dcp_local_seq_lens, common.seq_lens[:decodes])
    given = {"block_table_tensor": common.block_table_tensor[:decodes], "seq_lens_device": lengths[:decodes],
             "max_seq_len": common.max_seq_len, "query_start_loc_cpu": HostNumbers(common.query_start_loc_cpu[:decodes + 1]),
             "query_start_loc_device": common.query_start_loc[:decodes + 1], "num_decode_tokens": tokens,
             "max_query_len": min(common.max_query_len, self.reorder_batch_threshold), "dcp_tot_seq_lens_device": whole}
    wanted = engine_stand_in.inspect.signature(self._build_decode).parameters
    decode = self._build_decode(**{name: value for name, value in given.items() if name in wanted}) if decodes else None
    cls = sys.modules["vllm.model_executor.layers.attention.mla_attention"].MLACommonMetadata
    return cls(num_reqs=common.num_reqs, max_query_len=common.max_query_len, max_seq_len=common.max_seq_len,
               num_actual_tokens=common.num_actual_tokens, query_start_loc=common.query_start_loc, slot_mapping=common.slot_mapping,
               num_decodes=decodes, num_decode_tokens=tokens, num_prefills=prefills, decode=decode, prefill=_prefill_of_step(common, decodes))


def _prefill_of_step(common, decodes):
    """What vLLM 0.26 has of prefill: it takes the tokens of as many first requests as have a context for those that have one."""
    starts, lengths = list(common.query_start_loc_cpu)[decodes:], (common.seq_lens_cpu_upper_bound or [])[decodes:]
    if len(starts) < 2:
        return None
    with_context = sum(length > end - begin for length, (begin, end) in zip(lengths, itertools.pairwise(starts)))
    chunked = types.SimpleNamespace(prefill_tokens_with_context=starts[with_context] - starts[0]) if with_context else None
    return types.SimpleNamespace(chunked_context=chunked)


def _selected_impl(self, num_heads, head_size, scale, num_kv_heads, alibi_slopes, sliding_window, kv_cache_dtype, logits_soft_cap, attn_type,
                   kv_sharing_target_layer_name, topk_indices_buffer=None, indexer=None, **mla_args):
    self.num_heads, self.softmax_scale, self.kv_cache_dtype = num_heads, scale, kv_cache_dtype
    self.kv_lora_rank, self.qk_rope_head_dim, self.seen = mla_args["kv_lora_rank"], mla_args["qk_rope_head_dim"], []


def _flash_mla(self, *given, **named):
    """Either of FlashMLA's kernels. It notes what it was given."""
    self.seen.append((given, named))
    return "of FlashMLA"


def _selected_builder(self, kv_cache_spec, layer_names, vllm_config, device):
    _builder(self, kv_cache_spec, layer_names, vllm_config, device)
    _builder_of_a_rank(self)
    self.topk_tokens = vllm_config.model_config.hf_config.index_topk
    self.topk_tokens_tensor = Tensor((vllm_config.scheduler_config.max_num_seqs,), "int32")
    self.use_hisparse = getattr(vllm_config, "hisparse", False)


class HostNumbers(list):
    """A tensor in host memory, as far as the builder of latent attention uses one."""

    def __getitem__(self, part):
        return HostNumbers(super().__getitem__(part))

    def sub(self, others):
        return HostNumbers(one - other for one, other in zip(self, others, strict=True))

    def max(self):
        return max(self)


def _update_block_table(self, metadata, blk_table, slot_mapping):
    made = copy.copy(metadata)
    made.block_table, made.slot_mapping = blk_table, slot_mapping
    return made


def _update_draft(self, metadata):
    metadata.scheduler_metadata = "updated"


def _threshold(self, reorder_batch_threshold=1, supports_spec_as_decode=False, supports_dcp_with_varlen=False):
    assert supports_spec_as_decode
    self.reorder_batch_threshold = max(reorder_batch_threshold, _most_query_tokens(self.vllm_config))
    if self.vllm_config.parallel_config.decode_context_parallel_size > 1 and not supports_dcp_with_varlen:
        self.reorder_batch_threshold = 1


def _most_query_tokens(vllm_config):
    return 1 + (vllm_config.speculative_config.num_speculative_tokens if vllm_config.speculative_config else 0)


def _split(common_attn_metadata, decode_threshold=1, require_uniform=False, treat_short_extends_as_decodes=True):
    starts = list(common_attn_metadata.query_start_loc_cpu)
    first = 0
    while first < common_attn_metadata.num_reqs and starts[first + 1] - starts[first] <= decode_threshold:
        first += 1
    return first, common_attn_metadata.num_reqs - first, starts[first], common_attn_metadata.num_actual_tokens - starts[first]


class Group:
    """One of the ranks of decode context parallelism. It notes what was gathered from all, and what was combined."""

    def __init__(self):
        self.world_size, self.prefill_ranks, self.gathered, self.combined = 1, 1, [], []

    def all_gather(self, tensor, dim):
        assert dim == 1 and tensor.is_contiguous(), "ranks exchange memory without gaps"
        tokens, heads, *rest = tensor.shape
        self.gathered.append((tensor, Tensor((tokens, heads * self.world_size, *rest), tensor.dtype)))
        return self.gathered[-1][1]


group = Group()


def _combine(part, lse, group, *ways, **named_ways):
    tokens, heads, *rest = part.shape
    made = Tensor((tokens, heads // group.world_size, *rest), part.dtype)
    group.combined.append(types.SimpleNamespace(part=part, lse=lse, result=made, ways=ways, named_ways=named_ways))
    return made


@contextlib.contextmanager
def _current_config(vllm_config, check_compile=False, prefix=None):
    yield


_overridden = {}


def _register_backend(backend, class_path=None, is_mamba=False):
    _overridden[backend] = class_path
    return lambda cls: cls


def _register_prefill(backend, class_path=None):
    _overridden[backend] = class_path
    return lambda cls: cls


def _prefill(self, num_heads, scale, kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim, vllm_config):
    self.given = {name: value for name, value in locals().items() if name != "self"}
    vars(self).update(self.given)


def _prepare_prefill(self, prefill_metadata):
    self._prefill_metadata = prefill_metadata


_REGISTRY = {"is_overridden": lambda self: self in _overridden, "get_path": lambda self: _overridden[self]}


BEHAVIOUR = {
    "FlashAttentionImpl": {"__init__": _flash_impl, "forward": _flash_forward},
    "AttentionImplBase": {"process_weights_after_loading": lambda self, act_dtype: None, "get_impl_variants": lambda self: (self,)},
    "AttentionMetadataBuilder": {"__init__": _builder, "_init_reorder_batch_threshold": _threshold,
                                 "use_cascade_attention": lambda self, *args, **kwargs: False,
                                 "get_varlen_cudagraph_max_query_len": lambda cls, vllm_config, kv_cache_spec: None},
    "FlashAttentionMetadataBuilder": {"__init__": _flash_builder, "build": _flash_build, "update_block_table": _update_block_table,
                                      "update_draft_decode_metadata": _update_draft,
                                      "get_cudagraph_support": lambda cls, vllm_config, kv_cache_spec: cls._cudagraph_support},
    "TritonAttentionImpl": {"__init__": _triton_impl, "forward": _flash_forward, "do_kv_cache_update": _update_inline},
    "TritonAttentionMetadataBuilder": {"__init__": _triton_builder, "build": _triton_build},
    "TritonAttentionBackend": {"customize_spec": lambda cls, spec: ("of Triton", spec), "get_kv_cache_shape": _inline_shape},
    "AttentionBackend": {"customize_spec": lambda cls, spec: spec,
                         "supports_combination": lambda cls, head_size, dtype, kv_cache_dtype, block_size, use_mla, has_sink, use_sparse,
                         use_mm_prefix, device_capability: "of Triton",
                         "supports_kv_cache_dtype": lambda cls, kv_cache_dtype: kv_cache_dtype in (None, *cls.supported_kv_cache_dtypes)},
    "FlashAttentionBackend": {"supports_head_size": lambda cls, head_size: head_size % 8 == 0,
                              "supports_kv_cache_dtype": lambda cls, kv_cache_dtype: "of FlashAttention",
                              "supports_combination": lambda cls, head_size, dtype, kv_cache_dtype, block_size, use_mla, has_sink, use_sparse,
                              use_mm_prefix, device_capability: "of FlashAttention",
                              **{name: lambda cls: "of FlashAttention" for name in ("supports_sink", "supports_mm_prefix",
                                                                                   "supports_per_head_quant_scales")}},
    "MultipleOf": {"__init__": lambda self, base: setattr(self, "base", base)},
    "CommonAttentionMetadata": {"replace": lambda self, **kwargs: dataclasses.replace(self, **kwargs)},
    "MLACommonBackend": {"is_mla": lambda cls: True},
    "MLACommonImpl": {"__init__": _latent_impl},
    "MLACommonMetadataBuilder": {"__init__": _latent_builder, "build": _latent_build},
    "FlashMLASparseImpl": {"__init__": _selected_impl, "_fp8_flash_mla_kernel": _flash_mla, "_bf16_flash_mla_kernel": _flash_mla},
    "FlashMLASparseMetadataBuilder": {"__init__": _selected_builder},
    "MLACommonMetadata": {"__post_init__": lambda self: None},
    "AttentionBackendEnum": {"is_overridden": lambda self: self in _overridden,
                             "get_path": lambda self, include_classname=True: _overridden[self]},
    "MLAPrefillBackendEnum": _REGISTRY,
    "MLAPrefillBackend": {"__init__": _prefill, "clone": lambda self: type(self)(**self.given), "prepare_metadata": _prepare_prefill,
                          "supports_out": lambda self: False},
    "QuantFP8": {"__init__": lambda self, static, group_shape, *rest, **more: setattr(self, "group_shape", group_shape)},
    None: {"split_decodes_and_prefills": _split, "register_backend": _register_backend, "max_decode_query_len": _most_query_tokens,
           "init_logger": logging.getLogger, "get_dcp_group": lambda: group, "cp_lse_ag_out_rs": _combine, "dcp_a2a_lse_reduce": _combine,
           "get_current_vllm_config_or_none": lambda: None, "set_current_vllm_config": _current_config, "get_kv_cache_layout": lambda: "NHD",
           "reshape_and_cache_flash": _update_cache,
           "single_rht": _rotate, "register_mla_prefill_backend": _register_prefill,
           "np_to_pinned_tensor": lambda array: array},
}


class _Quantiser:
    """What CustomOp makes of a module: a call returns the quantised tensor and its scale."""

    def __call__(self, tensor, scale):
        assert len(tensor.shape) == 2
        return Tensor(tensor.shape, "fp8_e4m3"), scale


class _Shape(tuple):
    def __new__(cls, *sizes):
        return super().__new__(cls, sizes)


_ROOTS = {**engine_stand_in.BASES, "CustomOp": _Quantiser, "_GroupShape": _Shape}


@contextlib.contextmanager
def installed(version, without=()):
    """Puts the modules of a version in place, and leanattn's own, made with them, away afterwards. Yields leanattn.vllm's module of it. Modules
    `without` which vLLM is cannot be imported."""
    recorded = contract(version)
    modules, known = engine_stand_in.modules_of(recorded, BEHAVIOUR, _ROOTS)
    modules["vllm.platforms"] = modules["vllm"].platforms = types.ModuleType("vllm.platforms")
    modules["vllm.platforms"].current_platform = Platform()
    modules["vllm.envs"] = modules["vllm"].envs = types.ModuleType("vllm.envs")
    modules["vllm"].__version__, modules["vllm.envs"].VLLM_BATCH_INVARIANT = recorded["vllm"], False
    known["AttentionImplBase"].__new__ = _impl_of_a_rank
    known["FlashAttentionMetadataBuilder"]._cudagraph_support = known["AttentionCGSupport"].ALWAYS
    _overridden.clear()
    cached.clear()
    rotated.clear()
    group.__init__()
    for name in without:
        del modules[name]
    with engine_stand_in.in_place(modules, "vllm", "leanattn.vllm", "leanattn._serving"):
        own = importlib.import_module("leanattn.vllm")
        yield importlib.import_module(f"leanattn.vllm.{own.module_for(recorded['vllm'])}")
