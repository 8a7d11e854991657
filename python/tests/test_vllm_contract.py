"""leanattn.vllm against the recorded interface of every version of vLLM that it is written for. Neither vLLM nor PyTorch need be installed."""
import ast
import inspect
import logging
import pathlib
import re
import subprocess
import sys
import types

import pytest
import engine_stand_in
import record_interface
import vllm_stand_in as stand_in
from engine_stand_in import parameters, takes_anything

FLASH = "vllm.v1.attention.backends.flash_attn"
FLASH_MLA = "vllm.v1.attention.backends.mla.flashmla_sparse"
SOURCE = pathlib.Path(__file__).resolve().parents[2]
LAYERS = "vllm.model_executor.layers.mamba"
KERNELS = "vllm.third_party.flash_linear_attention.ops"
# Of layers with a recurrent state: vLLM's function and its module, where a layer calls it, and what leanattn.vllm.recurrent has in its place.
ROW_FUNCTIONS = [("fused_recurrent_gated_delta_rule_packed_decode", f"{KERNELS}.fused_recurrent", f"{LAYERS}.gdn.qwen_gdn_linear_attn", "_packed_delta_rule"),
                 ("fused_sigmoid_gating_delta_rule_update", f"{KERNELS}.fused_sigmoid_gating", f"{LAYERS}.gdn.qwen_gdn_linear_attn", "_delta_rule"),
                 ("fused_recurrent_kda", f"{KERNELS}.kda", f"{LAYERS}.gdn.kimi_gdn_linear_attn", "_delta_attention"),
                 ("selective_state_update", f"{LAYERS}.ops.ssu_dispatch", f"{LAYERS}.mamba_mixer2", "_state_space")]


@pytest.fixture(params=stand_in.VERSIONS)
def version(request):
    return request.param


@pytest.fixture
def adapter(version):
    with stand_in.installed(version) as module:
        yield module


def backends(adapter):
    """The one for caches of keys and values, that for latent caches, and that for latent caches of which tokens are selected."""
    return adapter.Backend, adapter.LatentBackend, adapter.SelectedBackend


def classes(backend):
    return backend, backend.get_impl_cls(), backend.get_builder_cls()


def all_classes(adapter):
    return [*(cls for backend in backends(adapter) for cls in classes(backend)), adapter.LatentPrefill]


def recorded_methods(version):
    return engine_stand_in.recorded_methods(stand_in.contract(version))


def test_every_tried_version_is_recorded_and_no_other():
    import leanattn.vllm

    assert sorted(leanattn.vllm.TRIED) == sorted({recorded.rpartition(".")[0] for recorded in stand_in.VERSIONS})


def test_no_abstract_method_is_left(adapter):
    for cls in all_classes(adapter):
        assert not getattr(cls, "__abstractmethods__", ()), cls


def test_the_backend_has_the_name_of_a_member(adapter):
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    for backend in (*backends(adapter), adapter.LatentPrefill):
        assert backend.get_name() in AttentionBackendEnum.__members__


def test_what_vllm_imports_by_path_is_there(adapter):
    """It notes a backend as module and name of the class, and workers import that again."""
    for cls in backends(adapter):
        assert getattr(sys.modules[cls.__module__], cls.__qualname__) is cls


def test_methods_that_replace_one_have_its_signature(adapter, version):
    recorded = recorded_methods(version)
    checked = 0
    for cls in all_classes(adapter):
        own = [base for base in cls.__mro__ if base.__module__.startswith("leanattn.")]
        others = [base.__name__ for base in cls.__mro__ if base not in own]
        for base in own:
            for name, member in vars(base).items():
                function = getattr(member, "__func__", member)
                # What vLLM gives to an implementation beyond what all have is what FlashAttention's takes, to which leanattn passes it on.
                other_first = ["FlashAttentionImpl", *others] if (base.__name__, name) == ("Implementation", "__init__") else others
                found = next((recorded[other, name] for other in other_first if (other, name) in recorded), None)
                if found is None or not inspect.isfunction(function) or takes_anything(function):
                    continue
                assert parameters(function) == parameters(found), f"{base.__name__}.{name} of {version}"
                checked += 1
    assert checked >= 14


def test_public_methods_that_replace_nothing_are_our_own(adapter, version):
    """A method that vLLM has renamed would go on to exist here, and never be called."""
    recorded = {method for _, method in recorded_methods(version)}
    ours = {"options"}
    for cls in all_classes(adapter):
        for base in cls.__mro__:
            if base.__module__.startswith("leanattn."):
                public = {name for name, member in vars(base).items() if not name.startswith("_") and callable(getattr(member, "__func__", member))}
                assert public <= recorded | ours, f"{base.__name__} of {version}"


