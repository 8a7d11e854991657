"""What the attention layers of a model of Transformers are, as the model itself runs them.

A model is built on the meta device, where tensors have shapes and no data, and runs a prompt once. Functions that are
registered for attention and for masks note what reaches them. Models with attention code of their own are watched at
their softmax and at the cache.
"""

import contextlib
import dataclasses
import importlib
import inspect
import itertools
import re
import sys
import warnings
from pathlib import Path

import torch
import transformers
import torch.fx.experimental._config
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map
from transformers import masking_utils
from transformers.cache_utils import Cache
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

torch.fx.experimental._config.meta_nonzero_assume_all_nonzero = True
PROMPT = 7  # tokens; no head count or head size is so small a prime


@dataclasses.dataclass(frozen=True)
class Layer:
    """What one call of attention is. Two layers with equal values are of one kind."""

    q: int
    kv: int
    dim: int
    v: int
    window: int = 0
    chunk: int = 0
    causal: bool = True
    sinks: bool = False
    soft_cap: float = 0
    alibi: bool = False
    position_bias: bool = False
    rank: int = 0  # of the latent vector, from which keys and values are expanded
    rope: int = 0  # columns beside the latent vector
    selected: int = 0  # tokens or blocks that an indexer selects
    prompt_window: bool = False  # sees the prompt beside its window
    k_is_v: bool = False
    compressed: bool = False  # sees compressed tokens beside its window
    declared: bool = False  # read from a module's attributes, because the model did not run
    watched: bool = dataclasses.field(default=False, compare=False)  # seen at a softmax


class Mask(torch.Tensor):
    """A mask that remembers what it hides, through whatever is done with it."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        result = super().__torch_function__(function, types, args, kwargs or {})
        within = [b for a in args for b in (a if isinstance(a, (tuple, list)) else (a,))]
        told = [a.told for a in within if isinstance(a, Mask) and hasattr(a, "told")]
        if isinstance(result, Mask) and told:
            result.told = {key: max(one[key] for one in told) for key in told[0]}
        return result


class Triangles(TorchFunctionMode):
    """Makes masks of triangles, of which some models make their own."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if getattr(function, "__name__", "") == "tril":
            result = result.as_subclass(Mask)
            beyond = max(0, -(args[1] if len(args) > 1 else (kwargs or {}).get("diagonal", 0)))  # a triangle that is cut out leaves a window
            result.told = {"causal": True, "window": beyond, "chunk": 0, "prompt_window": False}
        return result


def told_by(function):
    """The windows and chunks inside a mask function, and whether it is causal."""
    told = {"causal": False, "window": 0, "chunk": 0, "prompt_window": False}
    seen = set()

    def walk(f):
        if not callable(f) or id(f) in seen or not hasattr(f, "__code__"):
            return
        seen.add(id(f))
        told["causal"] |= f is masking_utils.causal_mask_function
        told["prompt_window"] |= "prefill" in f.__qualname__
        free = dict(zip(f.__code__.co_freevars, (c.cell_contents for c in f.__closure__ or ())))
        if f.__qualname__.startswith("sliding_window_overlay."):
            told["window"] = int(free["sliding_window"])
        if f.__qualname__.startswith("sliding_window_bidirectional_overlay."):
            told["window"] = int(next(v for v in free.values() if isinstance(v, int)))
        if f.__qualname__.startswith("chunked_overlay."):
            told["chunk"] = int(free["chunk_size"])
        for value in free.values():
            for one in value if isinstance(value, (tuple, list)) else (value,):
                walk(one)

    walk(function)
    return told


def mask(batch_size=1, q_length=PROMPT, kv_length=PROMPT, mask_function=masking_utils.causal_mask_function, **others):
    result = torch.empty(batch_size or 1, 1, int(q_length or PROMPT), int(kv_length or PROMPT), dtype=torch.bool, device="meta").as_subclass(Mask)
    result.told = told_by(mask_function)
    return result


