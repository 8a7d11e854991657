"""leanattn.sglang against the recorded interface of every version of SGLang that it is written for. Neither SGLang nor PyTorch need be installed."""
import ast
import importlib.metadata
import inspect
import pathlib
import re
import subprocess
import sys
import types
import zipfile

import pytest
import engine_stand_in
import record_interface
import sglang_stand_in as stand_in
from engine_stand_in import parameters, takes_anything

SOURCE = pathlib.Path(__file__).resolve().parents[2]
FLASH = stand_in.FLASH


@pytest.fixture(params=stand_in.VERSIONS)
def version(request):
    return request.param


@pytest.fixture
def adapter(version):
    with stand_in.installed(version) as module:
        yield module


def recorded_methods(version):
    return engine_stand_in.recorded_methods(stand_in.contract(version))


def own_bases(cls):
    return [base for base in cls.__mro__ if base.__module__.startswith("leanattn.")]


def forwards(function):
    """Whether what a function does not name itself goes on by name."""
    return inspect.Parameter.VAR_KEYWORD in [kind for _, kind, _ in parameters(function)]


def test_every_tried_version_is_recorded_and_no_other():
    import leanattn.sglang

    assert sorted(leanattn.sglang.TRIED) == sorted(".".join(re.findall(r"\d+", recorded)[:3]) for recorded in stand_in.VERSIONS)


def test_no_abstract_method_is_left(adapter):
    assert not getattr(adapter.Backend, "__abstractmethods__", ())


def test_methods_that_replace_one_have_its_signature(adapter, version):
    """Where a method hands on arguments by name, those that it names itself have the places that SGLang has for them."""
    recorded, checked = recorded_methods(version), 0
    for base in own_bases(adapter.Backend):
        for name, member in vars(base).items():
            function = getattr(member, "__func__", member)
            found = next((recorded[other.__name__, name] for other in adapter.Backend.__mro__ if (other.__name__, name) in recorded), None)
            if found is None or not inspect.isfunction(function) or takes_anything(function):
                continue
            given, wanted = parameters(function), parameters(found)
            if forwards(function):
                given = given[:-1]
                wanted = wanted[:len(given)]
            assert given == wanted, f"{base.__name__}.{name} of {version}"
            checked += 1
    assert checked >= 5


def test_public_methods_that_replace_nothing_are_our_own(adapter, version):
    """A method that SGLang has renamed would go on to exist here, and never be called."""
    recorded = {method for _, method in recorded_methods(version)}
    ours = {"for_runner", "is_deterministic", "write", "caches", "init_tree", "init_graph", "reads_slots"}
    for base in own_bases(adapter.Backend):
        public = {name for name, member in vars(base).items() if not name.startswith("_") and callable(getattr(member, "__func__", member))}
        assert public <= recorded | ours, f"{base.__name__} of {version}"


def test_our_own_names_are_none_of_sglangs(adapter, version):
    """Methods and attributes that SGLang's class has as well would be taken for its own."""
    recorded = recorded_methods(version)
    theirs = {method for cls, method in recorded if cls in ("FlashAttentionBackend", "AttentionBackend")}
    ours = {"for_runner", "is_deterministic", "write", "caches", "init_tree", "init_graph", "reads_slots", "_launch", "_need", "_options", "_takes",
            "_takes_step", "_batch_for", "_shape_for", "_scale", "_layout", "_width", "_table_of", "_rows_of", "_has_trees", "_constant_arguments"}
    defined = {name for base in own_bases(adapter.Backend) for name in vars(base) if not name.startswith("__")}
    assert ours <= defined and not ours & theirs


def test_the_calls_of_sglang_are_taken(adapter, version):
    """The arguments are those of the recorded calls; only how many and under which names."""
    calls = [(name.rpartition(".")[2], text) for module in stand_in.contract(version)["calls"].values() for name, texts in module.items() for text in texts]
    assert {"forward", "forward_decode", "forward_extend", "init_cuda_graph_state"} < {name for name, _ in calls}
    for name, text in calls:
        call = ast.parse(f"f({text})", mode="eval").body
        named = {keyword.arg: object() for keyword in call.keywords if keyword.arg is not None}
        inspect.signature(getattr(adapter.Backend, name)).bind(object(), *[object() for _ in call.args], **named)


def test_the_hooks_around_graphs_are_those_of_the_version(adapter, version):
    recorded = {method for cls, method in recorded_methods(version) if cls == "FlashAttentionBackend"}
    hooks = {name for name in recorded if name.startswith("init_forward_metadata") and "prefill" not in name}
    called = {name.rpartition(".")[2] for module in stand_in.contract(version)["calls"].values() for name in module}
    own = {name for base in own_bases(adapter.Backend) for name in vars(base)}
    assert own & hooks == {"init_forward_metadata"} | called & hooks and len(called & hooks) >= 1


