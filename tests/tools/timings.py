#!/usr/bin/env python3
"""Collects what was measured of single configurations and committed, for the fit of the cost model and the tests of
look-ups.

    tests/tools/timings.py bench/results > timings.json
    tests/tools/timings.py trials FOLDERS... | gzip -n -9 > bench/results/h100/timings/drawn.json.gz

The first form reads the records under bench/results, as the build does. The second form makes a record from the trials
of folders of `leanattn evaluate regret --tune TIME --trials FOLDER`, with and without `--problems`, or of cache folders
of `leanattn tune`. It keeps eight configurations of each shape: the three fastest, and five between the next and the
slowest.

The result has the lists `problems`, `specs`, `sources`, `mixed` and `times`. An entry of `mixed` is a step with prefill
of bench/mixed on the H200, whose requests differ: its name, problem, context lengths, query tokens, spec, grid and
microseconds. An entry of `times` is [index of the problem, batch,
longest context, total context or 0, index of the spec, grid, microseconds with a cold L2, kind, index of the source].
Kinds: `winner` (of a tuning), `best` (of a sweep or a tuning that came after a look-up) and `other`; of answers beside
peers the run, and `winner` where the shape was tuned. Times of one source and step were measured in one run, or in runs
that are compared.
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


def spec_of(name, mixed=False):
    """The spec of a kernel's name (generator/kernel_spec.cpp); None for one with other features than pages, latent
    caches and query tokens, which the tests leave out. Those of mixed steps may also have ragged query tokens and a
    window."""
    match = NAME.fullmatch(name)
    if not match:
        raise SystemExit(f"not the name of a kernel: {name}")
    features = {}
    for part in filter(None, match["features"].split("_")):
        if part == "latent":
            features["latent"] = True
        elif mixed and part == "rq":
            features["ragged_q"] = True
        elif mixed and part.startswith("win"):
            features["window"] = int(part[3:])
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
        self.problems, self.specs, self.sources, self.times, self.mixed = [], [], [], [], []
        self.indices, self.seen, self.source = {}, set(), ""

    def index(self, values, value):
        key = (id(values), json.dumps(value, sort_keys=True))
        if key not in self.indices:
            self.indices[key] = len(values)
            values.append(value)
        return self.indices[key]

    def add(self, problem, shape, config, us, kind):
        entry = (self.index(self.problems, problem), shape["batch"], shape["longest_context"], shape["total_context"],
                 self.index(self.specs, config["spec"]), config["grid"], round(us, 3), kind,
                 self.index(self.sources, self.source))
        if entry not in self.seen:
            self.seen.add(entry)
            self.times.append(entry)


def load(folder, name):
    with gzip.open(folder / f"{name}.json.gz") as file:
        return json.load(file)


def problem_of(spec, case):
    problem = {key: spec[key] for key in ("dtype", "head_dim", "layout", "lse")}
    problem |= {"q_heads": case["q_heads"], "kv_heads": case["kv_heads"]}
    problem |= {"pdl": True} if spec["pdl"] else {}
    problem |= {"features": spec["features"]} if "features" in spec else {}
    return problem


def collect_mixed(folder, times):
    """The one launch for each step with prefill, where kernels made for it ran."""
    for case in load(folder, "mixed/mixed")["cases"]:
        for line in case["modes"]["cold"]["lines"]:
            spec = spec_of(line["facts"]["kernel_name"], mixed=True) if line["system"] == "leanattn" else None
            if spec and spec["load"] == "tensor" and spec["features"]["q_len"] > 16:
                tokens, lengths = zip(*case["requests"])
                times.mixed.append([case["name"], problem_of(spec, case), lengths, tokens, spec, line["facts"]["grid"],
                                    round(statistics.median(line["samples_us"]), 3)])


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
        problem = problem_of(spec, case)
        shape = {"batch": case["batch"], "longest_context": case["longest_context"],
                 "total_context": case["total_context"] if case.get("lengths") else 0}
        times.add(problem, shape, {"spec": spec, "grid": facts["grid"]}, statistics.median(line["samples_us"]),
                  kind(facts))


def collect_answers(folder, times):
    for name in ("peers-untuned/peers", "peers/peers"):
        if not (folder / f"{name}.json.gz").exists():
            continue
        for case in load(folder, name)["cases"]:
            run = name.split("/")[0]
            add_lines(times, case, lambda facts: "winner" if facts["provenance"] == "exact" else run)


def add_regret(times, record):
    for case in record["cases"]:
        times.add(case["problem"], case["shape"], case["best"], case["best_us"], "best")
        times.add(case["problem"], case["shape"], case["looked_up"], case["looked_up_us"], "other")


def add_pairs(times, record):
    """The two winners of each case of `evaluate search` and `evaluate repeat`."""
    for case in record["cases"]:
        for side in case.values():
            if isinstance(side, dict) and "config" in side:
                times.add(record["problem"], case["shape"], side["config"], side["median_us"], "winner")


def add_report(times, report):
    for winner in report["devices"][0]["winners"]:
        times.add(winner["problem"], winner["shape"], winner["config"], winner["median_us"], "winner")
        for rival in ("default", "runner_up", "fa2", "fd"):
            if winner.get(rival) and winner[rival]["config"] != winner["config"]:
                us = winner["median_us"] * winner[rival]["over_winner"]["ratio"]
                times.add(winner["problem"], winner["shape"], winner[rival]["config"], us, "other")


def collect_tuned(folder, times):
    """The report of a tuning, with what else was measured at its steps."""
    if (folder / "tuning_report.json.gz").exists():
        add_report(times, load(folder, "tuning_report"))
        add_regret(times, load(folder, "evaluate/regret"))
        for case in load(folder, "peers/peers")["cases"]:
            add_lines(times, case, lambda facts: None if facts["provenance"] == "exact" else "other")
    for case in load(folder, "latent/latent")["cases"]:
        add_lines(times, case, lambda facts: "winner" if facts["provenance"] == "exact" else "other")


def collect_evaluations(folder, times):
    for path in sorted((folder / "evaluate").glob("*.json.gz")):
        name = path.name.removesuffix(".json.gz")
        if name == "regret":  # collect_tuned has it
            continue
        times.source = f"{folder.name} {name}"
        records = load(folder, f"evaluate/{name}")
        for record in records if isinstance(records, list) else [records]:
            (add_regret if record["evaluation"] == "regret" else add_pairs)(times, record)


def collect_timings(folder, times):
    for path in sorted((folder / "timings").glob("*.json.gz")):
        name = path.name.removesuffix(".json.gz")
        times.source = f"{folder.name} {name}"
        record = load(folder, f"timings/{name}")
        for problem, batch, longest, total, spec, grid, us, *_ in record["times"]:
            shape = {"batch": batch, "longest_context": longest, "total_context": total}
            times.add(record["problems"][problem], shape, {"spec": record["specs"][spec], "grid": grid}, us, "other")


def collect_records(results, times):
    for gpu in ("h100", "h200"):
        folder = results / gpu
        times.source = f"{gpu} tuned and beside peers"
        collect_tuned(folder, times)
        times.source = f"{gpu} answers beside peers"
        collect_answers(folder, times)
        times.source = f"{gpu} shipped winners"
        add_report(times, load(folder, "fitted_winners"))
        collect_evaluations(folder, times)
        collect_timings(folder, times)
    collect_mixed(results / "h200", times)


def collect_trials(folders, times):
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
    if sys.argv[1] == "trials":
        times.source = "trials"
        collect_trials(sys.argv[2:], times)
    else:
        collect_records(pathlib.Path(sys.argv[1]), times)
    rows = ["{"]
    for key in ("problems", "specs", "sources", "mixed", "times"):
        values = ",\n".join(json.dumps(value, sort_keys=True, separators=(",", ":")) for value in getattr(times, key))
        rows.append(f'"{key}": [\n{values}\n]' + ("," if key != "times" else ""))
    print("\n".join(rows + ["}"]))


main()
