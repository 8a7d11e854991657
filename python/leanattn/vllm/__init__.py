"""leanattn as an attention backend of vLLM.

    vllm serve MODEL --attention-backend CUSTOM

vLLM calls register() by itself, through the entry point group "vllm.general_plugins". With LEANATTN_VLLM_RECURRENT=1 layers that keep a recurrent state
decode on leanattn, too. A step is one launch where there are kernels for prefill. Else
only requests with few query tokens run on leanattn. docs/how-to/vllm.md says which rows are computed by whom, and what is supported. Each tried
version of vLLM has a module of its own, with what its interface has beyond the others'; the rest is shared.
"""
import importlib
import logging
import os

from .._serving.versions import Versions

TRIED = {"0.26": "v026", "0.33": "v033"}  #: versions of vLLM, and the module that is written for each
ANYWAY = "LEANATTN_VLLM_UNTRIED"
CONTEXT = "LEANATTN_VLLM_CONTEXT"
TUNE = "LEANATTN_VLLM_TUNE"
RECURRENT = "LEANATTN_VLLM_RECURRENT"

_logger = logging.getLogger("vllm.leanattn")  # below vLLM's own logger, so that its handlers apply
_versions = Versions("vLLM", TRIED, anyway=ANYWAY, flag="--attention-backend", logger=_logger)


def register():
    """Makes the backends CUSTOM of vLLM those of leanattn. Never raises, because vLLM calls it for every model, whatever backend that uses."""
    try:
        from vllm.v1.attention.backends.mla.prefill.registry import MLAPrefillBackendEnum, register_mla_prefill_backend
        from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

        for custom, path, put in ((AttentionBackendEnum.CUSTOM, f"{__name__}.Backend", register_backend),
                                  (MLAPrefillBackendEnum.CUSTOM, f"{__name__}.LatentPrefill", register_mla_prefill_backend)):
            if custom.is_overridden() and custom.get_path() != path:
                _logger.warning("leanattn is not the backend CUSTOM, because %s is; VLLM_PLUGINS says which plugins are loaded", custom.get_path())
                continue
            put(custom, path)
    except (ImportError, AttributeError, TypeError) as error:
        _versions.warn_not_registered(error)
    if os.environ.get(RECURRENT) == "1":
        _register_recurrent()


def _register_recurrent():
    """Has vLLM make leanattn's layers with a recurrent state. Where that fails they stay vLLM's, with a warning."""
    try:
        import vllm

        importlib.import_module(f"{__name__}.recurrent").register(module_for(vllm.__version__))
    except Exception as error:  # whatever a vLLM raises whose layers are others
        _logger.warning("layers with a recurrent state stay vLLM's: %s", error)


def module_for(version):
    """The name of the module for a version of vLLM. Raises RuntimeError, with what to do, where none was ever tried with it."""
    return _versions.module_for(version)


def __getattr__(name):
    if name not in ("Backend", "LatentPrefill"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import vllm

    module = importlib.import_module(f"{__name__}.{module_for(vllm.__version__)}")
    return getattr(module, name if name == "LatentPrefill" else f"{_kind_of_attention()}Backend")


def _kind_of_attention():
    """Of the model that vLLM is making: "Latent" (MLA), "Selected" (MLA whose query tokens see what an indexer chose), or "". Backends have an interface
    of their own for each."""
    from vllm.config.vllm import get_current_vllm_config_or_none

    config = get_current_vllm_config_or_none()
    model = None if config is None else config.model_config
    if model is None or not model.use_mla:
        return ""
    return "Selected" if hasattr(model.hf_config, "index_topk") else "Latent"
