"""Holds `leanattn models --model-config` against Transformers: every model type, as its config saves itself.

    compare.py PROGRAM CACHE [TYPE ...]

What is true is what a probe sees when the whole model runs (probe.py), kept in CACHE. A type counts as
  right      all shapes and how many layers have them
  refused    an error, which is listed
  wrong      anything else
and a type that does not decode as refused or answered.
"""

import collections
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

from derive import Type, slow, text_types
from probe import CONFIG_MAPPING, layers_of


def decoder_of(config):
    """The config of the part that decodes, and the types on the way to it."""
    from assemble import decoder_within

    while (inner := decoder_within(config)) is not None and isinstance(getattr(config, inner[0], None), transformers.PreTrainedConfig):
        config = getattr(config, inner[0])
    return config


def truth_of(config, cache, name):
    """[(number of layers, shape)] as the probe sees them; an error where it cannot."""
    file = cache / f"truth-{name}.json"
    if file.exists():
        return json.loads(file.read_text())
    signal.alarm(200)
    try:
        calls, _ = layers_of(decoder_of(config))
        layers = {}
        for index, layer in calls:
            layers.setdefault(index, layer)
        counted = collections.Counter(layers.values())
        result = {"shapes": [[count, dataclasses.asdict(layer)] for layer, count in counted.items()]}
    except Exception as error:
        result = {"error": f"{type(error).__name__}: {str(error)[:200]}"}
    finally:
        signal.alarm(0)
    file.write_text(json.dumps(result))
    return result


def comparable(shape):
    """What a problem has of a layer that the probe saw."""
    latent = shape.get("rank", 0)
    return (shape["q"], 1 if latent else shape["kv"], latent + shape["rope"] if latent else shape["dim"],
            (latent if shape["rope"] else 0) if latent else (0 if shape["v"] == shape["dim"] else shape["v"]),
            bool(latent) or shape["k_is_v"], shape["window"], shape["chunk"], shape["sinks"], float(shape["soft_cap"]),
            bool(shape["selected"]), shape["position_bias"])


def answered(shape):
    features = shape["features"]
    return (shape["q_heads"], shape["kv_heads"], shape["head_dim"], features.get("v_head_dim", 0), features.get("latent", False),
            features.get("window", 0), shape["chunk"], features.get("sink_logits", False), float(features.get("soft_cap", 0)),
            shape["selected"] > 0, shape["position_bias"])


def ask(program, config):
    with tempfile.TemporaryDirectory() as directory:
        config.save_pretrained(directory)
        done = subprocess.run([program, "models", "--json", "--model-config", f"{directory}/config.json"], capture_output=True, text=True)
        document = json.loads(done.stdout)
        return document, document.get("error", {}).get("message", "").replace(f"{directory}/", "")


def main(program, cache, *names):
    """Prints the counts, and every type that is not right."""
    transformers.logging.set_verbosity_error()
    logging.disable(logging.ERROR)
    warnings.filterwarnings("ignore")
    cache = Path(cache)
    decode = set(text_types())
    counts = collections.defaultdict(list)
    for name in names or sorted(CONFIG_MAPPING.keys()):
        try:
            config = CONFIG_MAPPING[name]()
            document, refusal = ask(program, config)
        except Exception as error:
            counts["no default config"].append(f"{name}: {str(error)[:100]}")
            continue
        if name not in decode:
            counts["encoder refused" if refusal else "encoder answered"].append(f"{name} {'' if refusal else document['model_type']}")
            continue
        true = truth_of(config, cache, name)
        if "error" in true:
            counts["refused, not probed" if refusal else "answered, not probed"].append(f"{name}: {refusal or [answered(s) for s in document['shapes']]}")
            continue
        seen = collections.Counter()
        for count, shape in true["shapes"]:
            seen[comparable(shape)] += count
        encodes = all(not shape["causal"] for _, shape in true["shapes"])
        if refusal:
            counts["refused: encodes" if true["shapes"] and encodes else "refused: no attention" if not true["shapes"] else "refused"].append(f"{name}: {refusal}")
            continue
        said = collections.Counter()
        for shape in document["shapes"]:
            said[answered(shape)] += shape["layers"]
        if encodes:
            counts["wrong"].append(f"{name}: encodes, answered")
        elif seen == said:
            counts["right"].append(name)
        elif set(seen) == set(said):
            counts["right but for numbers of layers"].append(f"{name}: true {dict(seen)}\n      said {dict(said)}")
        else:
            counts["wrong"].append(f"{name}: true {dict(seen)}\n      said {dict(said)}")
    for what, which in sorted(counts.items()):
        print(f"{len(which):5} {what}")
        if what not in ("right", "encoder refused"):
            for one in which:
                print("      " + one)


if __name__ == "__main__":
    signal.signal(signal.SIGALRM, slow)
    main(*sys.argv[1:])