def test_the_calls_of_vllms_layers_are_taken(adapter, version):
    """The arguments are those of the recorded calls; only how many and under which names."""
    (implementation, builder), (latent, latent_builder), (selected, _) = (
        (backend.get_impl_cls(), backend.get_builder_cls()) for backend in backends(adapter))
    layers, workers = "vllm.model_executor.layers.attention", "vllm.v1.worker.utils"
    found = {(f"{layers}.attention", "impl_cls"): implementation, (f"{layers}.attention", "self.impl.forward"): implementation.forward,
             (f"{layers}.attention", "attn_layer.impl.do_kv_cache_update"): implementation.do_kv_cache_update,
             (f"{layers}.attention", "self.impl.process_weights_after_loading"): implementation.process_weights_after_loading,
             (f"{layers}.mla_attention", "impl_cls"): latent, (f"{layers}.mla_attention", "self.impl.forward_mqa"): latent.forward_mqa,
             (f"{layers}.mla_attention", "self._build_decode"): latent_builder._build_decode,
             (workers, "self.backend.get_builder_cls()"): builder, (workers, "builder_cls"): builder,
             **{(FLASH_MLA, f"self.{name}"): getattr(selected, name) for name in ("_fp8_flash_mla_kernel", "_bf16_flash_mla_kernel")},
             (FLASH, "get_dcp_group().all_gather"): None, (FLASH, "self.dcp_combine"): None, (FLASH, "reshape_and_cache_flash"): None}
    calls = {(module, name): texts for module, of_module in stand_in.contract(version)["calls"].items() for name, texts in of_module.items()
             if not module.startswith(LAYERS)}
    assert set(calls) <= set(found) and len(calls) >= 8
    for name, texts in calls.items():
        if found[name] is None:  # FlashAttention's own, and what leanattn calls as it does
            continue
        for text in texts:
            call = ast.parse(f"f({text})", mode="eval").body
            given = [object() for _ in call.args]
            named = {keyword.arg: object() for keyword in call.keywords if keyword.arg is not None}
            own = [] if inspect.isclass(found[name]) else [object()]
            inspect.signature(found[name]).bind(*own, *given, **named)


def functions_of_recurrent():
    """{name: signature} of the functions and methods of leanattn.vllm.recurrent, which imports PyTorch and is read as text."""
    tree = ast.parse((SOURCE / "python/leanattn/vllm/recurrent.py").read_text())
    found = {}
    for node in ast.walk(tree):
        for inner in getattr(node, "body", []) if isinstance(node, (ast.Module, ast.ClassDef)) else []:
            if isinstance(inner, ast.FunctionDef):
                name = f"{node.name}.{inner.name}" if isinstance(node, ast.ClassDef) else inner.name
                found[name] = engine_stand_in.signature_of(record_interface.signature(inner))
    return found


def bind(signature, text, *first):
    """Binds a recorded call; only how many arguments, and under which names."""
    call = ast.parse(f"f({text})", mode="eval").body
    signature.bind(*first, *(object() for _ in call.args), **{keyword.arg: object() for keyword in call.keywords})


def test_functions_for_decode_rows_take_what_layers_give(version):
    recorded, ours = stand_in.contract(version), functions_of_recurrent()
    for name, module, layer, own in ROW_FUNCTIONS:
        texts = recorded["calls"][layer][name]
        if name == "fused_recurrent_kda" and version.startswith("0.33"):
            continue  # another function of this name; KimiPacked has a method instead
        first = [object()] if own == "_state_space" else []
        for text in texts:
            bind(ours[own], text, *first)
            bind(engine_stand_in.signature_of(recorded["modules"][module]["functions"][name]), text)


def test_the_step_of_kimis_layer_takes_what_the_layer_gives():
    recorded, ours = stand_in.contract("0.33.0")["calls"][f"{LAYERS}.gdn.kimi_gdn_linear_attn"], functions_of_recurrent()
    for name in ("KimiPacked._forward", "KimiPacked._step"):
        (text,) = recorded["self._forward"]
        bind(ours[name], text, object())
    # The convolution is asked as vLLM asks it, up to what it checks.
    given = {keyword.split("=")[0] for call in recorded["causal_conv1d_update"] for keyword in call.split(", ")[4:]}
    assert given == {"activation", "conv_state_indices", "validate_data", "out", "num_accepted_tokens", "query_start_loc", "max_query_len"}


