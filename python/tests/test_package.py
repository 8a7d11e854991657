"""The package as it is installed: what it says of itself, and what it says where there is no driver."""
import ast
import contextlib
import dataclasses
import importlib.metadata
import inspect
import json
import os
import pathlib
import pickle
import pydoc
import shutil
import sqlite3
import subprocess
import sys
import sysconfig

import _fake_gpu
import leanattn
import leanattn.__main__ as program
import pytest
import simulated_program
from leanattn import _nvrtc


def test_it_is_typed():
    folder = pathlib.Path(leanattn.__file__).parent
    assert (folder / "py.typed").exists()
    if (folder / "__init__.py").is_symlink():
        pytest.skip("a build tree, without the stub that a wheel has")
    text = (folder / "_leanattn.pyi").read_text()
    for name in ("def decode(", "def merge_partials(", "class Engine", "class Plan", "def plan("):
        assert name in text
    compile(text, "_leanattn.pyi", "exec")


def test_the_version_is_the_projects():
    try:
        installed = importlib.metadata.version("leanattn")
    except importlib.metadata.PackageNotFoundError:
        installed = leanattn.__version__
    assert leanattn.__version__ == installed
    assert leanattn.__version__.count(".") == 2


def test_everything_public_has_help():
    for name in leanattn.__all__:
        thing = getattr(leanattn, name)
        assert name == "__version__" or inspect.getdoc(thing), name
    text = pydoc.render_doc(leanattn.decode, renderer=pydoc.plaintext)
    signature = leanattn.decode.__doc__.splitlines()[0]
    for argument in ("k_cache", "page_table", "sink_logits", "rope_table", "batch_invariant", "longest_context", "stream"):
        assert argument in signature and argument in text.replace(signature, "")


def test_importing_it_imports_no_framework():
    code = "import sys, leanattn; print(*sorted({'torch', 'numpy', 'cupy', 'jax', 'transformers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == ""


def test_errors_are_pythons_and_carry_code_and_hint():
    assert issubclass(leanattn.ArgumentError, ValueError) and issubclass(leanattn.ArgumentTypeError, TypeError)
    error = leanattn.errors.make("unsupported", "head_dim is 24", "Use a multiple of 16.", "a log")
    assert isinstance(error, leanattn.Unsupported) and (error.code, error.hint, error.log) == ("unsupported", "Use a multiple of 16.", "a log")
    assert str(error) == "head_dim is 24. Use a multiple of 16."
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and vars(again) == vars(error)


def test_without_a_driver_an_engine_says_so():
    code = ("import leanattn\ntry:\n leanattn.Engine(disk_cache=False)\n"
            "except leanattn.Error as error:\n assert error.code in ('no_driver', 'no_device', 'driver_too_old') and error.hint, error\n print('said so')\n"
            "else:\n print('there is a GPU')")
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() in ("said so", "there is a GPU")


@pytest.mark.parametrize("bad", [{"q_heads": "32"}, {"dtype": "bfloat"}, {"mask": 3}, {"soft_cap": None}, {"kv_heads": True}, {"lse": 1}, {"q_heads": 0},
                                 {"q_heads": 33}, {"head_dim": -128}, {"page_size": -1}, {"page_size": 2**40}, {"sink_tokens": 4}, {"soft_cap": float("nan")},
                                 {"score": "system(score)"}, {"rope_dim": 64}, {"rope_dim": 256, "rope": "half_split"}, {"q_len": 0}], ids=str)
def test_a_problem_that_makes_no_sense_is_refused_when_it_is_made_by_the_fields_name(bad):
    with pytest.raises((TypeError, ValueError), match="query heads" if bad == {"q_heads": 33} else next(iter(bad))):
        leanattn.Problem(**bad)


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(leanattn.Problem)])
def test_every_field_of_a_problem_is_read(field):
    with pytest.raises(TypeError, match=f"^{field} "):
        leanattn.Problem(**{field: object()})


