"""record_interface.py -- writes down the part of an inference engine's interface that leanattn's backend for it is written against, from a wheel.

    pip download vllm==0.33.0 --no-deps && python3 python/tests/record_interface.py vllm-0.33.0-*.whl

It reads the wheel's Python as text, so that neither the engine nor PyTorch need be installed, and writes signatures, fields and names, no code, to
ENGINE_contracts/VERSION.json beside itself. test_ENGINE_contract.py holds leanattn.ENGINE against these files. After a new release: record it, read
the difference to the file before, write or name its module in leanattn.ENGINE.TRIED, and try it.
"""
import ast
import dataclasses
import json
import pathlib
import sys
import zipfile

HERE = pathlib.Path(__file__).resolve().parent


@dataclasses.dataclass(frozen=True)
class Engine:
    names: dict  #: {module: its classes, functions and constants that the backend, or a class that it extends, takes its interface from}
    calls: dict  #: {module: how the engine calls a backend there, or what the backend calls in the same way}; the arguments of these calls
    members: dict  #: {class: those of its many attributes}
    instances: dict = dataclasses.field(default_factory=dict)  #: {module: {class: the attributes of an instance that the backend reads}}


CUDA_GRAPH_CALLS = [f"{backend}.{method}" for backend in ("attn_backend", "self.model_runner.attn_backend", "self.attn_backend")
                    for method in ("init_cuda_graph_state", "init_forward_metadata_capture_cuda_graph", "init_forward_metadata_replay_cuda_graph",
                                   "init_forward_metadata_out_graph")]