def test_what_leanattn_takes_of_context_parallelism_is_there(version):
    recorded = stand_in.contract(version)
    assert recorded["calls"][FLASH]["get_dcp_group().all_gather"] == ["query, dim=1"]  # and so leanattn's call is
    for name, module in recorded["modules"][FLASH]["imports"].items():
        signature = engine_stand_in.signature_of(recorded["modules"][module]["functions"][name])
        assert list(signature.parameters)[:3] == ["cp_attn_out", "cp_attn_lse", "cp_group"]
        signature.bind(object(), object(), object(), is_lse_base_on_e=True)
    for classes in record_interface.ENGINES["vllm"].instances.values():
        for name, attributes in classes.items():
            assert recorded["instances"][name] == attributes, f"{name} of {version}"
    base = recorded["modules"]["vllm.v1.attention.backend"]["classes"]
    assert {"can_return_lse_for_decode", "lse_base_on_e", "supports_dcp"} <= set(base["AttentionImplBase"]["attributes"])
    assert "dcp_local_seq_lens" in base["CommonAttentionMetadata"]["attributes"]


def test_vllm_may_spread_contexts_over_ranks(adapter):
    for backend in (adapter.Backend, adapter.LatentBackend):
        impl = backend.get_impl_cls()
        assert impl.can_return_lse_for_decode and impl.lse_base_on_e and impl.supports_dcp


def test_the_stand_in_does_not_drift_either(version):
    recorded = recorded_methods(version)
    functions = {name: text for module in stand_in.contract(version)["modules"].values() for name, text in module["functions"].items()}
    for cls, methods in stand_in.BEHAVIOUR.items():
        for name, function in methods.items():
            text = functions.get(name) if cls is None else recorded.get((cls, name))
            if text is None or function is logging.getLogger or takes_anything(function):
                continue
            assert parameters(function) == parameters(text), f"{cls}.{name} of {version}"


def test_the_metadata_has_what_vllm_reads_of_it(adapter, version):
    """The fields of FlashAttention's metadata that every version has, in the same order; the others are FlashAttention's own."""
    import dataclasses
    from leanattn.vllm.backend import Metadata

    fields = stand_in.contract(version)["modules"]["vllm.v1.attention.backends.flash_attn"]["classes"]["FlashAttentionMetadata"]["attributes"]
    assert [field.name for field in dataclasses.fields(Metadata)] == [*list(fields)[:7], "rows", "rest", "mm_prefix_range_tensor"]
    triton = stand_in.contract(version)["modules"]["vllm.v1.attention.backends.triton_attn"]["classes"]["TritonAttentionMetadata"]["attributes"]
    assert "mm_prefix_range_tensor" in triton  # from which vLLM takes images by that name


def test_graphs_of_latent_attention_hold_decode_and_uniform_speculation(adapter):
    from vllm.v1.attention.backend import AttentionCGSupport

    assert adapter.LatentBackend.get_builder_cls()._cudagraph_support is AttentionCGSupport.UNIFORM_BATCH
    assert "_cudagraph_support" not in vars(adapter.SelectedBackend.get_builder_cls())  # vLLM's own


def test_vllm_says_whether_it_has_graphs_of_decode_steps_apart(version):
    mode = stand_in.contract(version)["modules"]["vllm.config.compilation"]["classes"]["CUDAGraphMode"]
    assert mode["methods"]["separate_routine"]["signature"] == "(self)" and {"FULL", "FULL_AND_PIECEWISE"} <= set(mode["attributes"])


def test_caches_are_as_vllms_own_backend_has_them(adapter, version):
    """Of vLLM 0.26; later versions ask no backend for a shape."""
    backend = adapter.Backend
    (pages,) = backend.get_supported_kernel_block_sizes()
    assert pages.base == 16 and not backend.forward_includes_kv_cache_update
    assert hasattr(backend, "get_kv_cache_shape") == version.startswith("0.26")
    if version.startswith("0.26"):
        assert backend.get_kv_cache_shape(7, 32, 2, 64) == (7, 2, 32, 128)
        assert backend.get_kv_cache_stride_order() == (0, 2, 1, 3) and backend.get_kv_cache_stride_order(True) == (1, 0, 3, 2, 4)
        with pytest.raises(ValueError, match="multiple of 16"):
            backend.get_kv_cache_shape(7, 24, 2, 64)


