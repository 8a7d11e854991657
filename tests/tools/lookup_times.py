#!/usr/bin/env python3
"""Collects what was measured of single configurations, for the tests of look-ups.

    tests/tools/lookup_times.py bench/results/h200 > tests/unit/tuner/evaluate/h200_times.json
    tests/tools/lookup_times.py bench/results/h200 answers > tests/unit/tuner/evaluate/h200_answers.json
    tests/tools/lookup_times.py random TRIALS... > tests/unit/tuner/evaluate/h100_random.json (h100_drawn, h100_tuned, h200_random, h200_latent)
    tests/tools/lookup_times.py regret bench/results/h100/evaluate/regret_random_[56].json.gz > tests/unit/tuner/evaluate/h100_fresh.json

The second form collects what look-ups answered in the two runs beside peers: `peers-untuned`, for which the published
shapes were tuned, and `peers`, with the winners that come with leanattn. The third form takes folders of `leanattn
evaluate regret --tune TIME --trials FOLDER`, with and without `--problems`, or cache folders of `leanattn tune`, and
keeps eight configurations of each shape: the three fastest, and five between the next and the slowest. The fourth form
takes records of `leanattn evaluate regret`, and has what look-ups answered and what was best. No record has the times in
h100_raced.json: they were raced by hand for "Beyond draws: dense races" of the lab notes, and their kinds are `short`
and `random`. The result has the lists `problems`, `specs` and `times`. An entry of `times` is [index of the problem, batch, longest context, total context or
0, index of the spec, grid, microseconds with a cold L2, kind]. Kinds: `winner` (of a tuning), `best` (of an exhaustive
sweep) and `other`; of answers the run, and `winner` where the shape was tuned.
"""
import gzip
import json
import pathlib
import re
import sqlite3
import statistics
import sys

NAME = re.compile(
    r"lean_sm90a_(?P<dtype>bf16|fp16)_d(?P<head_dim>\d+)_g(?P<group>\d+)_(?P<layout>contig|strided)(?P<features>.*?)"
    r"_(?P<load>ldg|cp_async|bulk|tensor|vector)_(?P<fixup>ticket|wait)(?P<pdl>_pdl)?"
    r"_t(?P<tile>\d+)_w(?P<warps>\d+)x(?P<warp_tokens>\d+)_s(?P<stages>\d+)_o(?P<ctas_per_sm>\d+)")


def spec_of(name):
    """The spec of a kernel's name (generator/kernel_spec.cpp); None for one with other features than pages, latent
    caches and query tokens, which the tests leave out."""
    match = NAME.fullmatch(name)
    if not match:
        raise SystemExit(f"not the name of a kernel: {name}")
    features = {}
    for part in filter(None, match["features"].split("_")):
        if part == "latent":
            features["latent"] = True
        elif part[0] in "pqv" and part[1:].isdigit():
            features[{"p": "page_size", "q": "q_len", "v": "v_head_dim"}[part[0]]] = int(part[1:])
        else:
            return None
    spec = {"arch": "sm_90a", "dtype": match["dtype"], "fixup": match["fixup"], "load": match["load"], "lse": False,
            "layout": {"contig": "contiguous", "strided": "strided"}[match["layout"]], "pdl": bool(match["pdl"])}
    for key in ("head_dim", "group", "tile", "warps", "warp_tokens", "stages", "ctas_per_sm"):
        spec[key] = int(match[key])
    if features:
        spec["features"] = features
    return spec


class Times:
    def __init__(self):
        self.problems, self.specs, self.times = [], [], []

    @staticmethod
    def index(values, value):
        if value not in values:
            values.append(value)
        return values.index(value)

    def add(self, problem, shape, config, us, kind):
        entry = [self.index(self.problems, problem), shape["batch"], shape["longest_context"], shape["total_context"],
                 self.index(self.specs, config["spec"]), config["grid"], round(us, 3), kind]
        if entry not in self.times:
            self.times.append(entry)


def load(folder, name):
    with gzip.open(folder / f"{name}.json.gz") as file:
        return json.load(file)


