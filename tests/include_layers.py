"""Checks that includes point down the project's layers and never up, and that internal headers stay where they belong.

A folder may include itself and what stands before it in LAYERS. CONTRIBUTING.md describes the folders. A header whose
opening comment says "Internal to this folder." or "Internal to runtime/lookup/." is included by that folder and by
tests only. Usage:
    python3 tests/include_layers.py [--source DIR]
"""

import argparse
import pathlib
import re
import sys

# From the ground up. A folder that is not named here by itself belongs to the nearest parent that is.
LAYERS = [
    "include",
    "templates",
    "generator",
    "cache",
    "runtime",  # problem.hpp, the ground of the run-time
    "runtime/cuda",
    "runtime/lookup",
    "runtime/recurrent",
    "runtime/tuning",
    "runtime/engine",
    "runtime/api",
    "tuner/measure",
    "tuner/oracle",
    "tuner/model",
    "tuner/backend",
    "tuner/verify",
    "tuner/worker",
    "tuner/search",
    "tuner/evaluate",
    "tuner/report",
    "cli/console",
    "cli/models",
    "cli/flags",
    "cli/help",
    "cli/commands",
    "cli",  # the whole program
]
# Exceptions to "everything before it": the cache knows no kernel.
ONLY = {"cache": {"include", "cache"}}
# Folders without a layer, whose includes of internal headers are checked all the same.
OUTSIDE = ["bench", "examples", "python"]
SOURCES = {".hpp", ".cpp", ".h", ".cuh"}
INCLUDE = re.compile(r'^\s*#include "([^"]+)"', re.MULTILINE)
INTERNAL = re.compile(r"\binternal to (this folder|\w[\w/]*)(?:\.(?:\s|$)| and its tests)", re.IGNORECASE)


def layer_of(path):
    """The layer that a path relative to the source directory belongs to, or None."""
    if path.startswith("leanattn/"):
        return "include"
    for parent in pathlib.PurePosixPath(path).parents:
        if str(parent) in LAYERS:
            return str(parent)
    return None


def owner_of(name, text):
    """The folder to which a header says that it is internal, with a slash at its end; or None."""
    said = INTERNAL.search(text.split("#pragma once")[0].replace("\n// ", " "))
    if name.endswith(".cpp") or said is None:
        return None
    folder = pathlib.PurePosixPath(name).parent if said[1].lower() == "this folder" else pathlib.PurePosixPath(said[1])
    return f"{folder}/"


def complaints(source):
    """(files read, one sentence for each include that points up, to nowhere, or to what is internal elsewhere)."""
    tops = {layer.split("/")[0] for layer in LAYERS}
    texts = {
        path.relative_to(source).as_posix(): path.read_text(encoding="utf-8")
        for top in sorted(tops.union(OUTSIDE))
        for path in sorted((source / top).rglob("*"))
        if path.suffix in SOURCES
    }
    owners = {name: owner_of(name, text) for name, text in texts.items()}
    found = []
    for name, text in texts.items():
        own = layer_of(name)
        if own is None and name.split("/")[0] in tops:
            found.append(f"{name} lies in a folder without a layer.")
        for included in INCLUDE.findall(text):
            if owners.get(included) and not name.startswith(owners[included]):
                found.append(f"{name} includes {included}, which is internal to {owners[included]}")
            if own is not None:
                target = layer_of(included)
                if target is None:
                    found.append(f"{name} includes {included}, which lies in no layer.")
                elif target not in ONLY.get(own, LAYERS[: LAYERS.index(own) + 1]):
                    found.append(f"{name} includes {included}: {target} lies above {own}.")
    return len(texts), found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    files, found = complaints(parser.parse_args().source)
    for complaint in found:
        print(complaint)
    print(f"{files} files read, {len(found)} includes that point up or to what is internal elsewhere")
    return 1 if found or files == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