def test_operators_have_the_schema_that_exported_models_name():
    code = """
import sys, types
class Library:
    def __init__(self, *_): pass
    def define(self, schema, **_): print(schema)
    def impl(self, *_): pass
torch = types.ModuleType("torch")
torch.library = types.SimpleNamespace(Library=Library, register_fake=lambda *_, **__: None)
torch.Tag = types.SimpleNamespace(pt2_compliant_tag=0, needs_fixed_stride_order=1)
sys.modules["torch"] = torch
import leanattn.torch
"""
    options = (
        "Tensor? context_lengths, Tensor? page_table=None, *, "
        'float? scale=None, str kv_layout="HND", str? kv_dtype=None, Tensor? k_scale=None, Tensor? v_scale=None, Tensor? k_block_scales=None, Tensor? v_block_scales=None, int? max_q_len=None, '
        "Tensor? q_offsets=None, Tensor? kv_offsets=None, str? mask=None, Tensor? tree_mask=None, Tensor? spans=None, int window=0, int sink_tokens=0, Tensor? sink_logits=None, "
        "float soft_cap=0.0, Tensor? alibi_slopes=None, str? score=None, Tensor? rope_table=None, str? rope=None, Tensor? selection=None, "
        "Tensor? selected_counts=None, int? selection_block=None, Tensor? second_k_cache=None, Tensor? second_v_cache=None, "
        "Tensor? second_page_table=None, Tensor? second_lengths=None, bool batch_invariant=False, bool pdl=False, int? typical_batch=None, "
        "int? max_batch=None, SymInt? longest_context=None, SymInt? total_context=None")
    caches = "Tensor q, Tensor k_cache, Tensor v_cache"
    expected = [f"decode({caches}, {options}) -> Tensor", f"decode_with_lse({caches}, {options}) -> (Tensor, Tensor)",
                f"decode_append(Tensor q, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor k_new, Tensor v_new, {options}) -> Tensor"]
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines() == expected


@pytest.mark.parametrize("beyond", [{"head_dim": 24}, {"q_len": 17}, {"q_heads": 258, "kv_heads": 2}, {"v_head_dim": 40}], ids=str)
def test_a_problem_beyond_a_limit_is_unsupported_with_the_limit(beyond):
    with pytest.raises(leanattn.Unsupported) as raised:
        leanattn.Problem(**beyond)
    assert raised.value.hint


def test_a_problem_that_is_made_is_a_value():
    problem = leanattn.Problem(page_size=16, window=4096)
    assert dataclasses.replace(problem, window=0) == leanattn.Problem(page_size=16) and len({problem, leanattn.Problem(page_size=16, window=4096)}) == 1
    with pytest.raises(ValueError, match="window"):
        dataclasses.replace(problem, window=-1)


def package_of(*parts):
    """A part of the installed package; skips in a build tree, which is not installed."""
    folder = pathlib.Path(leanattn.__file__).parent
    if (folder / "__init__.py").is_symlink():
        pytest.skip("a build tree, not an installation")
    return folder.joinpath(*parts)


def run_program(*command, **more):
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", **more.pop("env", {})}
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=120, **more)


@pytest.mark.parametrize("how", ["module", "console script"])
def test_the_program_is_part_of_the_package(how, tmp_path):
    assert os.access(package_of("bin", "leanattn"), os.X_OK)
    if how == "module":
        command = [sys.executable, "-m", "leanattn"]
    else:  # where `pip install --target` puts it, or an environment
        folders = [package_of("..", "bin").resolve(), pathlib.Path(sysconfig.get_path("scripts"))]
        script = next((folder / "leanattn" for folder in folders if (folder / "leanattn").exists()), None)
        assert script, f"no console script in {folders}"
        command = [sys.executable, str(script)]
    env = {"LEANATTN_CACHE_DIR": str(tmp_path)}
    tmp_path.chmod(0o700)
    version = run_program(*command, "--version", env=env)
    assert (version.returncode, version.stderr) == (0, "") and leanattn.__version__ in version.stdout
    doctor = run_program(*command, "doctor", "--json", env=env)
    subjects = {finding["subject"] for finding in json.loads(doctor.stdout)["findings"]}
    assert {"driver", "NVRTC"} <= subjects, doctor.stdout
    assert run_program(*command, "explain", "--bogus", env=env).returncode == 2  # exit codes are the program's