def test_what_is_read_of_sglangs_objects_is_there(version):
    """Attributes that classes give to their instances. Of two versions a mixin gives the memory pool to a runner."""
    recorded = stand_in.contract(version)["instances"]
    for classes in record_interface.ENGINES["sglang"].instances.values():
        for name, attributes in classes.items():
            later = set() if version.startswith("0.5.23") else {"kv_index_translator", "kv_cache_dtype_str", "token_to_kv_pool"}
            assert set(attributes) - set(recorded[name]) <= later, f"{name} of {version}"


def test_the_metadata_has_what_leanattn_reads_of_it(version):
    fields = stand_in.contract(version)["modules"][FLASH]["classes"]["FlashAttentionMetadata"]["attributes"]
    assert {"cache_seqlens_int32", "cu_seqlens_q", "max_seq_len_q", "page_table", "swa_page_table", "local_attn_metadata"} <= set(fields)
    assert ("image_token_ranges" in fields) == version.startswith("0.5.23")
    assert ("swa_out_cache_loc" in fields) != version.startswith("0.5.12")


def test_a_batch_has_what_leanattn_reads_of_it(version):
    fields = stand_in.contract(version)["modules"]["sglang.srt.model_executor.forward_batch_info"]["classes"]["ForwardBatch"]["attributes"]
    assert {"batch_size", "forward_mode", "out_cache_loc", "req_pool_indices", "seq_lens", "seq_lens_cpu", "spec_info"} <= set(fields)


def test_the_stand_in_does_not_drift_either(version):
    recorded = recorded_methods(version)
    functions = {name: text for module in stand_in.contract(version)["modules"].values() for name, text in module["functions"].items()}
    checked = 0
    for cls, methods in stand_in.BEHAVIOUR.items():
        for name, function in methods.items():
            text = functions.get(name) if cls is None else recorded.get((cls, name))
            if text is None or takes_anything(function):
                continue
            given, wanted = parameters(function), parameters(text)
            if forwards(function):
                given = given[:-1]
                wanted = wanted[:len(given)]
            assert given == wanted, f"{cls}.{name} of {version}"
            checked += 1
    assert checked >= 10


def test_a_layer_is_made_as_sglang_makes_it(adapter, version):
    """The stand-in's layer has SGLang's arguments in SGLang's order, as far as it reads them."""
    wanted = [name for name, _, _ in parameters(recorded_methods(version)["RadixAttention", "__init__"])]
    given = [name for name, kind, _ in parameters(stand_in._layer) if kind == inspect.Parameter.POSITIONAL_OR_KEYWORD]
    assert wanted[:len(given)] == given and {"logit_capping_method", "attn_type", "use_irope"} < set(wanted)


def test_it_adds_its_name_once_and_nothing_else(adapter):
    import leanattn.sglang
    from sglang.srt import server_args
    from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS

    before = {name: list(getattr(server_args, name)) for name in ("ATTENTION_BACKEND_CHOICES", "DETERMINISTIC_ATTENTION_BACKEND_CHOICES")}
    for _ in range(2):  # SGLang may call it several times
        leanattn.sglang.register()
    assert ATTENTION_BACKENDS == {"leanattn": leanattn.sglang.create}
    for name, choices in before.items():
        assert "leanattn" not in choices and getattr(server_args, name) == [*choices, "leanattn"]


def test_hooks_for_recurrent_states_are_registered_where_they_are_asked_for(adapter, monkeypatch, caplog):
    import leanattn.sglang
    from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS

    asked = []
    monkeypatch.setitem(sys.modules, "leanattn.sglang.recurrent", types.SimpleNamespace(register=lambda: asked.append(True)))
    for value, times in ((None, 0), ("0", 0), ("1", 1)):
        monkeypatch.delenv("LEANATTN_SGLANG_RECURRENT", raising=False)
        if value is not None:
            monkeypatch.setenv("LEANATTN_SGLANG_RECURRENT", value)
        leanattn.sglang.register()
        assert len(asked) == times
    monkeypatch.setitem(sys.modules, "leanattn.sglang.recurrent", types.SimpleNamespace())  # what cannot be registered
    leanattn.sglang.register()
    assert "stay SGLang's" in caplog.text and leanattn.sglang.NAME in ATTENTION_BACKENDS


def test_create_makes_the_backend_of_the_version(adapter, monkeypatch):
    import leanattn.sglang

    monkeypatch.setattr(adapter.Backend, "for_runner", classmethod(lambda cls, runner: (cls, runner)))
    assert leanattn.sglang.create("a runner") == (adapter.Backend, "a runner")


