"""record.py -- writes down the part of vLLM's interface that leanattn.vllm is written against, from a wheel.

    pip download vllm==0.33.0 --no-deps && python3 python/tests/vllm_contracts/record.py vllm-0.33.0-*.whl

It reads the wheel's Python as text, so that neither vLLM nor PyTorch need be installed, and writes signatures, fields and names, no code, to
VERSION.json beside itself. test_vllm_contract.py holds leanattn.vllm against these files. After a new release of vLLM: record it, read the
difference to the file before, write or name its module in leanattn.vllm.TRIED, and try it.
"""
import ast
import json
import pathlib
import sys
import zipfile

HERE = pathlib.Path(__file__).resolve().parent

# Module: its classes and functions that leanattn.vllm, or a class that it extends, takes its interface from.
NAMES = {
    "vllm.logger": ["init_logger"],
    "vllm.model_executor.layers.quantization.input_quant_fp8": ["QuantFP8"],
    "vllm.model_executor.layers.quantization.utils.quant_utils": ["GroupShape"],
    "vllm.plugins": ["DEFAULT_PLUGINS_GROUP"],
    "vllm.v1.attention.backend": ["AttentionBackend", "AttentionCGSupport", "AttentionImpl", "AttentionImplBase", "AttentionMetadataBuilder",
                                  "AttentionType", "CommonAttentionMetadata", "max_decode_query_len"],
    "vllm.v1.attention.backends.flash_attn": ["FlashAttentionBackend", "FlashAttentionImpl", "FlashAttentionMetadata",
                                              "FlashAttentionMetadataBuilder"],
    "vllm.v1.attention.backends.registry": ["AttentionBackendEnum", "register_backend"],
    "vllm.v1.attention.backends.utils": ["split_decodes_and_prefills"],
}
# How vLLM calls a backend: the arguments of these calls.
CALLS = {"vllm.model_executor.layers.attention.attention": ["impl_cls", "self.impl.forward", "attn_layer.impl.do_kv_cache_update",
                                                            "self.impl.process_weights_after_loading"],
         "vllm.v1.worker.utils": ["self.backend.get_builder_cls()", "builder_cls"]}
MEMBERS = {"AttentionBackendEnum": {"CUSTOM", "FLASH_ATTN", "FLASHINFER", "TRITON_ATTN"}}  # of many


def signature(function):
    """Parameters and the defaults of those that have one, as text, without annotations."""
    arguments = function.args
    for argument in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]:
        if argument is not None:
            argument.annotation = None
    return f"({ast.unparse(arguments)})"


def decorators(node):
    return [ast.unparse(decorator).split("(")[0] for decorator in node.decorator_list]


def class_of(node):
    made = {"bases": [ast.unparse(base).split("[")[0] for base in node.bases], "dataclass": "dataclass" in decorators(node), "methods": {},
            "attributes": {}}
    for item in node.body:
        if isinstance(item, ast.FunctionDef):
            made["methods"][item.name] = {"signature": signature(item), "decorators": decorators(item)}
        elif isinstance(item, ast.AnnAssign):
            made["attributes"][item.target.id] = None if item.value is None else ast.unparse(item.value)
        elif isinstance(item, ast.Assign):
            made["attributes"].update({target.id: ast.unparse(item.value) for target in item.targets if isinstance(target, ast.Name)})
    if node.name in MEMBERS:
        made["attributes"] = {name: value for name, value in made["attributes"].items() if name in MEMBERS[node.name]}
    return made


def module_of(text, names):
    made = {"classes": {}, "functions": {}, "constants": {}}
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef) and node.name in names:
            made["classes"][node.name] = class_of(node)
        elif isinstance(node, ast.FunctionDef) and node.name in names:
            made["functions"][node.name] = signature(node)
        elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) in names:
            made["constants"][node.targets[0].id] = ast.unparse(node.value)
    return made


def calls_in(text, names):
    found = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in names:
            arguments = [ast.unparse(argument) for argument in [*node.args, *node.keywords]]
            found.setdefault(ast.unparse(node.func), []).append(", ".join(arguments))
    return {name: sorted(set(arguments)) for name, arguments in sorted(found.items())}


def record(wheel):
    def text_of(module):
        path = module.replace(".", "/")
        return archive.read(path + "/__init__.py" if path + "/__init__.py" in files else path + ".py").decode()

    with zipfile.ZipFile(wheel) as archive:
        files = set(archive.namelist())
        metadata = archive.read(next(name for name in files if name.endswith(".dist-info/METADATA"))).decode().splitlines()
        header = {key: value for key, _, value in (line.partition(": ") for line in metadata) if key in ("Version", "Requires-Python")}
        torch = sorted(line.partition(": ")[2] for line in metadata if line.startswith("Requires-Dist: torch=="))
        return {"vllm": header["Version"], "python": header["Requires-Python"], "requires": torch,
                "modules": {module: module_of(text_of(module), names) for module, names in NAMES.items()},
                "calls": {module: calls_in(text_of(module), names) for module, names in CALLS.items()}}


def main():
    if len(sys.argv) < 2 or not all(name.endswith(".whl") for name in sys.argv[1:]):
        sys.exit(__doc__)
    for wheel in sys.argv[1:]:
        made = record(wheel)
        path = HERE / f"{made['vllm']}.json"
        path.write_text(json.dumps(made, indent=1, sort_keys=False) + "\n")
        print(f"{path}: {sum(len(module['classes']) + len(module['functions']) for module in made['modules'].values())} classes and functions")


if __name__ == "__main__":
    main()
