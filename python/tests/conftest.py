"""conftest.py -- what tests share: where they find each other's helpers, a cache, and engines on a GPU that is not there."""
import gc
import os
import pathlib
import sys

import pytest

sys.path.append(str(pathlib.Path(__file__).resolve().parent))


def pytest_collection_finish():
    """Freezes what imports have made, so that tests that collect garbage look through their own objects only."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory):
    """An empty directory for the databases, as safe as the library wants it."""
    path = tmp_path_factory.mktemp("cache")
    os.chmod(path, 0o700)
    return path


@pytest.fixture
def engines(cache_dir, monkeypatch):
    """Makes leanattn.engine() new for each test, with the module's cache, on a simulated GPU that nobody has used."""
    import _fake_gpu
    import leanattn
    from engine_stand_in import Tensor

    gc.collect()  # the engine of the test before
    _fake_gpu.reset()
    Tensor.current_stream = 0
    made = {}
    monkeypatch.setattr(leanattn, "engine", lambda ordinal: made.setdefault(ordinal, leanattn.Engine(ordinal, cache_dir=cache_dir)))
    return made
