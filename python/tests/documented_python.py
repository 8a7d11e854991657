"""documented_python.py -- runs a block of the documentation, given on standard input, on a GPU that is not there.

The package is the real one, and so is what it does up to the driver. PyTorch, Transformers and FlashInfer are stand-ins, there or not: of them only what
makes tensors does anything. A block may take for granted what its page says before it: the package, a step's tensors, a model's name and class.
"""
import ctypes
import sys
from types import SimpleNamespace
from unittest.mock import MagicMock

import _fake_gpu
from fake_tensors import TYPES, FakeTensor
from rank_threads import Ranks


class Tensor(FakeTensor):
    def __iter__(self):
        return (Tensor(self.shape[1:], self.dtype) for _ in range(self.shape[0]))

    def __getitem__(self, index):
        if isinstance(index, tuple) and index[0] == slice(None) and isinstance(index[1], int):  # of the second dimension
            return self._part((self.shape[0], *self.shape[2:]), (self.strides[0], *self.strides[2:]), index[1] * self.strides[1])
        if not (isinstance(index, tuple) and index[0] is Ellipsis):
            return self
        if isinstance(index[1], int):  # one column
            return self._part(self.shape[:-1], self.strides[:-1], index[1])
        first, end, _ = index[1].indices(self.shape[-1])
        return self._part((*self.shape[:-1], end - first), self.strides, first)

    def _part(self, shape, strides, offset):
        made = Tensor(shape, self.dtype, strides=strides, device_id=self.device_id)
        made.memory, made.data = self.memory, self.data + offset * TYPES[self.dtype][1] // 8
        return made

    def view(self, dtype):  # of bytes as words
        made = self._part((*self.shape[:-1], self.shape[-1] // 4), tuple(stride // 4 for stride in self.strides[:-1]) + (1,), 0)
        made.dtype = dtype
        return made

    def as_strided(self, shape, strides):
        return self._part(shape, strides, 0)

    def unflatten(self, dimension, sizes):
        inner = [self.strides[dimension]]
        for size in reversed(sizes[1:]):
            inner.insert(0, inner[0] * size)
        return self._part((*self.shape[:dimension], *sizes, *self.shape[dimension + 1:]), (*self.strides[:dimension], *inner, *self.strides[dimension + 1:]), 0)

    def transpose(self, a, b):
        order = list(range(len(self.shape)))
        order[a], order[b] = b, a
        return self._part([self.shape[i] for i in order], [self.strides[i] for i in order], 0)


torch = MagicMock(bfloat16="bf16", int32="int32", uint8="uint8", float32="fp32")
torch.testing = MagicMock(unsafe=True)  # has names that begin with "assert"
ranks = Ranks(2)  # a block that uses torch.distributed runs on two of them
torch.distributed = sys.modules["torch.distributed"] = ranks


class SymmetricMemory:
    """Of PyTorch, between the ranks."""

    def empty(self, size, dtype, device):
        made = Tensor((size,), dtype, device_id=int(device.removeprefix("cuda:")))
        made.memory = ctypes.create_string_buffer(size + 256)
        made.data = (ctypes.addressof(made.memory) + 255) // 256 * 256
        made.data_ptr = lambda: made.data
        return made

    def rendezvous(self, memory, group):
        mapped = [None] * ranks.size
        ranks.all_gather_object(mapped, memory.data, group)
        return SimpleNamespace(buffer_ptrs=mapped)


ranks._symmetric_memory = SymmetricMemory()
torch.cuda.current_device = lambda: getattr(ranks.mine, "rank", 0)
torch.randn = lambda *shape, device, dtype: Tensor(shape, dtype, device_id=torch.cuda.current_device())
torch.full = lambda shape, value, device, dtype: Tensor(shape, dtype, device_id=torch.cuda.current_device())
sys.modules["torch"] = torch
for module in ("flashinfer", "transformers", "transformers.integrations", "transformers.integrations.sdpa_attention", "transformers.masking_utils"):
    sys.modules[module] = MagicMock()
sys.modules["transformers.generation"] = MagicMock()
sys.modules["transformers.generation.continuous_batching"] = MagicMock(
    PagedAttentionCache=type("PagedAttentionCache", (), {"update": lambda self, key_states, value_states, layer_idx, kwargs: None}))
sys.modules["transformers.models.qwen3_next.modeling_qwen3_next"] = MagicMock()
for made in ("and_masks", "sliding_window_overlay"):
    setattr(sys.modules["transformers.masking_utils"], made, lambda *_: lambda *_: True)  # what they make is told by its code object

import leanattn  # noqa: E402  (after what stands in for its frameworks)

_fake_gpu.reset()
_fake_gpu.set_devices(2, True)
model_class = MagicMock()
PAGES = [Tensor((40, 16, 2, 64)) for _ in range(2)]  # token-major, as FlashInfer has them by default
text = sys.stdin.read()
block = compile(text, "block", "exec")
said = {"leanattn": leanattn, "q": Tensor((3, 8, 64)), "k_cache": Tensor((3, 2, 256, 64)), "v_cache": Tensor((3, 2, 256, 64)),
        "context_lengths": Tensor((3,), "int32"), "k_pages": PAGES[0], "v_pages": PAGES[1], "layers": [SimpleNamespace(k_pages=PAGES[0], v_pages=PAGES[1])] * 2,
        "indptr": Tensor((4,), "int32"), "indices": Tensor((20,), "int32"), "last_page_len": Tensor((3,), "int32"), "page_size": 16, "num_qo_heads": 8,
        "num_kv_heads": 2, "head_dim": 64, "workspace_buffer": Tensor((1 << 20,), "uint8"), "name": "a/model", "AutoModelForCausalLM": model_class}
if "torch.distributed" in text:
    for failure in filter(None, ranks.run(lambda rank: exec(block, dict(said)))):
        raise failure
else:
    exec(block, said)

registered = [call.args[0] for call in sys.modules["transformers"].AttentionInterface.register.call_args_list]
for call in model_class.from_pretrained.call_args_list:
    assert call.kwargs["attn_implementation"] in registered, f"{call.kwargs['attn_implementation']} is not among {registered}"