ENGINES = {
    "vllm": Engine(
        names={
            "vllm._custom_ops": ["reshape_and_cache_flash"],
            "vllm.config.compilation": ["CUDAGraphMode"],
            "vllm.config.vllm": ["get_current_vllm_config_or_none", "set_current_vllm_config"],
            "vllm.distributed.parallel_state": ["get_dcp_group"],
            "vllm.logger": ["init_logger"],
            "vllm.model_executor.layers.quantization.input_quant_fp8": ["QuantFP8"],
            "vllm.model_executor.layers.quantization.utils.quant_utils": ["GroupShape"],
            "vllm.model_executor.layers.mamba.ops.ssu_dispatch": ["selective_state_update"],
            "vllm.plugins": ["DEFAULT_PLUGINS_GROUP"],
            "vllm.third_party.flash_linear_attention.ops.fused_recurrent": ["fused_recurrent_gated_delta_rule_packed_decode"],
            "vllm.third_party.flash_linear_attention.ops.fused_sigmoid_gating": ["fused_sigmoid_gating_delta_rule_update"],
            "vllm.third_party.flash_linear_attention.ops.kda": ["fused_recurrent_kda"],
            "vllm.utils.torch_utils": ["np_to_pinned_tensor"],
            "vllm.v1.attention.backend": ["AttentionBackend", "AttentionCGSupport", "AttentionImpl", "AttentionImplBase", "AttentionMetadataBuilder",
                                          "AttentionType", "CommonAttentionMetadata", "MLAAttentionImpl", "MultipleOf", "max_decode_query_len"],
            "vllm.model_executor.layers.attention.mla_attention": [
                "MLACommonBackend", "MLACommonBaseImpl", "MLACommonDecodeMetadata", "MLACommonImpl", "MLACommonMetadata", "MLACommonMetadataBuilder",
                "QueryLenSupport"],
            "vllm.v1.attention.backends.flash_attn": ["FlashAttentionBackend", "FlashAttentionImpl", "FlashAttentionMetadata",
                                                      "FlashAttentionMetadataBuilder", "cp_lse_ag_out_rs", "dcp_a2a_lse_reduce"],
            "vllm.model_executor.layers.attention.sparse_mla_attention": ["SparseMLACommonImpl", "SparseMLACommonMetadataBuilder"],
            "vllm.v1.attention.backends.mla.prefill.base": ["MLADimensions", "MLAPrefillBackend"],
            "vllm.v1.attention.backends.mla.prefill.registry": ["MLAPrefillBackendEnum", "register_mla_prefill_backend"],
            "vllm.v1.attention.backends.mla.flashmla_sparse": ["FlashMLASparseBackend", "FlashMLASparseImpl", "FlashMLASparseMetadataBuilder"],
            "vllm.v1.attention.backends.registry": ["AttentionBackendEnum", "register_backend"],
            "vllm.v1.attention.backends.triton_attn": ["TritonAttentionBackend", "TritonAttentionImpl", "TritonAttentionMetadata",
                                                       "TritonAttentionMetadataBuilder"],
            "vllm.v1.attention.backends.utils": ["get_kv_cache_layout", "split_decodes_and_prefills"],
            "vllm.v1.attention.ops.common": ["cp_lse_ag_out_rs"],
            "vllm.v1.attention.ops.dcp": ["cp_lse_ag_out_rs", "dcp_a2a_lse_reduce"],
            "vllm.v1.attention.ops.dcp_alltoall": ["dcp_a2a_lse_reduce"],
            "vllm.v1.attention.ops.int4_per_token_head": ["single_rht"],
        },
        calls={"vllm.model_executor.layers.attention.attention": ["impl_cls", "self.impl.forward", "attn_layer.impl.do_kv_cache_update",
                                                                  "self.impl.process_weights_after_loading"],
               "vllm.model_executor.layers.attention.mla_attention": ["impl_cls", "self._build_decode", "self.impl.forward_mqa"],
               "vllm.model_executor.layers.mamba.gdn.kimi_gdn_linear_attn": ["causal_conv1d_update", "fused_recurrent_kda", "self._forward"],
               "vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn": ["fused_recurrent_gated_delta_rule_packed_decode",
                                                                             "fused_sigmoid_gating_delta_rule_update"],
               "vllm.model_executor.layers.mamba.mamba_mixer2": ["selective_state_update"],
               "vllm.v1.attention.backends.flash_attn": ["get_dcp_group().all_gather", "reshape_and_cache_flash", "self.dcp_combine"],
               "vllm.v1.attention.backends.mla.flashmla_sparse": ["self._fp8_flash_mla_kernel", "self._bf16_flash_mla_kernel"],
               "vllm.v1.worker.utils": ["self.backend.get_builder_cls()", "builder_cls"]},
        members={"AttentionBackendEnum": {"CUSTOM", "FLASH_ATTN", "FLASHINFER", "TRITON_ATTN"}, "MLAPrefillBackendEnum": {"CUSTOM", "FLASH_ATTN"}},
        instances={
            "vllm.model_executor.layers.attention.sparse_mla_attention": {
                "SparseMLACommonMetadataBuilder": ["dcp_world_size", "device", "topk_tokens", "vllm_config"]},
            "vllm.v1.attention.backends.mla.flashmla_sparse": {
                "FlashMLASparseImpl": ["softmax_scale"], "FlashMLASparseMetadataBuilder": ["topk_tokens_tensor"]},
            "vllm.model_executor.layers.attention.mla_attention": {
                "MLACommonBaseImpl": ["kv_cache_dtype", "kv_lora_rank", "num_heads", "qk_rope_head_dim"],
                "MLACommonMetadataBuilder": ["cp_kv_cache_interleave_size", "dcp_world_size", "device", "kv_cache_spec", "vllm_config"]},
            "vllm.v1.attention.backend": {
                "AttentionImplBase": ["dcp_world_size", "need_to_return_lse_for_decode", "pcp_world_size"],
                "AttentionMetadataBuilder": ["device", "kv_cache_spec", "vllm_config"]},
            "vllm.v1.attention.backends.flash_attn": {
                "FlashAttentionImpl": ["alibi_slopes", "dcp_combine", "sliding_window", "supports_quant_query_input"],
                "FlashAttentionMetadataBuilder": ["aot_schedule", "aot_sliding_window"]}}),
    "sglang": Engine(
        names={
            "sglang.srt.layers.attention.attention_registry": ["ATTENTION_BACKENDS", "register_attention_backend"],
            "sglang.srt.layers.attention.base_attn_backend": ["AttentionBackend"],
            "sglang.srt.layers.attention.flashattention_backend": ["FlashAttentionBackend", "FlashAttentionMetadata"],
            "sglang.srt.layers.radix_attention": ["AttentionType", "RadixAttention"],
            "sglang.srt.mem_cache.memory_pool": ["KVWriteLoc", "MHATokenToKVPool", "ReqToTokenPool"],
            "sglang.srt.model_executor.forward_batch_info": ["ForwardBatch", "ForwardMode"],
            "sglang.srt.plugins": ["GENERAL_PLUGINS_GROUP"],
            "sglang.srt.runtime_context": ["get_exec"],
            "sglang.srt.server_args": ["ATTENTION_BACKEND_CHOICES", "DETERMINISTIC_ATTENTION_BACKEND_CHOICES", "add_attention_backend_choices",
                                       "add_deterministic_attention_backend_choices"],
            "sglang.srt.arg_groups.choices": ["ATTENTION_BACKEND_CHOICES", "DETERMINISTIC_ATTENTION_BACKEND_CHOICES", "add_attention_backend_choices",
                                              "add_deterministic_attention_backend_choices"]},
        calls={"sglang.srt.layers.radix_attention": ["get_attn_backend().forward", "forward_batch.attn_backend.forward"],
               "sglang.srt.layers.attention.base_attn_backend": ["self.forward_decode", "self.forward_extend"],
               "sglang.srt.model_executor.cuda_graph_runner": CUDA_GRAPH_CALLS,
               "sglang.srt.model_executor.runner.decode_cuda_graph_runner": CUDA_GRAPH_CALLS},
        members={"ForwardMode": {"EXTEND", "DECODE", "MIXED", "IDLE", "TARGET_VERIFY"}},
        instances={
            "sglang.srt.layers.attention.flashattention_backend": {
                "FlashAttentionBackend": ["attn_cp_size", "device", "fa_skip_kv_cache", "forward_metadata", "kv_index_translator", "max_context_len",
                                          "page_size", "req_to_token", "speculative_num_draft_tokens", "topk", "use_sliding_window_kv_pool"]},
            "sglang.srt.layers.radix_attention": {
                "RadixAttention": ["attn_type", "head_dim", "is_cross_attention", "k_scale", "layer_id", "logit_cap", "logit_capping_method", "scaling",
                                   "sliding_window_size", "tp_k_head_num", "tp_q_head_num", "use_irope", "v_head_dim", "v_scale"]},
            "sglang.srt.model_executor.model_runner": {
                "ModelRunner": ["dtype", "gpu_id", "is_draft_worker", "kv_cache_dtype", "kv_cache_dtype_str", "model", "req_to_token_pool", "server_args",
                                "token_to_kv_pool", "use_mla_backend"]}}),
}


