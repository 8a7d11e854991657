"""Puts what was derived of all types into data/model_types.json."""

import json
import re
from pathlib import Path

import transformers
from transformers.configuration_utils import _LEGACY_LAYER_TYPE_REMAP

from derive import BY_HAND, CONFIG_MAPPING, RELEVANT, Layer, Type, decoder_within, text_types
from fit import fit
from patterns import pattern_of

NAMES = {"q": "q_heads", "kv": "kv_heads", "dim": "head_dim", "v": "v_head_dim", "rank": "latent_rank", "rope": "rotated_columns"}
COUNTS = ("decoder_layers", "num_decoder_layers", "num_hidden_layers", "n_layer", "n_layers", "num_layers", "layers")


# Kinds of layers that any type may list, and that are no attention.
WORDS = {"linear_attention": "linear attention", "conv": "convolutions", "moe": "experts", "mlp": "MLPs"}
NO_ATTENTION = re.compile("linear_attention|conv|mamba|recurrent|moe|mlp")


def words_of(expression):
    return [w.lstrip("!") for w in expression.split() if re.match("[!A-Za-z_]", w) and not w.startswith("own:")]


def expressions_in(entry):
    for roles in (*entry.get("kinds", {}).values(), *entry.get("recurrent", {}).values()):
        for chain in roles.values() if isinstance(roles, dict) else ():
            yield from chain if isinstance(chain, list) else ()
    yield from entry.get("layers", ())
    for rule in entry.get("pattern", ()):
        for key in ("every", "offset", "from", "nonzero"):
            yield from rule.get(key, ())
        for key in ("flag", "listed", "given", "absent"):
            if key in rule:
                yield rule[key]


def entry_of(name, cached):
    """The entry of a type that was probed, and what of it could not be explained."""
    t = Type(name)
    t.list_name = cached["list"]
    samples = [(given, kinds, {k: [Layer(**one) for one in layers] for k, layers in values.items()})
               for given, kinds, values in cached["samples"]]
    samples = [s for s in samples if not any(s[0].get(n) is None for n in s[0] if n.endswith(("layers", "attention_heads")) and samples[0][0].get(n) is not None)]
    kinds, unexplained = t.explain(samples)
    entry = {"kinds": {}}
    for kind, roles in kinds.items():
        roles = dict(roles)
        if "rank" in roles:  # heads share one row a token, whatever they are expanded to
            for role in ("kv", "dim", "v", "k_is_v"):
                roles.pop(role, None)
            unexplained = [u for u in unexplained if u[1] not in ("kv", "dim", "v")]
        if roles.get("prompt_window") == ["1"]:  # the window is of the tokens behind the prompt
            roles.pop("window")
        if roles.get("causal") == ["1"]:
            roles.pop("causal")
        elif "causal" not in roles:
            return None, ["encodes"]
        entry["kinds"][kind] = {NAMES.get(role, role): chain for role, chain in roles.items()}
    if t.base.is_encoder_decoder and not cached["list"]:
        entry["kinds"].pop("other", None)
        cached["kinds"] = ["attention"] * len(cached["kinds"])
    usual = {"full_attention", "sliding_attention"}
    for kind in usual if not usual & set(cached["kinds"]) else ():  # tried, and no kind of this type
        entry["kinds"].pop(kind, None)
    for kind in dict.fromkeys(cached["kinds"]):
        entry["kinds"].setdefault(kind, None)
        if NO_ATTENTION.search(kind):
            entry["kinds"][kind] = None
    count = next((c for c in COUNTS if c in t.raw), None)
    if t.base.is_encoder_decoder is False and "decoder_layers" == count and "num_hidden_layers" in t.raw:
        count = "num_hidden_layers"
    if count:
        counts = [c for c in COUNTS[COUNTS.index(count):] if c in t.raw]
        given = next((i for i, c in enumerate(counts) if t.raw[c] is not None), 0)
        entry["layers"] = counts[:given + 1]
    if len(entry["kinds"]) > 1 or cached["list"]:
        if cached["list"]:
            entry["lists"] = [cached["list"]]
        rules = pattern_of(t, count) if cached["list"] else None
        if rules is None:
            runs = {}
            for i, kind in enumerate(cached["kinds"]):
                runs.setdefault(kind, []).append(i)
            usual = max(runs, key=lambda k: len(runs[k]))
            rules = [{"of": len(cached["kinds"]), "at": at, "kind": kind} for kind, at in runs.items() if kind != usual]
            rules += [{"of": len(cached["kinds"]), "kind": usual}, {"unknown": cached["list"] or "layer_types"}]
        if len(entry["kinds"]) > 1:
            entry["pattern"] = rules
    return entry, unexplained


