"""A second witness of what the layers of a model are, beside probe.py: a small instance of it runs on the CPU with random
weights, and what it returns is read: its attention weights, which show heads, windows, chunks and sinks, and its cache,
which shows KV heads and head sizes.
"""

import inspect
import re

import torch
import transformers
from transformers.initialization import no_init_weights

from probe import classes_beside, model_classes

TOKENS = 11
WINDOW = 4
MOST_PARAMETERS = 8e8
COUNTS = re.compile(r"^(num_(hidden_|decoder_)?layers|n_layers?|decoder_layers)$")
WIDTHS = re.compile(r"intermediate_size|ffn_dim|ffn_hidden|n_inner|d_ff|vocab_size")
EXPERTS = re.compile(r"^(moe_)?(num|n)_(local_|routed_)?experts$")
WINDOWS = re.compile(r"^(sliding_window|sliding_window_size|attention_window_size|window_size|attention_chunk_size)$")


def smaller(fields, layers, widths):
    """The fields of a config with short windows, one layer of each kind that it lists, and small MLPs."""
    count = next((v for k, v in fields.items() if COUNTS.match(k) and isinstance(v, int)), 0)
    kinds = next((v for k, v in fields.items() if re.search("types$|block_type$", k) and isinstance(v, list) and len(v) == count), [0] * count)
    kept = sorted(i for kind in dict.fromkeys(map(str, kinds)) for i in [j for j, k in enumerate(kinds) if str(k) == kind][:2 if len(set(map(str, kinds))) == 1 else 1])
    result = {}
    for key, value in fields.items():
        if layers and COUNTS.match(key) and value == count:
            value = len(kept)
        elif layers and isinstance(value, list) and len(value) == count:
            value = [value[i] for i in kept]
        elif layers and key == "per_layer_config":
            value = {str(kept.index(int(i))): v for i, v in (value or {}).items() if int(i) in kept} or None
        elif layers and key == "num_kv_shared_layers":
            value = 0
        elif WINDOWS.match(key) and isinstance(value, int) and value > WINDOW:
            value = WINDOW
        elif widths and WIDTHS.search(key) and isinstance(value, int):
            value = min(value, 128)
        elif widths and EXPERTS.match(key) and isinstance(value, int):
            value = min(value, 16)
        elif widths and key.endswith("_token_id") and isinstance(value, int):
            value = min(value, 3)
        result[key] = value
    return result


def small_models(config, failures):
    """Pairs of a small config and a model of it."""
    for layers, widths in ((True, True), (True, False), (False, True), (False, False)):
        try:
            small = type(config).from_dict(smaller(config.to_dict(), layers, widths))
        except Exception as error:  # the class wants these fields to fit others
            failures.append(f"{type(error).__name__}: {str(error)[:100]}")
            continue
        classes = dict.fromkeys([*model_classes(small), *classes_beside(small)])
        for model_class in sorted(classes, key=lambda c: not re.search("CausalLM|LMHead", c.__name__)):
            try:
                with torch.device("meta"):
                    model = model_class._from_config(small, attn_implementation="eager")
                if sum(p.numel() for p in model.parameters()) > MOST_PARAMETERS:
                    failures.append("large")
                    break
                with no_init_weights():
                    model = model_class._from_config(small, attn_implementation="eager").float().eval()
            except Exception as error:
                failures.append(f"{type(error).__name__}: {str(error)[:100]}")
                continue
            decoder = model.get_decoder() if small.is_encoder_decoder and hasattr(model, "get_decoder") else None
            yield small, decoder if isinstance(decoder, transformers.PreTrainedModel) else model