def signature(function):
    """Parameters and the defaults of those that have one, as text, without annotations."""
    arguments = function.args
    for argument in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]:
        if argument is not None:
            argument.annotation = None
    return f"({ast.unparse(arguments)})"


def decorators(node):
    return [ast.unparse(decorator).split("(")[0] for decorator in node.decorator_list]


def class_of(node, members):
    made = {"bases": [ast.unparse(base).split("[")[0] for base in node.bases], "dataclass": "dataclass" in decorators(node), "methods": {},
            "attributes": {}}
    for item in node.body:
        if isinstance(item, ast.FunctionDef):
            made["methods"][item.name] = {"signature": signature(item), "decorators": decorators(item)}
        elif isinstance(item, ast.AnnAssign):
            made["attributes"][item.target.id] = None if item.value is None else ast.unparse(item.value)
        elif isinstance(item, ast.Assign):
            made["attributes"].update({target.id: ast.unparse(item.value) for target in item.targets if isinstance(target, ast.Name)})
    if node.name in members:
        made["attributes"] = {name: value for name, value in made["attributes"].items() if name in members[node.name]}
    return made


def module_of(text, names, members):
    made = {"classes": {}, "functions": {}, "constants": {}}
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef) and node.name in names:
            made["classes"][node.name] = class_of(node, members)
        elif isinstance(node, ast.FunctionDef) and node.name in names:
            made["functions"][node.name] = signature(node)
        elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) in names:
            made["constants"][node.targets[0].id] = ast.unparse(node.value)
        elif isinstance(node, ast.ImportFrom) and (found := {alias.name: node.module for alias in node.names if alias.name in names}):
            made.setdefault("imports", {}).update(found)
    return made


def instances_of(text, names):
    """{class: which of the attributes its methods, or its annotations, give to an instance}."""
    found = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef) and node.name in names:
            given = {inner.attr for inner in ast.walk(node) if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store)
                     and ast.unparse(inner.value) == "self"}
            given |= {item.target.id for item in node.body if isinstance(item, ast.AnnAssign)} | {
                item.name for item in node.body if isinstance(item, ast.FunctionDef) and "property" in decorators(item)}
            found[node.name] = [name for name in names[node.name] if name in given]
    return found


def calls_in(text, names):
    found = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in names:
            arguments = [ast.unparse(argument) for argument in [*node.args, *node.keywords]]
            found.setdefault(ast.unparse(node.func), []).append(", ".join(arguments))
    return {name: sorted(set(arguments)) for name, arguments in sorted(found.items())}


def record(wheel):
    """The record of a wheel, and the engine's name. Modules that a version does not have are left out."""
    def text_of(module):
        path = module.replace(".", "/")
        found = [name for name in (path + "/__init__.py", path + ".py") if name in files]
        return archive.read(found[0]).decode() if found else None

    with zipfile.ZipFile(wheel) as archive:
        files = set(archive.namelist())
        metadata = archive.read(next(name for name in files if name.endswith(".dist-info/METADATA"))).decode().splitlines()
        header = {key: value for key, _, value in (line.partition(": ") for line in metadata) if key in ("Name", "Version", "Requires-Python")}
        torch = sorted(line.partition(": ")[2] for line in metadata if line.startswith("Requires-Dist: torch=="))
        name = header["Name"]
        if name not in ENGINES:
            sys.exit(f"{wheel} is {name}, and not one of {', '.join(ENGINES)}")
        engine = ENGINES[name]
        made = {name: header["Version"], "python": header["Requires-Python"], "requires": torch,
                "modules": {module: module_of(text, names, engine.members) for module, names in engine.names.items()
                            if (text := text_of(module)) is not None},
                "calls": {module: calls_in(text, names) for module, names in engine.calls.items() if (text := text_of(module)) is not None}}
        if engine.instances:
            made["instances"] = {name: attributes for module, names in engine.instances.items()
                                 for name, attributes in instances_of(text_of(module), names).items()}
        return name, made


def main():
    if len(sys.argv) < 2 or not all(name.endswith(".whl") for name in sys.argv[1:]):
        sys.exit(__doc__)
    for wheel in sys.argv[1:]:
        engine, made = record(wheel)
        path = HERE / f"{engine}_contracts" / f"{made[engine]}.json"
        path.write_text(json.dumps(made, indent=1, sort_keys=False) + "\n")
        print(f"{path}: {sum(len(module['classes']) + len(module['functions']) for module in made['modules'].values())} classes and functions")


if __name__ == "__main__":
    main()
