"""sglang_stand_in.py -- an SGLang that is not there: modules whose classes have the names, signatures and fields that sglang_contracts/VERSION.json
records, and a torch with the little that leanattn.sglang uses of it.

What does something is in BEHAVIOUR, with signatures of its own that test_sglang_contract.py holds against the records; every other method raises.
"""
import contextlib
import importlib
import pathlib
import sys
import types

import engine_stand_in
from engine_stand_in import Tensor, signature_of

CONTRACTS = pathlib.Path(__file__).resolve().parent / "sglang_contracts"
VERSIONS = sorted(path.stem for path in CONTRACTS.glob("*.json"))
FLASH = "sglang.srt.layers.attention.flashattention_backend"


def contract(version):
    return engine_stand_in.contract(CONTRACTS, version)


class Type(str):
    """An element type, by the name that fake_tensors.py has, which torch prints otherwise."""

    def __str__(self):
        return "torch." + {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2"}[self]


def _new(name):
    cls = sys.modules[FLASH].FlashAttentionMetadata
    made = cls()
    made.name = name
    return made


def _flash_init(self, model_runner, skip_prefill=False, speculative_step_id=0, topk=0, speculative_num_steps=0, fa_impl_ver=3):
    self.fa_impl_ver, self.forward_metadata, self.device = fa_impl_ver, None, "cuda"
    self.max_context_len, self.page_size = model_runner.model_config.context_len, model_runner.page_size
    self.req_to_token, self.token_to_kv_pool = model_runner.req_to_token_pool.req_to_token, model_runner.token_to_kv_pool
    self.use_sliding_window_kv_pool = model_runner.sliding_window_pool
    self.topk, self.speculative_num_draft_tokens = model_runner.topk, model_runner.draft_tokens
    self.attn_cp_size, self.fa_skip_kv_cache = model_runner.context_ranks, model_runner.without_cache
    self.kv_index_translator = types.SimpleNamespace(is_translating=model_runner.unified)
    self.seen, self.graphs = [], {}


def _metadata(self, requests, tokens):
    """As FlashAttention's of a step: for a tree without the draft tokens, else with them."""
    made, width = _new("step"), -(-self.max_context_len // self.page_size)
    made.cache_seqlens_int32, made.page_table = Tensor((requests,), "int32"), Tensor((requests, width), "int32")
    made.max_seq_len_q, made.cu_seqlens_q = tokens, Tensor((requests + 1,), "int32")
    if self.use_sliding_window_kv_pool:
        made.swa_page_table = Tensor((requests, width), "int32")
    return made


def _tokens_of(self, forward_mode):
    return self.speculative_num_draft_tokens if forward_mode.is_target_verify() else 1


def _flash_metadata(self, forward_batch):
    self.forward_metadata = _metadata(self, forward_batch.batch_size, _tokens_of(self, forward_batch.forward_mode))


def _flash_graph_state(self, max_bs, max_num_tokens):
    self.most_requests = max_bs


def _graph(self, requests, forward_mode, capture):
    key = requests, forward_mode
    if capture:
        self.graphs[key] = _metadata(self, requests, _tokens_of(self, forward_mode))
    self.forward_metadata = self.graphs[key]


def _flash_capture(self, bs, num_tokens, req_pool_indices, seq_lens, encoder_lens, forward_mode, spec_info):
    _graph(self, bs, forward_mode, True)


def _flash_replay(self, bs, req_pool_indices, seq_lens, seq_lens_sum, encoder_lens, forward_mode, spec_info, seq_lens_cpu, out_cache_loc=None):
    _graph(self, bs, forward_mode, False)


def _flash_out_graph(self, forward_batch, in_capture=False):
    _graph(self, forward_batch.batch_size, forward_batch.forward_mode, in_capture)


def _flash_forward(self, q, k, v, layer, forward_batch, save_kv_cache=True, **more):
    self.seen.append(types.SimpleNamespace(q=q, k=k, v=v, layer=layer, save_kv_cache=save_kv_cache, more=more))
    return "of FlashAttention"


def _flash_cache(self, layer, *, head_group_num=1):
    return tuple(cache.view(-1, self.page_size, *cache.shape[1:]) for cache in self.token_to_kv_pool.get_kv_buffer(layer.layer_id))


def _forward(self, q, k, v, layer, forward_batch, save_kv_cache=True, **kwargs):
    run = self.forward_decode if forward_batch.forward_mode.is_decode() else self.forward_extend
    return run(q, k, v, layer, forward_batch, save_kv_cache=save_kv_cache, **kwargs)


def _layer(self, num_heads, head_dim, scaling, num_kv_heads, layer_id, logit_cap=0.0, v_head_dim=-1, sliding_window_size=-1,
           is_cross_attention=False, *more, logit_capping_method="tanh", attn_type=None, use_irope=False, **others):
    self.tp_q_head_num, self.tp_k_head_num, self.head_dim, self.scaling, self.layer_id = num_heads, num_kv_heads, head_dim, scaling, layer_id
    self.tp_v_head_num, self.v_head_dim = num_kv_heads, head_dim if v_head_dim == -1 else v_head_dim
    self.logit_cap, self.sliding_window_size, self.is_cross_attention = logit_cap, sliding_window_size, is_cross_attention
    self.logit_capping_method, self.use_irope, self.k_scale, self.v_scale = logit_capping_method, use_irope, None, None
    self.attn_type = attn_type or sys.modules["sglang.srt.layers.radix_attention"].AttentionType.DECODER


def _set_kv(self, *given, **named):
    """Held against the signature of the version when it is called."""
    bound = signature_of(self.set_kv_signature).bind(self, *given, **named)
    self.written.append(dict(bound.arguments))


def _register(name):
    def add(function):
        sys.modules["sglang.srt.layers.attention.attention_registry"].ATTENTION_BACKENDS[name] = function
        return function

    return add


def _extend(choices):
    sys.modules["sglang.srt.server_args"].ATTENTION_BACKEND_CHOICES.extend(choices)


def _extend_deterministic(choices):
    sys.modules["sglang.srt.server_args"].DETERMINISTIC_ATTENTION_BACKEND_CHOICES.extend(choices)


deterministic = types.SimpleNamespace(enable_deterministic_inference=False)

BEHAVIOUR = {
    "AttentionBackend": {"forward": _forward},
    "FlashAttentionBackend": {
        "__init__": _flash_init, "init_forward_metadata": _flash_metadata, "init_cuda_graph_state": _flash_graph_state,
        "init_forward_metadata_capture_cuda_graph": _flash_capture, "init_forward_metadata_replay_cuda_graph": _flash_replay,
        "init_forward_metadata_out_graph": _flash_out_graph, "forward_decode": _flash_forward, "forward_extend": _flash_forward,
        "get_paged_mha_kv_cache": _flash_cache},
    "RadixAttention": {"__init__": _layer},
    "MHATokenToKVPool": {"get_kv_buffer": lambda self, layer_id: self.buffers[layer_id], "set_kv_buffer": _set_kv},
    "KVWriteLoc": {"for_layer": lambda cls, forward_batch, layer, *, swa_loc=None, full_loc=None: cls(forward_batch.out_cache_loc, swa_loc),
                   "__post_init__": lambda self: None},
    "ForwardMode": {"is_decode": lambda self: self.name == "DECODE", "is_target_verify": lambda self: self.name == "TARGET_VERIFY"},
    None: {"register_attention_backend": _register, "add_attention_backend_choices": _extend,
           "add_deterministic_attention_backend_choices": _extend_deterministic,
           "get_exec": lambda: types.SimpleNamespace(deterministic=deterministic)},
}


def _torch():
    made = types.ModuleType("torch")
    made.uint8, made.int32, made.int64, made.float32 = "uint8", "int32", "int64", Type("fp32")
    made.cuda = types.SimpleNamespace(get_device_capability=lambda: made.capability)
    made.capability = (9, 0)
    made.zeros = lambda shape, dtype, device: Tensor(shape, dtype)
    return made


@contextlib.contextmanager
def installed(version):
    """Puts the modules of a version in place, and leanattn's own, made with them, away afterwards. Yields leanattn.sglang's module of it."""
    recorded = contract(version)
    modules, known = engine_stand_in.modules_of(recorded, BEHAVIOUR)
    known["MHATokenToKVPool"].set_kv_signature = engine_stand_in.recorded_methods(recorded)["MHATokenToKVPool", "set_kv_buffer"]
    modules["sglang"].__version__, modules["torch"] = recorded["sglang"], _torch()
    deterministic.enable_deterministic_inference = False
    with engine_stand_in.in_place(modules, "sglang", "torch", "leanattn.sglang", "leanattn._serving"):
        own = importlib.import_module("leanattn.sglang")
        yield importlib.import_module(f"leanattn.sglang.{own.module_for(recorded['sglang'])}")
