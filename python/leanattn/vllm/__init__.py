"""leanattn as an attention backend of vLLM.

    vllm serve MODEL --attention-backend CUSTOM

vLLM calls register() by itself, through the entry point group "vllm.general_plugins". Requests with few query tokens run on leanattn, all others
on the FlashAttention that vLLM brings. docs/how-to/vllm.md says what is supported. Each tried version of vLLM has a module of its own, with what
its interface has beyond the others'; the rest is shared.
"""
import importlib
import logging
import os

TRIED = {"0.26": "v026", "0.33": "v033"}  #: versions of vLLM, and the module that is written for each
ANYWAY = "LEANATTN_VLLM_UNTRIED"

_logger = logging.getLogger("vllm.leanattn")  # below vLLM's own logger, so that its handlers apply
_PATH = f"{__name__}.Backend"


def register():
    """Makes the backend CUSTOM of vLLM that of leanattn. Never raises, because vLLM calls it for every model, whatever backend that uses."""
    try:
        from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

        custom = AttentionBackendEnum.CUSTOM
        if custom.is_overridden() and custom.get_path() != _PATH:
            _logger.warning("leanattn is not the backend CUSTOM, because %s is; VLLM_PLUGINS says which plugins are loaded", custom.get_path())
            return
        register_backend(custom, _PATH)
    except (ImportError, AttributeError, TypeError) as error:
        _logger.warning("leanattn is not registered: this vLLM has another interface for backends (%s). %s", error, _tried())


def module_for(version):
    """The name of the module for a version of vLLM. Raises RuntimeError, with what to do, where none was ever tried with it."""
    release = ".".join(str(version).split("+")[0].split(".")[:2])
    if release in TRIED:
        return TRIED[release]
    if os.environ.get(ANYWAY) == "1":
        nearest = _nearest(release)
        _logger.warning("leanattn was never tried with vLLM %s, and goes on as with %s because %s=1", version, nearest, ANYWAY)
        return TRIED[nearest]
    # Not an ImportError, of which vLLM would show the name only.
    raise RuntimeError(f"leanattn was never tried with vLLM {version}. {_tried()} Use one of these, or choose another --attention-backend; "
                       f"{ANYWAY}=1 tries it all the same")


def _tried():
    return f"It is written for vLLM {' and '.join(f'{version}.*' for version in TRIED)}."


def _nearest(release):
    """The newest tried version that is not newer; the newest of all for a version without numbers, as builds from source may have."""
    if not all(part.isdigit() for part in release.split(".")):
        return max(TRIED, key=_numbers)
    return max((tried for tried in TRIED if _numbers(tried) <= _numbers(release)), key=_numbers, default=min(TRIED, key=_numbers))


def _numbers(release):
    return [int(part) for part in release.split(".")]


def __getattr__(name):
    if name != "Backend":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import vllm

    return importlib.import_module(f"{__name__}.{module_for(vllm.__version__)}").Backend