def shipped_winner(file):
    """A winner of a plain problem in a database: its problem, shape and device model."""
    with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as database:
        rows = database.execute("SELECT p.json, h.json, d.arch, d.sm_count FROM winners w JOIN problems p ON p.id = w.problem_id JOIN shapes h ON h.id = w.shape_id "
                                "JOIN device_models d ON d.id = w.device_model_id WHERE w.policy = 'cold' ORDER BY d.id").fetchall()
    for problem, shape, arch, sms in rows:
        problem, shape = json.loads(problem), json.loads(shape)
        if "features" not in problem and problem["layout"] == "contiguous" and not problem.get("pdl") and shape["total_context"] == 0:
            return problem, shape, arch, sms
    raise AssertionError(f"{file} has no winner of a dense problem")


def test_winners_that_come_with_the_package_answer(tmp_path):
    file = package_of("share", "leanattn", "tuning.db")
    if not file.exists():
        pytest.skip("a package without winners")
    problem, shape, arch, sms = shipped_winner(file)
    tmp_path.chmod(0o700)
    lookup = run_program(sys.executable, "-m", "leanattn", "--json", "lookup", "--heads", str(problem["q_heads"]), "--kv-heads", str(problem["kv_heads"]),
                         "--head-dim", str(problem["head_dim"]), "--dtype", problem["dtype"], "--batch", str(shape["batch"]), "--context",
                         str(shape["longest_context"]), "--arch", arch, "--sms", str(sms), env={"LEANATTN_CACHE_DIR": str(tmp_path)})
    assert lookup.returncode == 0, lookup.stderr
    answer, = json.loads(lookup.stdout)["answers"]
    assert (answer["provenance"], answer["layer"]) == ("exact", "shipped")


def test_the_module_takes_winners_from_its_own_package(tmp_path):
    """A copy of the package with a database of this test's in it, on a GPU that the database knows."""
    if not (program := simulated_program.environment()):
        pytest.skip("the simulated program is not built")
    package, tuned, empty = tmp_path / "package", tmp_path / "tuned", tmp_path / "empty"
    for directory in (tuned, empty):
        directory.mkdir(mode=0o700)
    shutil.copytree(pathlib.Path(leanattn.__file__).parent, package / "leanattn", ignore=shutil.ignore_patterns("bin", "share", "__pycache__"))
    code = ("import _fake_gpu, leanattn, sys; problem = leanattn.Problem(q_heads=32, kv_heads=8, head_dim=128)\n"
            "assert leanattn.__file__.startswith(sys.argv[1]), leanattn.__file__\n"
            "if sys.argv[2] == 'tune': leanattn.tune(problem, [(2, 500)], budget=60)\n"
            "plan = leanattn.plan(problem, batch=2, longest_context=500); print(plan.provenance, plan.layer)")
    env = {**os.environ, **program, "PYTHONPATH": f"{package}:{pathlib.Path(_fake_gpu.__file__).parent}"}

    def planned(cache, how="plan"):
        ran = subprocess.run([sys.executable, "-c", code, str(package), how], capture_output=True, text=True, env={**env, "LEANATTN_CACHE_DIR": str(cache)},
                             cwd=tmp_path, timeout=300)  # -c also imports from where it starts
        if "nvrtc_missing" in ran.stderr or "NVRTC library" in ran.stderr:
            pytest.skip("NVRTC is not installed")
        assert ran.returncode == 0, ran.stderr
        return ran.stdout.split()

    assert planned(tuned, "tune") == ["exact", "user"]
    assert planned(empty) == ["fallback"]
    share = package / "leanattn" / "share" / "leanattn"
    share.mkdir(parents=True)
    shutil.copy(tuned / "tuning.db", share)
    assert planned(empty) == ["exact", "shipped"]
    assert planned(tuned) == ["exact", "user"]
    (share / "tuning.db").write_bytes(b"damaged" * 1000)
    assert planned(empty) == ["fallback"]


def test_the_program_starts_as_from_a_shell():
    """With the arguments as they are, and without the signals that Python ignores."""
    code = "import sys, leanattn.__main__ as m; m.program = lambda: '/bin/sh'; sys.argv[1:] = ['-c', 'echo $0; grep SigIgn /proc/$$/status', 'a b']; m.main()"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, signals = ran.stdout.splitlines()
    assert first == "a b" and int(signals.split()[1], 16) == 0


