"""Derives what `leanattn --model-config` knows of each model type: where a type has its decoder, what the fields of its
layers are called, what they are where a file leaves them out, and which layers are of which kind.

Of each type a small model is probed, then the same model with one field changed after the other. What a layer then has
is explained by expressions over the fields (fit.py).
"""

import contextlib
import dataclasses
import inspect
import json
import re
import signal
import time
from pathlib import Path

import transformers

from fit import evaluate, first_of, fit
from probe import CONFIG_MAPPING, Layer, layers_of, modeling_auto

RELEVANT = re.compile(
    r"head|kv|key_value|^d_model$|^dim$|^emb_dim$|hidden_size$|embd$|^embed_dim$|window|chunk|lora|rope_head|topk|budget|soft|cap$|block_size|"
    r"num_hidden_layers|n_layers?$|decoder_layers$|^num_layers$|num_decoder_layers|sink|alibi|bidirectional|multi_query|"
    r"new_decoder|is_decoder|query_group|window_size|local|index|compress")
IRRELEVANT = re.compile(
    r"^encoder_|mamba|linear_|vision|audio|image|expert|router|token_id|token_index|head_bias|dropout|conv|rotary|cross_"
    r"|tie_|interleave|num_labels|initializer|layerdrop|prediction_head|pooler|classif|n_mtp|num_mtp|lm_head|q_lora|ple_"
    r"|hidden_size_per|bos|eos|depth|projector|cpb|summary|xpath|speech|decoder_ffn|ffn|mlp|moe|gate|conf_|head_ratio"
    r"|pad_head|topk_group|n_group|num_kv_shared|num_blocks|index_n_heads|index_head|index_kpool|block_size$|n_head_layers|use_head|chunk_size_feed|mem_|rope_theta|mimo_audio|codebook|adapter|lightning|talker|vocoder")
DECODES = ("CAUSAL_LM", "SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ", "IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM",
           "TEXT_TO_WAVEFORM", "CAUSAL_IMAGE_MODELING", "TEXT_TO_SPECTROGRAM")
LISTS = ("layer_types", "layers_block_type", "block_types", "attention_layers", "attn_layers", "hybrid_layer_types")
# What models ask of configs that do not declare it: getattr(config, "head_dim", None).
UNDECLARED = ("head_dim",)
NESTED = ("attn_config", "linear_attn_config")
# Decoders that no auto class of text has: parts of other models, and models of speech.
MORE = ("gemma4_assistant", "nougat", "blt_local_decoder", "clvp", "clvp_decoder", "csm_depth_decoder_model", "glm_image", "glm_image_text", "mimi", "mimi_decoder",
        "moshi_depth", "muse_glimmer_assistant", "qwen2_5_omni_talker", "qwen3_omni_moe_talker", "qwen3_omni_moe_talker_code_predictor",
        "qwen3_omni_moe_talker_text", "rag")
ROLES = [f.name for f in dataclasses.fields(Layer) if f.name not in ("declared", "compressed", "watched")]
BY_HAND = json.loads((Path(__file__).parent / "by_hand.json").read_text())


def raw_defaults(config_class):
    """The fields of a config as its class declares them, before anything is computed."""
    result = {}
    for field in dataclasses.fields(config_class):
        if field.default is not dataclasses.MISSING:
            result[field.name] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            result[field.name] = field.default_factory()
        else:
            result[field.name] = None
    return result


def attribute(config, name):
    """An attribute, or None where layers differ in it."""
    try:
        return getattr(config, name, None)
    except Exception:
        return None


def kind_of(value, annotation):
    if isinstance(value, bool) or (value is None and "bool" in str(annotation)):
        return "flag"
    if isinstance(value, (int, float)) or (value is None and re.search(r"\bint\b|\bfloat\b|None$|^None", str(annotation))):
        return "number"
    return None


