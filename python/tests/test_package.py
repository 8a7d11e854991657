"""The package as it is installed: what it says of itself, and what it says where there is no driver."""
import importlib.metadata
import inspect
import pathlib
import pickle
import pydoc
import subprocess
import sys

import leanattn
import pytest


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


@pytest.mark.parametrize("bad", [{"q_heads": "32"}, {"dtype": "bfloat"}, {"mask": 3}, {"soft_cap": None}, {"kv_heads": True}], ids=str)
def test_a_problems_bad_field_is_named(bad):
    fake = pytest.importorskip("_fake_gpu", reason="built with the tests only")
    fake.reset()
    with pytest.raises((TypeError, ValueError), match=next(iter(bad))):
        leanattn.Engine(disk_cache=False).plan(leanattn.Problem(**bad))