def test_a_package_without_the_program_says_so(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(program, "__file__", str(tmp_path / "__main__.py"))
    assert program.main() == 1
    assert "built without the program" in capsys.readouterr().err


def test_the_metadata_is_complete():
    package_of()
    metadata = importlib.metadata.metadata("leanattn")
    for field in ("Summary", "License-Expression", "License-File", "Requires-Python", "Keywords", "Project-URL", "Author", "Description-Content-Type"):
        assert metadata.get(field), field
    assert metadata["Description-Content-Type"] == "text/markdown" and metadata.get_payload().startswith("# leanattn")
    assert set(metadata.get_all("Provides-Extra")) >= {"nvrtc", "nvrtc-cu12", "torch", "transformers", "vllm"}
    requirements = importlib.metadata.requires("leanattn")
    assert all("extra ==" in requirement for requirement in requirements), f"the package itself depends on nothing: {requirements}"
    points = {(point.group, point.name): point.value for point in importlib.metadata.distribution("leanattn").entry_points}
    assert points[("console_scripts", "leanattn")] == "leanattn.__main__:main" and ("vllm.general_plugins", "leanattn") in points


def test_nvrtc_is_looked_for_among_installed_packages_then_beside_torch_then_in_the_environment(monkeypatch, tmp_path):
    made = []
    for folder in ("a/site-packages/nvidia/cu13/lib", "a/site-packages/nvidia/cuda_nvrtc/lib", "b/dist-packages/torch/lib", "t/torch/lib", "prefix/lib",
                   "nvidia/cu13/lib", "other/nvidia/cu13/lib"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / ("libnvrtc.so.13" if "cu13" in folder else "libnvrtc.so.12")).touch()
        made.append(str(tmp_path / folder))
    (tmp_path / "t/torch/__init__.py").touch()
    (tmp_path / "c/site-packages/nvidia/cu13/lib").mkdir(parents=True)  # without a library
    monkeypatch.chdir(tmp_path)
    unreadable = "x" * 300 + "/site-packages"  # what cannot be looked into, also by root
    monkeypatch.setattr(sys, "path", ["", *(str(tmp_path / entry) for entry in (unreadable, "other", "c/site-packages", "a/site-packages",
                                                                               "b/dist-packages", "t"))])
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "prefix"))
    for name in ("LEANATTN_NVRTC_LIB", "LEANATTN_NVRTC_DIR"):
        monkeypatch.delenv(name, raising=False)
    assert _nvrtc.directories() == made[:5]
    assert _nvrtc.environment() == {"LEANATTN_NVRTC_DIR": made[0]}
    monkeypatch.setenv("LEANATTN_NVRTC_LIB", "/a/file")
    assert _nvrtc.environment() == {}  # what the user says comes first


def test_the_compiled_half_takes_nvrtc_from_there(tmp_path):
    pytest.importorskip("_fake_gpu", reason="built with the tests only")
    homes = [os.environ[name] + "/lib64" for name in ("CUDA_HOME", "CUDA_PATH") if name in os.environ]
    folders = [*homes, "/usr/local/cuda/lib64", str(pathlib.Path(__file__).parents[2] / ".cuda/lib")]
    library = next((path for folder in folders for name in ("libnvrtc.so.13", "libnvrtc.so.12") if (path := pathlib.Path(folder, name).resolve()).exists()), None)
    if library is None:
        pytest.skip("NVRTC is not installed")
    folder = tmp_path / "site-packages/nvidia/cu13/lib"
    folder.mkdir(parents=True)
    for file in library.parent.glob("libnvrtc*.so.*"):
        made = folder / (f"libnvrtc.so.{file.name.split('.')[2]}" if file.resolve() == library else file.name)
        if not made.exists():
            shutil.copy(file, made)  # another file than the one that the loader would find
    code = (f"import sys; sys.path.append({str(tmp_path / 'site-packages')!r})\nimport _fake_gpu, leanattn\n_fake_gpu.reset()\n"
            "leanattn.Engine(disk_cache=False).plan(leanattn.Problem())\n"
            "print({line.split()[-1] for line in open('/proc/self/maps') if '/libnvrtc.so' in line})")
    env = {key: value for key, value in os.environ.items() if key not in ("LEANATTN_NVRTC_LIB", "LEANATTN_NVRTC_DIR")}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert len(used := ast.literal_eval(ran.stdout)) == 1 and used.pop().startswith(str(folder))
