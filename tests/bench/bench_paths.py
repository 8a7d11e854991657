"""bench_paths.py -- makes the modules of bench/ importable by the tests beside it: `peers`, `shape_table`, and those of trace, features, e2e, engines, latent, groups, mixed and recurrent."""
import importlib.util
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
for folder in (ROOT / "bench", *(ROOT / "bench" / name for name in ("trace", "features", "e2e", "engines", "latent", "groups", "mixed", "recurrent"))):
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def program(name):
    """bench/NAME/__main__.py as a module; the paths that it adds for itself are taken away again."""
    spec = importlib.util.spec_from_file_location(f"{name}_main", ROOT / "bench" / name / "__main__.py")
    made = importlib.util.module_from_spec(spec)
    before = list(sys.path)
    spec.loader.exec_module(made)
    sys.path[:] = before
    return made