def add_lines(times, case, kind):
    """The lines of leanattn in a case of bench/peers or bench/latent. kind(facts) is None for what is left out."""
    for line in case["modes"].get("cold", {"lines": []})["lines"]:
        if line["system"] != "leanattn" or not line.get("samples_us"):
            continue
        facts = line["facts"]
        if kind(facts) is None:
            continue
        spec = spec_of(facts["kernel_name"])
        if spec is None:
            continue
        problem = {key: spec[key] for key in ("dtype", "head_dim", "layout", "lse")}
        problem |= {"q_heads": case["q_heads"], "kv_heads": case["kv_heads"]}
        problem |= {"pdl": True} if spec["pdl"] else {}
        problem |= {"features": spec["features"]} if "features" in spec else {}
        shape = {"batch": case["batch"], "longest_context": case["longest_context"],
                 "total_context": case["total_context"] if case.get("lengths") else 0}
        times.add(problem, shape, {"spec": spec, "grid": facts["grid"]}, statistics.median(line["samples_us"]),
                  kind(facts))


def collect_answers(folder, times):
    for name in ("peers-untuned", "peers"):
        for case in load(folder, f"{name}/peers")["cases"]:
            add_lines(times, case, lambda facts: "winner" if facts["provenance"] == "exact" else name)


def add_regret(times, record):
    for case in record["cases"]:
        times.add(case["problem"], case["shape"], case["best"], case["best_us"], "best")
        times.add(case["problem"], case["shape"], case["looked_up"], case["looked_up_us"], "other")


def collect_times(folder, times):
    for winner in load(folder, "tuning_report")["devices"][0]["winners"]:
        times.add(winner["problem"], winner["shape"], winner["config"], winner["median_us"], "winner")
        for rival in ("default", "runner_up", "fa2", "fd"):
            if winner.get(rival) and winner[rival]["config"] != winner["config"]:
                us = winner["median_us"] * winner[rival]["over_winner"]["ratio"]
                times.add(winner["problem"], winner["shape"], winner[rival]["config"], us, "other")
    add_regret(times, load(folder, "evaluate/regret"))
    for name in ("latent/latent", "peers/peers"):
        for case in load(folder, name)["cases"]:
            if name == "latent/latent":
                add_lines(times, case, lambda facts: "winner" if facts["provenance"] == "exact" else "other")
            else:  # the report has the winners
                add_lines(times, case, lambda facts: None if facts["provenance"] == "exact" else "other")


def collect_random(folders, times):
    query = """SELECT problems.json, shapes.json, configs.json, median_us FROM trials
               JOIN problems ON problems.id = problem_id JOIN shapes ON shapes.id = shape_id
               JOIN configs ON configs.id = config_id
               WHERE status IN ('ok', 'pruned') AND median_us > 0 AND policy = 'cold' ORDER BY trials.id"""
    steps = {}
    for folder in folders:
        with sqlite3.connect(pathlib.Path(folder) / "tuning.db") as database:
            for problem, shape, config, us in database.execute(query):
                if not json.loads(config).get("segment_cost"):  # of equal contexts
                    steps.setdefault((problem, shape), {}).setdefault(config, []).append(us)
    for (problem, shape), configs in steps.items():
        ordered = sorted(configs, key=lambda config: statistics.median(configs[config]))
        rest = ordered[3:]
        for config in ordered[:3] + [rest[i * (len(rest) - 1) // 4] for i in range(5) if rest]:
            times.add(json.loads(problem), json.loads(shape), json.loads(config), statistics.median(configs[config]),
                      "other")


def main():
    times = Times()
    if sys.argv[1] == "random":
        collect_random(sys.argv[2:], times)
    elif sys.argv[1] == "regret":
        for name in sys.argv[2:]:
            with gzip.open(name) as file:
                add_regret(times, json.load(file))
    else:
        folder = pathlib.Path(sys.argv[1])
        (collect_answers if sys.argv[2:] == ["answers"] else collect_times)(folder, times)
    rows = ["{"]
    for key in ("problems", "specs", "times"):
        values = ",\n".join(json.dumps(value, sort_keys=True, separators=(",", ":")) for value in getattr(times, key))
        rows.append(f'"{key}": [\n{values}\n]' + ("," if key != "times" else ""))
    print("\n".join(rows + ["}"]))


main()