def number(module, *names):
    for name in names:
        try:
            value = getattr(module, name, None)
        except Exception:  # a field in which layers differ
            continue
        if isinstance(value, bool) or value is None:
            continue
        if isinstance(value, (int, float)):
            return value
    return 0


class Watch(TorchFunctionMode):
    """Notes the calls of attention while a model runs."""

    def __init__(self):
        super().__init__()
        self.calls = []  # (module, Layer, what the module has put into the cache)
        self.cached = {}  # of a module, the shapes of keys and values, and the place in the cache that they went to
        self.product = None  # operands of the last product, which may be that of Q and K
        self.biased = False  # something that differs between heads was added to it
        self.open = None
        self.modules = []
        self.crosses = False  # there is an encoder

    def module(self):
        for module in reversed(self.modules):
            name = type(module).__name__.lower()
            if "attention" in name or "attn" in name:
                return module
        return self.modules[-1] if self.modules else None

    def attention(self, module, query, key, value, attention_mask, scaling=None, dropout=0.0, **kwargs):
        if query.shape[1] == PROMPT:  # not over tokens: over what earlier layers gave, for instance
            return query.new_empty(query.shape[0], query.shape[2], query.shape[1], value.shape[3]), None
        told = getattr(attention_mask, "told", None)
        causal = told["causal"] if told else kwargs.get("is_causal", getattr(module, "is_causal", True))
        window = told["window"] if told else (kwargs.get("sliding_window") or 0)
        sinks = any(kwargs.get(n) is not None for n in ("s_aux", "sinks", "sink")) or any(
            isinstance(getattr(module, n, None), torch.Tensor)
            for n in ("sinks", "sink", "sink_logits", "attn_sink", "attention_sinks", "learnable_sink"))
        biased = kwargs.get("position_bias") is not None or (
            attention_mask is not None and told is None and attention_mask.is_floating_point() and attention_mask.dim() == 4
            and attention_mask.shape[1] > 1)
        cap = kwargs.get("softcap") or 0
        if key.shape[2] != query.shape[2] and not causal and self.crosses:
            return query.new_empty(query.shape[0], query.shape[2], query.shape[1], value.shape[3]), None  # cross-attention
        self.note(module, q=query.shape[1], kv=key.shape[1], dim=query.shape[3], v=value.shape[3], window=window,
                  chunk=told["chunk"] if told else 0, causal=bool(causal), sinks=sinks, soft_cap=float(cap),
                  prompt_window=bool(told and told["prompt_window"]), position_bias=biased, k_is_v=key is value)
        out = query.new_empty(query.shape[0], query.shape[2], query.shape[1], value.shape[3])
        return out, None

    def note(self, module, **fields):
        rank = number(module, "kv_lora_rank", "kv_lora_dim")
        selected = 0
        for name in ("indexer", "lightning_indexer", "index"):
            if isinstance(getattr(module, name, None), torch.nn.Module):
                selected = number(getattr(module, name), "index_topk", "topk", "top_k", "index_topk_blocks", "topk_blocks", "topk_tokens", "token_budget") or 1
        if getattr(module, "skip_topk", False) and self.calls:  # takes what a layer before it selected
            selected = self.calls[-1][1].selected
        fields.setdefault("position_bias", False)
        own = dict(module.named_parameters(recurse=True)) if module is not None else {}
        fields["position_bias"] |= any("relative_attention_bias" in n or "rel_bias" in n for n in own)
        if fields["position_bias"] and any("alibi" in n for n in vars(sys.modules[type(module).__module__])):
            fields.update(alibi=True, position_bias=False)
        self.calls.append((module, Layer(**fields, rank=rank, rope=number(module, "qk_rope_head_dim") if rank else 0,
                                         selected=selected), self.cached.get(id(module))))

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        tensor = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if tensor is not None and tensor.is_meta:  # what a model asks of data that is not there
            if name in ("item", "__int__", "__index__", "__float__"):
                return 0
            if name in ("__bool__", "__contains__"):
                return False
            if name == "tolist":
                return torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu").tolist()
        try:
            result = function(*args, **kwargs)
        except RuntimeError as error:
            if "is not on the expected device" in str(error):  # some tensors are made on the CPU all the same
                args, kwargs = tree_map(lambda a: a.to("meta") if isinstance(a, torch.Tensor) else a, (args, kwargs))
                return self.__torch_function__(function, types, args, kwargs)
            if name not in ("split", "split_with_sizes"):
                raise
            return tensor.chunk(len(args[1]), dim=kwargs.get("dim", args[2] if len(args) > 2 else 0))
        if name in ("zeros", "empty", "new_zeros", "new_empty"):
            result.blank = True
        if name in ("matmul", "__matmul__", "bmm", "baddbmm", "einsum"):
            result = result.as_subclass(torch.Tensor)  # what masked scores are multiplied with is no mask
            operands = [a for a in args if isinstance(a, torch.Tensor)][-2:]
            if name == "baddbmm":
                operands = [kwargs.get("batch1", operands[0]), kwargs.get("batch2", operands[-1])]
            if len(operands) == 2:
                if self.open is not None and operands[0].shape[-1] == self.open[1]:
                    self.close(operands[1])
                self.product = (operands[0], operands[1], result)
                self.biased = name == "baddbmm" and kwargs.get("beta", 1) != 0 and not hasattr(tensor, "blank")
        if name in ("add", "__add__", "__radd__", "add_", "__iadd__") and self.product and isinstance(result, torch.Tensor):
            added = [a for a in args if isinstance(a, torch.Tensor)][-1]
            self.biased |= (result.shape == self.product[2].shape and added.dim() >= 3 and not isinstance(added, Mask)
                            and added.shape[-1] == result.shape[-1] and added.shape[-3] > 1)
        if name in ("softmax", "_softmax") and isinstance(result, torch.Tensor) and result.dim() >= 3 and self.product:
            q, k, scores = self.product
            if result.shape[-1] == scores.shape[-1] and result.shape[-2] == scores.shape[-2]:
                self.open = (result, result.shape[-1], q, k, self.biased)
        if name == "scaled_dot_product_attention":
            q, k, v = args[:3] if len(args) >= 3 else (kwargs["query"], kwargs["key"], kwargs["value"])
            if q.dim() != 4 or q.shape[2] != k.shape[2]:
                return result
            self.note(self.module(), q=q.shape[1], kv=k.shape[1], dim=q.shape[3], v=v.shape[3])
        return result

    def close(self, value):
        result, _, q, k, biased = self.open
        self.open = None
        if result.shape[-1] != result.shape[-2]:
            return  # cross-attention
        heads = result.shape[1] if result.dim() == 4 else result.shape[0]
        told = getattr(result, "told", {})
        self.note(self.module(), q=heads, kv=heads, dim=q.shape[-1], v=value.shape[-1], window=told.get("window", 0),
                  chunk=told.get("chunk", 0), position_bias=biased, watched=True)


