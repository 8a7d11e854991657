"""_nvrtc.py -- where Python packages have NVRTC, for the compiled half and the program, which know only the folder of this package.

NVIDIA's wheels have it in nvidia/cu13/lib (CUDA 13) or nvidia/cuda_nvrtc/lib (CUDA 12), PyTorch's in torch/lib where it brings its own, and
conda in the lib of the environment. Nothing is imported or opened here.
"""
import importlib.machinery
import os
import pathlib
import sys

NAMES = ("libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12")
_FOLDERS = ("nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib", "torch/lib")


def directories() -> list[str]:
    """The directories that have NVRTC, in the order in which they are to be tried: as Python looks for packages, then the environment's own.

    Only directories of installed packages count, and the one of PyTorch; so nothing is loaded from a current directory. What this user cannot
    look into has none.
    """
    sites = [pathlib.Path(entry) for entry in sys.path if pathlib.Path(entry).name in ("site-packages", "dist-packages")]
    torch = importlib.machinery.PathFinder.find_spec("torch", [entry for entry in sys.path if os.path.isabs(entry)])
    if torch is not None and torch.origin:
        sites.append(pathlib.Path(torch.origin).parents[1])
    found = [site / folder for site in sites for folder in _FOLDERS] + [pathlib.Path(sys.prefix) / "lib"]
    return list(dict.fromkeys(str(folder) for folder in found if any(os.path.isfile(folder / name) for name in NAMES)))


def environment() -> dict[str, str]:
    """What the environment of the program needs beside that of this process, so that it finds the NVRTC that this process would."""
    if os.environ.get("LEANATTN_NVRTC_LIB") or os.environ.get("LEANATTN_NVRTC_DIR"):
        return {}
    return {"LEANATTN_NVRTC_DIR": folder for folder in directories()[:1]}
