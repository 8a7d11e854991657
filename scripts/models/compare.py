"""Holds `leanattn models --model-config` against Transformers: every model type, as its config saves itself.

    compare.py PROGRAM CACHE [TYPE ...]

There are two witnesses, whose words are kept in CACHE. probe.py watches the whole model of the default config. witness.py
reads the attention weights and the cache of a small model of the same decoder that runs. A type counts as
  right      all shapes and how many layers have them, by the probe
  refused    an error, which is listed
  wrong      anything else
and a type that does not decode as refused or answered. Types that decode only if "is_decoder" is set are asked with it,
and must be refused without.
"""

import collections
import copy
import dataclasses
import json
import logging
import signal
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import transformers

import witness
from derive import BY_HAND, decoder_within, slow, text_types
from probe import CONFIG_MAPPING, layers_of


def config_of(name, changes):
    """The config of a type with its defaults, and with what models of its decoder need beside them."""
    needs = BY_HAND["needs"]
    config = CONFIG_MAPPING[name](**needs.get(name, {}), **changes)
    inner = decoder_within(config)
    if inner and inner[1] in needs:
        config = CONFIG_MAPPING[name](**{inner[0]: {**getattr(config, inner[0]).to_dict(), **needs[inner[1]]}})
    return config


def decoder_of(config):
    """The config of the part that decodes."""
    while (inner := decoder_within(config)) is not None and isinstance(getattr(config, inner[0], None), transformers.PreTrainedConfig):
        config = getattr(config, inner[0])
    shared = getattr(config, "num_kv_shared_layers", None)
    if shared and shared == config.num_hidden_layers:  # all layers read the cache of another model
        config = copy.deepcopy(config)
        config.num_kv_shared_layers = 0
    return config


def kept(file, work):
    """What `work` gives, from the file where it is there; an error where it fails."""
    if not file.exists():
        signal.setitimer(signal.ITIMER_PROF, 240)
        try:
            result = work()
        except Exception as error:
            result = {"error": f"{type(error).__name__}: {str(error)[:200]}"}
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        file.write_text(json.dumps(result))
    return json.loads(file.read_text())


def probed(config):
    """[(number of layers, shape)] as the probe sees them."""
    calls, _ = layers_of(decoder_of(config))
    layers = {}
    for numbers, layer in calls:
        layers.setdefault(numbers, layer)
    return {"shapes": [[count, dataclasses.asdict(layer)] for layer, count in collections.Counter(layers.values()).items()]}


def witnessed(config):
    """A small config of the same type, and what its layers show."""
    small, layers = witness.shown(decoder_of(config))
    return {"config": small.to_json_string(use_diff=False), "layers": layers}


def comparable(shape):
    """What a problem has of a layer that the probe saw."""
    latent = shape.get("rank", 0)
    return (shape["q"], 1 if latent else shape["kv"], latent + shape["rope"] if latent else shape["dim"],
            (latent if shape["rope"] else 0) if latent else (0 if shape["v"] == shape["dim"] else shape["v"]),
            bool(latent) or shape["k_is_v"], 0 if shape["prompt_window"] else shape["window"], shape["chunk"], shape["sinks"],
            float(shape["soft_cap"]), bool(shape["selected"]), shape["position_bias"], shape["alibi"])


def answered(shape):
    features = shape["features"]
    return (shape["q_heads"], shape["kv_heads"], shape["head_dim"], features.get("v_head_dim", 0), features.get("latent", False),
            features.get("window", 0), shape["chunk"], features.get("sink_logits", False), float(features.get("soft_cap", 0)),
            shape["selected"] > 0, shape["position_bias"], features.get("alibi", False))


def ask(program, text):
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "config.json"
        file.write_text(text)
        done = subprocess.run([program, "models", "--json", "--model-config", file], capture_output=True, text=True)
        document = json.loads(done.stdout)
        return document, document.get("error", {}).get("message", "").replace(f"{directory}/", "")


def text_of(config):
    with tempfile.TemporaryDirectory() as directory:
        try:
            config.save_pretrained(directory)
        except ValueError:  # a part has a default of a type that is not there
            return config.to_json_string(use_diff=False)
        return (Path(directory) / "config.json").read_text()


def judged(true, document, refusal):
    """A word for an answer, and what there is to read of it."""
    seen, said = collections.Counter(), collections.Counter()
    for count, shape in true.get("shapes", ()):
        seen[comparable(shape)] += count
    for shape in document.get("shapes", ()):
        said[answered(shape)] += shape["layers"]
    if "error" in true:
        return ("refused" if refusal else "answered") + ", not probed", refusal or dict(said)
    if refusal:
        return "refused: no attention" if not seen else "refused", refusal
    if seen == said:
        return "right", ""
    return "right but for numbers of layers" if set(seen) == set(said) else "wrong", f"true {dict(seen)}\n      said {dict(said)}"


def main(program, cache, *names):
    """Prints the counts, and every type that is not right."""
    transformers.logging.set_verbosity_error()
    logging.disable(logging.ERROR)
    warnings.filterwarnings("ignore")
    cache = Path(cache)
    decode = set(text_types())
    counts = collections.defaultdict(list)
    for name in names or sorted(CONFIG_MAPPING.keys()):
        if name not in decode:
            try:
                text = text_of(CONFIG_MAPPING[name]())
            except Exception:  # without a config of defaults
                text = json.dumps({"model_type": name})
            document, refusal = ask(program, text)
            counts["encoder refused" if refusal else "encoder answered"].append(f"{name} {'' if refusal else document['model_type']}")
            continue
        config = config_of(name, {})
        true = kept(cache / f"truth-{name}.json", lambda: probed(config))
        if true.get("shapes") and not any(shape["causal"] for _, shape in true["shapes"]):
            refused = bool(ask(program, text_of(config))[1])
            if getattr(decoder_of(config), "is_decoder", None) is not False:
                counts["does not decode: refused" if refused else "wrong"].append(f"{name}: sees tokens in both directions")
                continue
            if not refused:
                counts["wrong"].append(f"{name}: answered without is_decoder")
                continue
            config = config_of(name, {"is_decoder": True})
            true = kept(cache / f"truth-{name}-decoder.json", lambda: probed(config))
        word, text = judged(true, *ask(program, text_of(config)))
        counts[word].append(f"{name}: {text}")
        small = kept(cache / f"witness-{decoder_of(config).model_type}.json", lambda: witnessed(config))
        if "error" in small:
            counts["the small model shows nothing"].append(f"{name}: {small['error']}")
            continue
        document, refusal = ask(program, small["config"])
        agreed = not refusal and witness.agrees(small["layers"], document["shapes"])
        counts[f"the small model {'agrees' if agreed else 'does not agree'}; {word}"].append(
            f"{name}: shows {small['layers']}\n      said {refusal or [(answered(s), s['layers']) for s in document['shapes']]}")
    for what, which in sorted(counts.items()):
        print(f"{len(which):5} {what}")
        if what not in ("right", "encoder refused", "the small model agrees; right"):
            for one in which:
                print("      " + one)


if __name__ == "__main__":
    signal.signal(signal.SIGPROF, slow)
    main(*sys.argv[1:])
