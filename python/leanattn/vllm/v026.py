"""v026.py -- what the interface of vLLM 0.26 has beyond the shared part: cascade attention, and its fields in the metadata."""
from .backend import BackendBase, BuilderBase


class Builder(BuilderBase):
    required_fields = {"use_cascade": False, "common_prefix_len": 0, "cu_prefix_query_lens": None, "prefix_kv_lens": None, "suffix_kv_lens": None}

    def use_cascade_attention(self, *args, **kwargs):
        return False


class Backend(BackendBase):
    @staticmethod
    def get_builder_cls():
        return Builder