def test_caches_with_inline_scales_are_as_vllms_backend_for_them_has_them(adapter, version):
    """Of the formats that vLLM names so, none is left out. What a token takes says that backend."""
    from leanattn.vllm.implementation import IN_ROW

    recorded = stand_in.contract(version)["modules"]["vllm.v1.attention.backends.triton_attn"]["classes"]["TritonAttentionBackend"]
    named = ast.literal_eval(recorded["attributes"]["supported_kv_cache_dtypes"])
    assert set(IN_ROW) == {name for name in named if name.endswith("_per_token_head")}
    backend = adapter.Backend
    for name in IN_ROW:
        assert backend.supports_kv_cache_dtype(name)
        if version.startswith("0.26"):
            assert backend.get_kv_cache_shape(7, 32, 2, 64, name) == ("of Triton", 7, 32, 2, 64, name)
    assert ("customize_spec" in recorded["methods"]) == hasattr(backend, "customize_spec") == (not version.startswith("0.26"))
    for inline in (False, True):
        spec = types.SimpleNamespace(kv_quant_mode=types.SimpleNamespace(is_per_token_head=inline))
        if not version.startswith("0.26"):
            assert backend.customize_spec(spec) == (("of Triton", spec) if inline else spec)


def test_it_registers_itself_and_nothing_else(adapter):
    import leanattn.vllm
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    for _ in range(2):  # vLLM may call it several times
        leanattn.vllm.register()
    from vllm.v1.attention.backends.mla.prefill.registry import MLAPrefillBackendEnum

    assert stand_in._overridden == {AttentionBackendEnum.CUSTOM: "leanattn.vllm.Backend", MLAPrefillBackendEnum.CUSTOM: "leanattn.vllm.LatentPrefill"}
    assert leanattn.vllm.Backend is adapter.Backend and leanattn.vllm.LatentPrefill is adapter.LatentPrefill


def test_models_with_latent_attention_get_its_backend(adapter, monkeypatch):
    import leanattn.vllm
    import vllm.config.vllm as config

    dense, sparse = types.SimpleNamespace(), types.SimpleNamespace(index_topk=2048)
    for model, backend in ((types.SimpleNamespace(use_mla=True, hf_config=dense), adapter.LatentBackend),
                           (types.SimpleNamespace(use_mla=True, hf_config=sparse), adapter.SelectedBackend),
                           (types.SimpleNamespace(use_mla=False, hf_config=dense), adapter.Backend), (None, adapter.Backend)):
        monkeypatch.setattr(config, "get_current_vllm_config_or_none", lambda: types.SimpleNamespace(model_config=model))  # noqa: B023
        assert leanattn.vllm.Backend is backend
    assert adapter.LatentBackend.is_mla() and adapter.LatentBackend.get_preferred_block_size(16) == 64


def test_it_leaves_the_backend_of_another_plugin_alone(adapter, caplog):
    import leanattn.vllm
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    stand_in._overridden[AttentionBackendEnum.CUSTOM] = "other.Backend"
    leanattn.vllm.register()
    assert stand_in._overridden[AttentionBackendEnum.CUSTOM] == "other.Backend"
    assert "other.Backend" in caplog.text and "VLLM_PLUGINS" in caplog.text


@pytest.mark.parametrize("number, asked", [(None, [True]), ("0.1.0", [])])
def test_layers_for_recurrent_states_are_registered_where_they_are_asked_for(adapter, version, number, asked, monkeypatch, caplog):
    """With their own module for this vLLM. A vLLM that was never tried keeps its layers, and says why."""
    import leanattn.vllm
    import vllm

    modules = []
    monkeypatch.setitem(sys.modules, "leanattn.vllm.recurrent", types.SimpleNamespace(register=modules.append))
    monkeypatch.setattr(vllm, "__version__", number or version, raising=False)
    leanattn.vllm.register()
    assert modules == []
    monkeypatch.setenv("LEANATTN_VLLM_RECURRENT", "1")
    leanattn.vllm.register()
    assert modules == ([leanattn.vllm.module_for(version)] if asked else [])
    assert bool(asked) != ("stay vLLM's" in caplog.text)


def test_a_vllm_without_such_a_registry_still_starts(adapter, caplog):
    import leanattn.vllm

    del sys.modules["vllm.v1.attention.backends.registry"].register_backend
    leanattn.vllm.register()
    assert "not registered: this vLLM has another interface" in caplog.text and "0.26.*" in caplog.text