def test_it_leaves_a_backend_of_that_name_alone(adapter, caplog):
    import leanattn.sglang
    from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS

    ATTENTION_BACKENDS["leanattn"] = "another"
    leanattn.sglang.register()
    assert ATTENTION_BACKENDS == {"leanattn": "another"} and "another" in caplog.text and "SGLANG_PLUGINS" in caplog.text


def test_an_sglang_without_such_a_registry_still_starts(adapter, caplog):
    import leanattn.sglang

    del sys.modules["sglang.srt.layers.attention.attention_registry"].register_attention_backend
    leanattn.sglang.register()
    assert "not registered: this SGLang has another interface" in caplog.text and "0.5.12.*" in caplog.text


@pytest.mark.parametrize("number, module", [("0.5.12", "v0512"), ("0.5.12.post1", "v0512"), ("0.5.16", "v0516"), ("0.5.23", "v0523"), ("0.5.23+cu130", "v0523"), ("0.5.23rc1", "v0523")])
def test_a_version_has_its_module(number, module):
    import leanattn.sglang

    assert leanattn.sglang.module_for(number) == module


@pytest.mark.parametrize("number, nearest", [("0.5.9", "v0512"), ("0.5.15.post1", "v0512"), ("0.5.22", "v0516"), ("0.5.24", "v0523"), ("0.6.0", "v0523"), ("dev", "v0523")])
def test_an_untried_version_is_refused_with_what_to_do(number, nearest, monkeypatch, caplog):
    import leanattn.sglang

    monkeypatch.delenv(leanattn.sglang.ANYWAY, raising=False)
    with pytest.raises(RuntimeError) as caught:
        leanattn.sglang.module_for(number)
    for part in (f"never tried with SGLang {number}", "0.5.12.*, 0.5.16.* and 0.5.23.*", "--attention-backend", "LEANATTN_SGLANG_UNTRIED=1"):
        assert part in str(caught.value)
    monkeypatch.setenv(leanattn.sglang.ANYWAY, "1")
    assert leanattn.sglang.module_for(number) == nearest and number in caplog.text


def test_the_entry_point_is_sglangs_and_leads_to_register():
    import leanattn.sglang

    groups = {ast.literal_eval(stand_in.contract(version)["modules"]["sglang.srt.plugins"]["constants"]["GENERAL_PLUGINS_GROUP"])
              for version in stand_in.VERSIONS}
    (group,) = groups
    project = (SOURCE / "pyproject.toml").read_text()
    name, target = re.search(rf'\[project\.entry-points\."{re.escape(group)}"\]\n(\w+) = "([^"]+)"', project).groups()
    found = importlib.metadata.EntryPoint(name, target, group)
    assert name == "leanattn" and found.load() is leanattn.sglang.register


def test_importing_it_needs_neither_torch_nor_sglang():
    """The package is imported where SGLang looks for plugins, also where another backend is used."""
    code = (engine_stand_in.without("torch", "sglang") +
            "import leanattn.sglang\n"
            "leanattn.sglang.register()\n")
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert "not registered: SGLang is not installed" in ran.stderr


def test_a_record_is_made_from_a_wheel(tmp_path):
    """record_interface.py on a wheel of a few lines: instances and names from other modules, beside what the records of vLLM have."""
    engine = record_interface.ENGINES["sglang"]
    texts = {module: "" for module in [*engine.names, *engine.calls, *engine.instances]}
    texts["sglang.srt.server_args"] = "from sglang.srt.arg_groups.choices import add_attention_backend_choices, other\n"
    texts["sglang.srt.model_executor.model_runner"] = ("class ModelRunner:\n    model: object\n    def f(self):\n        self.dtype, other = 1, 2\n"
                                                       "        self.secret = other\n    @property\n    def gpu_id(self):\n        return 1\n")
    del texts["sglang.srt.arg_groups.choices"]
    wheel = tmp_path / "sglang-9.9-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for module, text in texts.items():
            archive.writestr(module.replace(".", "/") + ".py", text)
        archive.writestr("sglang-9.9.dist-info/METADATA", "Name: sglang\nVersion: 9.9\nRequires-Python: >=3.11\nRequires-Dist: torch==7.0\n")
    name, made = record_interface.record(wheel)
    assert (name, made["sglang"]) == ("sglang", "9.9") and "sglang.srt.arg_groups.choices" not in made["modules"]
    assert made["modules"]["sglang.srt.server_args"]["imports"] == {"add_attention_backend_choices": "sglang.srt.arg_groups.choices"}
    assert made["instances"]["ModelRunner"] == ["dtype", "gpu_id", "model"]