def finish(entry, t):
    """Adds the names that stand for fields, and the defaults of all fields that an expression has."""
    used = dict.fromkeys(w for e in expressions_in(entry) for w in words_of(e))
    names = {}
    for other, real in t.config_class.attribute_map.items():
        if real in used or real in entry.get("lists", ()):
            names.setdefault(real, []).append(other)
    defaults = {w: t.raw[w] for w in used if t.raw.get(w) is not None and isinstance(t.raw[w], (int, float, bool, str, list))}
    if names:
        entry["names"] = {**names, **entry.get("names", {})}
    if defaults:
        entry["defaults"] = {**defaults, **entry.get("defaults", {})}
    return entry


def assemble(cache, target):
    """Writes the file `target` from what `cache` has. Prints what could not be explained, which by_hand.json may settle."""
    decode = set(text_types())
    types, encoders, open_questions = {}, [], {}
    for name in sorted(CONFIG_MAPPING.keys()):
        if name in BY_HAND["types"]:
            continue
        file = Path(cache) / f"{name}.json"
        cached = json.loads(file.read_text()) if file.exists() else {"error": "not probed"}
        try:
            base = CONFIG_MAPPING[name]()
        except Exception:
            base = None
        inner = decoder_within(base) if base is not None and (name in decode) else None
        if inner:
            types[name] = {"decoder": inner[0], "decoder_type": inner[1]}
            specification = (type(base).sub_configs_defaults or {}).get(inner[0])
            given = {k: v for k, v in getattr(specification, "init_kwargs", {}).items() if isinstance(v, (int, float, str, type(None))) and (k == "model_type" or RELEVANT.search(k))}
            if given:
                types[name]["decoder_fields"] = given
        elif "error" not in cached:
            entry, unexplained = entry_of(name, cached)
            if entry is None:
                encoders.append(name)
                continue
            types[name] = finish(entry, Type(name))
            if unexplained:
                open_questions[name] = unexplained
        elif name in decode or any(t.get("decoder_type") == name for t in types.values()):
            open_questions[name] = cached["error"]
        else:
            encoders.append(name)
    for name, entry in BY_HAND["types"].items():
        if name in CONFIG_MAPPING and "kinds" in entry:
            entry = finish(entry, Type(name))
        types[name] = {k: v for k, v in entry.items() if k != "why"}
    for name, additions in BY_HAND["additions"].items():
        if name not in types:
            continue
        for key, value in additions.items():
            if key == "kinds":
                for kind, roles in value.items():
                    if roles is None or not isinstance(types[name]["kinds"].get(kind), dict):
                        types[name]["kinds"][kind] = roles
                    else:
                        types[name]["kinds"][kind].update(roles)
            elif isinstance(value, dict):
                types[name].setdefault(key, {}).update(value)
            elif key != "why":
                types[name][key] = value
        if "kinds" in types[name] and name in CONFIG_MAPPING:
            finish(types[name], Type(name))
    for name, entry in types.items():
        if "same_as" in entry:
            types[name] = types[entry["same_as"]]
    for entry in types.values():
        if entry.get("kinds", {}).get("other", "") is None:
            entry["kinds"]["other"] = "something other than attention"
        if "layer_types" in entry.get("lists", ()):
            entry.setdefault("pattern", [{"kind": next(iter(entry["kinds"]))}])
            for kind, words in WORDS.items():
                if entry["kinds"].get(kind) is None:
                    entry["kinds"][kind] = words
        if "lists" in entry:
            renamed = {old: new for old, new in _LEGACY_LAYER_TYPE_REMAP.items() if new in entry["kinds"] and old not in entry["kinds"]}
            entry["renamed"] = {**renamed, **entry.get("renamed", {})}
            if not entry["renamed"]:
                del entry["renamed"]
    encoders = sorted(e for e in encoders if e not in types)
    lines = ",\n".join(f"  {json.dumps(n)}: {json.dumps(types[n])}" for n in sorted(types))
    Path(target).write_text(f'{{\n "transformers": "{transformers.__version__}",\n "types": {{\n{lines}\n }},\n "encoders": {json.dumps(encoders)}\n}}\n')
    print(len(types), "types,", len(encoders), "encoders; open:")
    for name, question in open_questions.items():
        print(" ", name, str(question)[:200])

