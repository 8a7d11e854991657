"""bench_paths.py -- makes the modules of bench/ importable by the tests beside it: `peers`, `shape_table`, and those of trace, features, e2e, engines and latent."""
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
for folder in (ROOT / "bench", *(ROOT / "bench" / name for name in ("trace", "features", "e2e", "engines", "latent"))):
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
