"""leanattn as an attention backend of SGLang.

    sglang serve --model-path MODEL --attention-backend leanattn

SGLang calls register() by itself, through the entry point group "sglang.srt.plugins". Decode steps, prefill and the verification of drafts run on
leanattn; docs/how-to/sglang.md says what is left to the FlashAttention that SGLang brings. Each tried version of SGLang has a module of its
own, with what its interface has beyond the others'; the rest is shared. With LEANATTN_SGLANG_RECURRENT=1 layers that keep a recurrent state decode on
leanattn, too.
"""
import importlib
import logging
import os

from .._serving.versions import Versions

NAME = "leanattn"  #: of --attention-backend
TRIED = {"0.5.12": "v0512", "0.5.16": "v0516", "0.5.23": "v0523"}  #: versions of SGLang, and the module that is written for each
ANYWAY = "LEANATTN_SGLANG_UNTRIED"
CONTEXT = "LEANATTN_SGLANG_CONTEXT"
RECURRENT = "LEANATTN_SGLANG_RECURRENT"

_logger = logging.getLogger(__name__)
_versions = Versions("SGLang", TRIED, anyway=ANYWAY, flag="--attention-backend", logger=_logger)


def register():
    """Adds the backend "leanattn" to those of SGLang. Never raises, because SGLang calls it for every model, whatever backend that uses."""
    if os.environ.get(RECURRENT) == "1":
        _register_recurrent()
    try:
        from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS, register_attention_backend
        from sglang.srt.server_args import (ATTENTION_BACKEND_CHOICES, DETERMINISTIC_ATTENTION_BACKEND_CHOICES, add_attention_backend_choices,
                                            add_deterministic_attention_backend_choices)
    except ImportError as error:
        _versions.warn_not_registered(error)
        return
    if NAME in ATTENTION_BACKENDS and ATTENTION_BACKENDS[NAME] is not create:
        _logger.warning("leanattn is not registered, because the backend %r is %s already; SGLANG_PLUGINS says which plugins are loaded", NAME,
                        ATTENTION_BACKENDS[NAME])
        return
    register_attention_backend(NAME)(create)
    for choices, add in ((ATTENTION_BACKEND_CHOICES, add_attention_backend_choices),
                         (DETERMINISTIC_ATTENTION_BACKEND_CHOICES, add_deterministic_attention_backend_choices)):
        if NAME not in choices:
            add([NAME])


def _register_recurrent():
    """Registers the hooks for layers with a recurrent state. Where that fails they stay SGLang's, with a warning."""
    try:
        importlib.import_module(f"{__name__}.recurrent").register()
    except Exception as error:  # whatever an SGLang raises whose layers are others
        _logger.warning("layers with a recurrent state stay SGLang's: %s", error)


def create(model_runner):
    """The backend for a ModelRunner. Raises RuntimeError for a version of SGLang that was never tried, and ValueError for a model that leanattn
    cannot serve; both say what to do."""
    import sglang

    return importlib.import_module(f"{__name__}.{module_for(sglang.__version__)}").Backend.for_runner(model_runner)


def module_for(version):
    """The name of the module for a version of SGLang. Raises RuntimeError, with what to do, where none was ever tried with it."""
    return _versions.module_for(version)