@pytest.mark.parametrize("number, module", [("0.26.0", "v026"), ("0.26.1", "v026"), ("0.33.0", "v033"), ("0.33.0+cu130", "v033"), ("0.33.1rc1", "v033")])
def test_a_version_has_its_module(number, module):
    import leanattn.vllm

    assert leanattn.vllm.module_for(number) == module


@pytest.mark.parametrize("number, nearest", [("0.25.1", "v026"), ("0.30.0", "v026"), ("0.34.0", "v033"), ("1.0.0", "v033"), ("dev", "v033")])
def test_an_untried_version_is_refused_with_what_to_do(number, nearest, monkeypatch, caplog):
    import leanattn.vllm

    monkeypatch.delenv(leanattn.vllm.ANYWAY, raising=False)
    with pytest.raises(RuntimeError) as caught:
        leanattn.vllm.module_for(number)
    for part in (f"never tried with vLLM {number}", "0.26.* and 0.33.*", "--attention-backend", f"{leanattn.vllm.ANYWAY}=1"):
        assert part in str(caught.value)
    monkeypatch.setenv(leanattn.vllm.ANYWAY, "1")
    assert leanattn.vllm.module_for(number) == nearest and number in caplog.text


def test_the_entry_point_is_vllms_and_leads_to_register():
    import leanattn.vllm

    project = (SOURCE / "pyproject.toml").read_text()
    group, name, target = re.search(r'\[project\.entry-points\."([^"]+)"\]\n(\w+) = "([^"]+)"', project).groups()
    groups = {ast.literal_eval(stand_in.contract(version)["modules"]["vllm.plugins"]["constants"]["DEFAULT_PLUGINS_GROUP"])
              for version in stand_in.VERSIONS}
    assert groups == {group} and name == "leanattn"
    module, function = target.split(":")
    assert module == leanattn.vllm.__name__ and callable(getattr(leanattn.vllm, function))


def test_registering_imports_neither_torch_nor_kernels():
    """vLLM loads plugins in every process, also where another backend is used."""
    code = (engine_stand_in.without("vllm") +
            "import leanattn.vllm\n"
            "leanattn.vllm.register()\n"
            "assert not {'torch', 'leanattn.vllm.backend'} & set(sys.modules)\n")
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert "not registered: vLLM is not installed" in ran.stderr


def test_what_an_engine_lacks_is_not_blamed_on_its_interface(adapter, caplog, monkeypatch):
    import leanattn.vllm

    class Broken:
        @staticmethod
        def __getattr__(name):
            raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setitem(sys.modules, "vllm.v1.attention.backends.registry", Broken())
    leanattn.vllm.register()
    assert "not registered: vLLM cannot be imported (No module named 'torch')" in caplog.text


def test_a_record_is_made_from_a_wheel(tmp_path):
    """record_interface.py on a wheel of three lines a module: what it writes down, and what it leaves out."""
    import zipfile

    engine = record_interface.ENGINES["vllm"]
    texts = {module: "" for module in [*engine.names, *engine.calls]}
    texts["vllm.v1.attention.backend"] = ("class AttentionMetadataBuilder(ABC, Generic[M]):\n    limit: int | None = None\n"
                                          "    @abstractmethod\n    def build(self, a: int, *, b: str = 'x') -> M:\n        return secret\n"
                                          "class Other:\n    pass\n")
    texts["vllm.model_executor.layers.attention.attention"] = "def f():\n    self.impl.forward(self, query, output=output)\n"
    wheel = tmp_path / "vllm-9.9-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for module, text in texts.items():
            archive.writestr(module.replace(".", "/") + ".py", text)
        archive.writestr("vllm-9.9.dist-info/METADATA", "Name: vllm\nVersion: 9.9\nRequires-Python: >=3.11\nRequires-Dist: torch==7.0\nRequires-Dist: fastapi\n")
    name, made = record_interface.record(wheel)
    assert (name, made["vllm"], made["python"], made["requires"]) == ("vllm", "9.9", ">=3.11", ["torch==7.0"])
    classes = made["modules"]["vllm.v1.attention.backend"]["classes"]
    assert classes == {"AttentionMetadataBuilder": {"bases": ["ABC", "Generic"], "dataclass": False, "attributes": {"limit": "None"},
                                                    "methods": {"build": {"signature": "(self, a, *, b='x')", "decorators": ["abstractmethod"]}}}}
    assert made["calls"]["vllm.model_executor.layers.attention.attention"] == {"self.impl.forward": ["self, query, output=output"]}