def layer_shown(weights, keys, values, crosses):
    """(query heads, KV heads, head size, size of values, window, chunk, sinks) of one layer; None where tokens see later
    ones. Weights are [1, heads, tokens, tokens]; what they lack of 1 is that of a sink or, in decoders, of the encoder."""
    seen = (weights[0] > 0).any(dim=0)
    if bool(seen.triu(1).any()):
        return None
    first = [int(row.nonzero()[0]) for row in seen]
    last = len(first) - 1
    moves = sum(a != b for a, b in zip(first, first[1:]))
    window = last + 1 - first[last] if moves == first[last] else 0
    chunk = max(first[i] - first[i - 1] for i in range(1, last + 1)) if not window else 0
    sinks = not crosses and bool((weights[0].sum(dim=-1) < 0.999).any())
    return (weights.shape[1], *((keys.shape[1], keys.shape[3], values.shape[3]) if keys is not None else (0, 0, 0)),
            window if first[last] else 0, chunk, sinks)


def run(model, config):
    noise = torch.randn(1000003, generator=torch.Generator().manual_seed(0))  # repeated, which is fast; the length is a prime
    for parameter in model.parameters():
        flat = parameter.data.view(-1)
        for part in flat.split(len(noise)):
            torch.mul(noise[:len(part)], 0.02 if parameter.dim() > 1 else 0.5, out=part)
    wanted = inspect.signature(model.forward).parameters
    inputs = {"input_ids": torch.arange(4, 4 + TOKENS)[None], "use_cache": True, "output_attentions": True}
    if "encoder_hidden_states" in wanted and (config.is_encoder_decoder or "Decoder" in type(model).__name__):
        own = model.config
        hidden = next(v for v in (getattr(own, n, None) for n in ("cross_attention_hidden_size", "d_model", "hidden_size")) if isinstance(v, int))
        inputs["encoder_hidden_states"] = torch.randn(1, TOKENS + 2, hidden)
    elif config.is_encoder_decoder:
        inputs["decoder_input_ids"] = inputs["input_ids"]
    with torch.no_grad():
        output = model(**inputs)
    weights = output.get("decoder_attentions") or output.get("attentions")
    cache = output.get("past_key_values") if "past_key_values" in output else output.get("cache")
    cache = getattr(cache, "self_attention_cache", cache)
    stored = [(layer.keys, layer.values) for layer in getattr(cache, "layers", ()) if isinstance(getattr(layer, "keys", None), torch.Tensor)]
    weights = [w for w in weights if isinstance(w, torch.Tensor) and w.dim() == 4 and w.shape[2] == w.shape[3] == TOKENS]
    if len(stored) != len(weights):
        stored = [(None, None)] * len(weights)
    return [layer_shown(w.float(), k, v, "encoder_hidden_states" in inputs) for w, (k, v) in zip(weights, stored)]


def shown(config):
    """The fields of the small config and what each of its layers shows; an error where no small model runs."""
    failures = []
    for small, model in small_models(config, failures):
        try:
            layers = run(model, small)
            if layers:
                return small, layers
            failures.append("no weights")
        except Exception as error:
            failures.append(f"{type(error).__name__}: {str(error)[:100]}")
    raise RuntimeError("; ".join(dict.fromkeys(failures)) or "no small model")


def agrees(layers, shapes):
    """Whether what the layers show is what `leanattn models --json` says of the shapes."""
    left = [[shape["layers"], shape] for shape in shapes]

    def fits(layer, shape):
        features = shape["features"]
        q, kv, k_dim, v_dim, window, chunk, sinks = layer
        said = [n if n < TOKENS else 0 for n in (features.get("window", 0), shape["chunk"])]
        if (q, window, chunk, sinks) != (shape["q_heads"], *said, features.get("sink_logits", False)):
            return False
        v_head_dim = features.get("v_head_dim", 0) or shape["head_dim"]
        if features.get("latent") and v_head_dim < shape["head_dim"]:  # kept as latent vectors and rotated columns, or expanded
            return kv != 1 or (k_dim, v_dim) == (v_head_dim, shape["head_dim"] - v_head_dim)
        return kv == 0 or features.get("latent") or (kv, k_dim, v_dim) == (shape["kv_heads"], shape["head_dim"], v_head_dim)

    for layer in layers:
        match = next((one for one in left if layer is not None and one[0] > 0 and fits(layer, one[1])), None)
        if match is None:
            return False
        match[0] -= 1
    return all(count == 0 for count, _ in left)