def leave(watch):
    def hook(module, inputs, output):
        watch.modules.pop()

    return hook


@contextlib.contextmanager
def watching(model):
    watch = Watch()
    handles = []
    for module in model.modules():
        handles.append(module.register_forward_pre_hook(lambda m, _: watch.modules.append(m)))
        handles.append(module.register_forward_hook(leave(watch), always_call=True))
    updates = {c: c.update for c in all_subclasses(Cache) | {Cache} if "update" in c.__dict__}

    def wrap(update):
        def noted(self, key_states, value_states, layer_idx, *args, **kwargs):
            watch.cached[id(watch.module())] = (key_states.shape, value_states.shape, layer_idx)
            return update(self, key_states, value_states, layer_idx, *args, **kwargs)
        return noted

    for c, update in updates.items():
        c.update = wrap(update)
    ALL_ATTENTION_FUNCTIONS.register("probe", watch.attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register("probe", mask)
    try:
        yield watch
    finally:
        for handle in handles:
            handle.remove()
        for c, update in updates.items():
            c.update = update


def all_subclasses(c):
    return set(c.__subclasses__()).union(*(all_subclasses(s) for s in c.__subclasses__()), set())


MAPPINGS = ("MODEL_FOR_CAUSAL_LM_MAPPING", "MODEL_MAPPING", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING",
            "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING", "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING",
            "MODEL_FOR_MULTIMODAL_LM_MAPPING", "MODEL_FOR_TEXT_TO_WAVEFORM_MAPPING")


def model_classes(config):
    for name in MAPPINGS:
        with contextlib.suppress(KeyError, ImportError, AttributeError, ValueError):
            found = getattr(modeling_auto, name)[type(config)]
            yield from found if isinstance(found, (tuple, list)) else (found,)


def classes_beside(config):
    """Text models that no auto class has, from the modelling files beside the config's; decoders that are built of the
    config of their part last."""
    package, _, _ = type(config).__module__.rpartition(".")
    found = []
    for file in sorted(Path(sys.modules[package].__file__).parent.glob("modeling_*.py")):
        with contextlib.suppress(ImportError):
            found += [c for c in vars(importlib.import_module(f"{package}.{file.stem}")).values()
                      if inspect.isclass(c) and issubclass(c, transformers.PreTrainedModel) and c.__module__ == f"{package}.{file.stem}"]
    own = [c for c in found if getattr(c, "config_class", None) is type(config)]
    for c in own + [c for c in found if "Decoder" in c.__name__]:
        if {"input_ids", "noise_embeds"} & inspect.signature(c.forward).parameters.keys():
            yield c


def build(model_class, config):
    ALL_ATTENTION_FUNCTIONS.register("probe", mask)  # the name must be known; watching() registers the function
    ALL_MASK_ATTENTION_FUNCTIONS.register("probe", mask)
    with torch.device("meta"), Triangles(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module_config in configs_within(config):
            module_config._experts_implementation_internal = "batched_mm"
        try:
            return model_class._from_config(config, attn_implementation="probe").eval()
        except (ValueError, ImportError, KeyError):
            return model_class._from_config(config, attn_implementation="eager").eval()


def configs_within(config):
    yield config
    for name in getattr(config, "sub_configs", {}):
        if isinstance(getattr(config, name, None), transformers.PreTrainedConfig):
            yield from configs_within(getattr(config, name))


# Of inputs beside tokens that some models need, how wide they are.
WIDTHS = {"last_hidden_state": lambda c: c.input_size, "noise_embeds": lambda c: c.hidden_size,
          "t_cond": lambda c: c.hidden_size, "context_hidden_states": lambda c: c.hidden_size * len(c.target_layer_ids)}


def run(model, config, use_cache=True, embedded=False):
    """Runs a prompt through a model of text, and gives the calls of attention: the numbers in the name of the module,
    of which the first is that of the layer, and what was seen."""
    hidden = number(getattr(model, "config", config), "cross_attention_hidden_size", "d_model", "hidden_size", "n_embd", "dim")
    wanted = inspect.signature(model.forward).parameters.keys()
    within = {name for c in {type(m) for m in model.modules()} for name in inspect.signature(c.forward).parameters}
    inputs = {name: torch.zeros(1, PROMPT, dtype=torch.long, device="meta") for name in ("input_ids", "decoder_input_ids") if name in wanted}
    if embedded:
        inputs = {"inputs_embeds": torch.empty(1, PROMPT, hidden, device="meta")}
    inputs.update({name: torch.empty(1, PROMPT, width(config), device="meta") for name, width in WIDTHS.items()
                   if name in wanted or (name == "t_cond" and name in within)})
    if "encoder_hidden_states" in wanted and (getattr(config, "is_encoder_decoder", False) or getattr(config, "add_cross_attention", False)
                                              or "Decoder" in type(model).__name__):
        inputs["encoder_hidden_states"] = torch.empty(1, PROMPT + 4, hidden, device="meta")
    if "use_cache" in wanted:
        inputs["use_cache"] = use_cache
    with watching(model) as watch, watch, torch.no_grad(), torch.device("meta"):
        watch.crosses = bool({"encoder_hidden_states", "decoder_input_ids"} & inputs.keys())
        model(**inputs)
    names = {id(module): name for name, module in model.named_modules()}
    calls = []
    for module, layer, kept in watch.calls:
        name = names.get(id(module), "")
        if config.is_encoder_decoder and "encoder" in name.split("."):
            continue
        if layer.watched and not config.is_encoder_decoder and getattr(config, "is_decoder", True) is False:
            layer = dataclasses.replace(layer, causal=False)
        numbers = tuple(int(part) for part in name.split(".") if part.isdigit())
        if kept:  # what is kept is what the kernels read, before heads are repeated; a layer may run several times and keep all
            keys, _, place = kept
            numbers = (place, *numbers[1:])
            layer = dataclasses.replace(layer, causal=True)
            if len(keys) == 4 and layer.q % keys[1] == 0 and keys[3] == layer.dim:
                layer = dataclasses.replace(layer, kv=keys[1])
        calls.append((numbers or (len(calls),), layer))
    if not all(layer.watched for _, layer in calls):  # a softmax elsewhere is none of attention
        calls = [(numbers, layer) for numbers, layer in calls if not layer.watched]
    return calls


def leave_out_experts(model):
    for module in model.modules():
        if re.search(r"(MLP|Mlp|MoE|Moe|MoeBlock|MOE|Experts|FeedForward|MixerMoe|FFN)$", type(module).__name__):
            module.forward = lambda hidden_states, *args, **kwargs: hidden_states


def declared(model):
    """The same for a model that cannot run without data: what its modules of attention say of themselves."""
    calls = []
    for name, module in model.named_modules():
        if "cross" in name or "encoder_attn" in name or "encoder." in name:
            continue
        q, k, v = (next((getattr(module, n) for n in names if isinstance(getattr(module, n, None), torch.nn.Linear)), None)
                   for names in (("q_proj", "query", "q", "to_q"), ("k_proj", "key", "k", "to_k"), ("v_proj", "value", "v", "to_v")))
        if q is None or k is None or v is None:
            continue
        config = getattr(module, "config", model.config)
        heads = number(module, "num_heads", "num_attention_heads", "n_heads", "num_query_heads") or number(config, "num_attention_heads")
        if not heads or q.out_features % heads:
            continue
        dim = q.out_features // heads
        kv = max(1, k.out_features // dim)
        numbers = [int(part) for part in name.split(".") if part.isdigit()]
        calls.append((tuple(numbers) or (len(calls),),
                      Layer(q=heads, kv=kv, dim=dim, v=v.out_features // kv, window=number(module, "sliding_window"),
                            causal=bool(getattr(module, "is_causal", getattr(config, "is_decoder", True))), declared=True)))
    return calls


def layers_of(config):
    """The Layer of every call of self-attention in the text model of this config, in order, and its class."""
    failures = []
    seen = set()
    for model_class in itertools.chain(model_classes(config), classes_beside(config)):
        if model_class in seen:
            continue
        seen.add(model_class)
        try:
            model = build(model_class, config)
            decoder = model.get_decoder() if config.is_encoder_decoder and hasattr(model, "get_decoder") else None
            model = decoder if isinstance(decoder, transformers.PreTrainedModel) else model
        except Exception as error:  # whatever stops a model is a reason to try another class
            failures.append(f"{model_class.__name__}: {type(error).__name__}: {str(error)[:200]}")
            continue
        for attempt in ("usual", "embedded", "without experts"):
            if attempt == "without experts":
                leave_out_experts(model)
            for use_cache in (True, False):
                try:
                    return run(model, config, use_cache, attempt == "embedded"), model_class
                except Exception as error:
                    failures.append(f"{model_class.__name__}: {type(error).__name__}: {str(error)[:200]}")
        calls = declared(model)
        if calls:
            return calls, model_class
    raise RuntimeError("; ".join(failures) or "no model class")