class Type:
    """One model type, and what is found out about it."""

    def __init__(self, name):
        self.name = name
        self.config_class = CONFIG_MAPPING[name]
        self.raw = raw_defaults(self.config_class)
        annotations = {f.name: f.type for f in dataclasses.fields(self.config_class)}
        self.needs = BY_HAND["needs"].get(name, {})
        base = self.config_class(**self.needs)
        for nested in NESTED:
            inner = getattr(base, nested, None)
            if inner is not None:
                for key, value in (inner if isinstance(inner, dict) else inner.to_dict()).items():
                    if isinstance(value, (int, float, type(None))):
                        self.raw[f"{nested}.{key}"] = value
                        annotations[f"{nested}.{key}"] = "int | None" if value is None else type(value).__name__
        source = inspect.getsource(self.config_class)
        for found in re.finditer(r'kwargs\.(?:pop|get)\("(\w+)"(?:, (-?\d+|None))?\)', source):
            if found[1] not in self.raw:  # fields that a class takes without declaring them
                self.raw[found[1]] = int(found[2]) if found[2] and found[2] != "None" else None
                annotations[found[1]] = "int | None"
        for name in UNDECLARED:
            if name not in self.raw and name not in self.config_class.attribute_map:
                self.raw[name] = None
                annotations[name] = "int | None"
        self.fields, self.flags = {}, []
        for name, value in self.raw.items():
            kind = kind_of(value, annotations.get(name))
            if kind and RELEVANT.search(name) and not IRRELEVANT.search(name):
                if kind == "flag":
                    self.flags.append(name)
                else:
                    self.fields[name] = "number"
        self.base = base
        self.failures = 0

    def make(self, changes):
        keywords = {k: v for k, v in self.needs.items() if k not in NESTED}
        nested = {k: dict(v) for k, v in self.needs.items() if k in NESTED}
        for name, value in changes.items():
            if "." in name:
                outer, inner = name.split(".")
                nested.setdefault(outer, {})[inner] = value
            else:
                keywords[name] = value
        config = self.config_class(**keywords, **nested)
        config = config if config.is_encoder_decoder else config.get_text_config(decoder=True)
        return config

    def probe(self, changes):
        """What each layer has under these fields: (kinds of all layers, of each kind the values of its roles)."""
        config = self.make(changes)
        calls, _ = layers_of(config)
        seen = {}
        for (index, *_), layer in calls:
            seen.setdefault(index, layer)
        count = self.count(config) or (max(seen) + 1 if seen else 0)
        kinds = self.list_of(config, count)
        if kinds is None:
            kinds = ["attention" if i in seen else "other" for i in range(count)]
        values = {}
        for index, layer in seen.items():
            if index >= len(kinds):
                continue
            values.setdefault(kinds[index], []).append(layer)
        return kinds, values

    def count(self, config):
        for name in ("num_hidden_layers", "n_layer", "n_layers", "decoder_layers", "num_layers", "num_decoder_layers"):
            if config.is_encoder_decoder and isinstance(getattr(config, "decoder_layers", None), int):
                return config.decoder_layers
            if config.is_encoder_decoder and isinstance(getattr(config, "num_decoder_layers", None), int):
                return config.num_decoder_layers
            if isinstance(attribute(config, name), int):
                return attribute(config, name)
        return None

    def list_of(self, config, count):
        for name in LISTS:
            found = attribute(config, name)
            if isinstance(found, (list, tuple)) and len(found) == count and all(isinstance(v, str) for v in found):
                self.list_name = name
                return list(found)
        return None

    def shrunk(self, kinds):
        """Changes that leave one or two layers of each kind."""
        distinct = list(dict.fromkeys(kinds))
        changes = {}
        listed = getattr(self, "list_name", None)
        if listed in self.raw and len(distinct) >= 1:
            changes[listed] = distinct
        elif len(distinct) > 1:
            return {}
        for name in ("decoder_layers", "num_decoder_layers", "num_hidden_layers", "n_layer", "n_layers", "num_layers"):
            if name in self.raw:
                changes[name] = len(changes[listed]) if listed in changes else 2
                break
        if "encoder_layers" in self.raw:
            changes["encoder_layers"] = 1
        return changes

    def alternatives(self, name):
        value = self.raw[name]
        base = attribute(self.base, name) if "." not in name else value
        if value is None and isinstance(base, (int, float)) and not isinstance(base, bool) and base:
            value = base
        if re.search("layers|n_layer", name):
            return []
        if re.search(r"key_value|kv_heads|kv_n_heads|group", name):
            return [v for v in ((value // 2, value * 2) if value and value > 1 else (2, 4)) if v]
        if re.search("window|chunk|topk|budget|block_size", name):
            return [value + 16, value * 2] if value else [48, 64]
        if re.search(r"soft|cap$", name):
            return [value + 5.0 if value else 30.0]
        if re.search(r"num_|n_head|heads", name):
            return [value * 2, value // 2] if value else [4]
        return [value * 2, value + 32, value * 3] if value else [96, 64]

    def sample(self, changes, samples):
        try:
            kinds, values = self.probe(changes)
        except Exception as error:
            self.failures += 1
            self.last_failure = f"{type(error).__name__}: {str(error)[:150]}"
            return None
        given = {**self.raw, **self.needs, **changes}
        samples.append((given, kinds, values))
        return values

    def learn(self, base_kinds):
        samples = []
        shrunk = self.shrunk(base_kinds)
        first = None
        listed = getattr(self, "list_name", None)
        usual = {"full_attention", "sliding_attention"} & set(base_kinds)
        missing = [] if not usual else [k for k in ("full_attention", "sliding_attention") if listed in shrunk and k not in shrunk[listed]]
        if missing and ("sliding_window" in self.fields or "full_attention" in missing):  # kinds that published files may have
            more = {**shrunk, listed: shrunk[listed] + missing}
            more.update({name: len(more[listed]) for name in shrunk if name != listed and name != "encoder_layers"})
            if "sliding_attention" in missing and self.raw.get("sliding_window") is None:
                more["sliding_window"] = 64
            if "use_sliding_window" in self.flags:
                more["use_sliding_window"] = True
            first = self.sample(more, samples)
            if first is not None:
                shrunk = more
        if first is None:
            first = self.sample(shrunk, samples) if shrunk else None
        if first is None:
            shrunk = {}
            if self.sample({}, samples) is None:
                raise RuntimeError(self.last_failure)
            first = samples[0][2]
        started = time.process_time()
        changed = []
        for name in self.fields:
            if time.process_time() - started > 60:
                break
            for value in self.alternatives(name):
                values = self.sample({**shrunk, name: value}, samples)
                if values is not None:
                    if values != first:
                        changed.append(name)
                    break
            if self.raw[name] is not None and not re.search("layers$|attention_heads$|hidden", name) and "None" in str(next((f.type for f in dataclasses.fields(self.config_class) if f.name == name), "")):
                self.sample({**shrunk, name: None}, samples)
        for name in self.flags:
            switched = {**shrunk, name: not {**self.raw, **self.needs}[name]}
            values = self.sample(switched, samples)
            if values is not None and values != first:  # the fields that this flag lets count
                for other in self.fields:
                    if re.search("window|kv|key_value|chunk", other):
                        for value in self.alternatives(other)[:1]:
                            self.sample({**switched, other: value}, samples)
        for name in [n for n in self.fields if re.search("head_dim|d_kv|kv_channels|key_value|kv_heads|window", n) and self.raw[n] is not None]:
            if any(s[0][name] is None for s in samples):
                for other in changed:
                    if re.search("hidden_size|d_model|embd|heads", other) and other != name:
                        for value in self.alternatives(other)[:2]:
                            self.sample({**shrunk, name: None, other: value}, samples)
        return samples

    def explain(self, samples):
        """Of each kind, its roles as lists of expressions; and what could not be explained."""
        kinds, unexplained = {}, []
        if not any(layer.declared for layers in samples[0][2].values() for layer in layers):
            samples = [s for s in samples if not any(layer.declared for layers in s[2].values() for layer in layers)]
        names = dict.fromkeys(k for _, _, values in samples for k in values)
        for kind in names:
            roles = {}
            for role in ROLES:
                seen = []
                for given, _, values in samples:
                    found = {getattr(layer, role) for layer in values.get(kind, [])}
                    if len(found) == 1 and min(found) >= 0:
                        value = found.pop()
                        seen.append((given, int(value) if isinstance(value, bool) or value == int(value) else value))
                if not seen:
                    continue
                chain = fit(role, seen, self.fields, self.flags)
                if chain is None:  # flags that change what a model is are left to those who set them
                    usual = [s for s in seen if all(s[0][f] == seen[0][0][f] for f in self.flags)]
                    chain = fit(role, usual, self.fields, [])
                if chain is None:
                    unexplained.append((kind, role))
                    chain = [str(seen[0][1])]
                if chain:
                    roles[role] = chain
            if roles.get("v") == roles.get("dim"):
                roles.pop("v", None)
            kinds[kind] = roles
        return kinds, unexplained


def text_types():
    """The types whose models decode text, or are the decoder within another."""
    names = set(MORE)
    for task in DECODES:
        names |= set(getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES"))
    for name in sorted(names):
        with contextlib.suppress(Exception):
            inner = decoder_within(CONFIG_MAPPING[name](**BY_HAND["needs"].get(name, {})))
            names.add(inner[1] if inner else name)
    classes = {CONFIG_MAPPING[name] for name in names & set(CONFIG_MAPPING.keys())}
    return sorted(name for name in CONFIG_MAPPING.keys() if CONFIG_MAPPING[name] in classes)  # aliases as well


def decoder_within(base):
    """Where a config of several parts has the one that decodes: (field, its type)."""
    if isinstance(getattr(base, "decoder_config", None), transformers.PreTrainedConfig) and "decoder_config" in getattr(base, "sub_configs", {}):
        return "decoder_config", base.decoder_config.model_type
    text = None
    try:
        text = base.get_text_config(decoder=True)
    except Exception:
        pass
    subs = {k: getattr(base, k, None) for k in getattr(base, "sub_configs", {})}
    for field in subs:
        if text is not None and text is not base and subs[field] is text:
            return field, text.model_type
    for field in ("thinker_config", "text_config", "decoder", "language_config", "llm_config", "generator", "semantic_config"):
        inner = getattr(base, field, None)
        if isinstance(inner, transformers.PreTrainedConfig) and field in vars(base):
            return field, inner.model_type
    for field, inner in subs.items():  # one level further down
        if base.is_encoder_decoder or re.search("encoder|vision|audio|speech|qformer", field):
            continue
        if isinstance(inner, transformers.PreTrainedConfig) and text is not None and text is not base:
            return field, inner.model_type
    return None


def derive(cache, names):
    """Probes these types and keeps what was seen in the folder `cache`, from where it is taken the next time."""
    for name in names:
        file = cache / f"{name}.json"
        if file.exists():
            continue
        signal.setitimer(signal.ITIMER_PROF, 240)  # of the processor's time: what else runs changes nothing
        try:
            t = Type(name)
            if decoder_within(t.base):
                continue  # its decoder has a type
            kinds, _ = t.probe({})
            seen = t.learn(kinds)
            result = {"kinds": kinds, "list": getattr(t, "list_name", None), "samples": [
                [{k: v for k, v in given.items() if k in t.fields or k in t.flags or k.endswith(("layers", "n_layer"))}, kinds_,
                 {k: [dataclasses.asdict(layer) for layer in v] for k, v in values.items()}] for given, kinds_, values in seen]}
        except Exception as error:
            result = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        file.write_text(json.dumps(result))


def slow(*_):
    raise TimeoutError("slow")
