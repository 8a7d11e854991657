#!/usr/bin/env python3
"""Checks that a project which has leanattn as a part compiles the library by the commands by which a build of its own does.
For check_from_source.cmake. Both build folders need compile_commands.json."""

import argparse
import json
import os
import pathlib
import re
import shlex
import sys

LIBRARY = ("generator", "cache", "runtime")  # the folders whose objects are the library


def commands(build, part, source):
    """Each compilation of the library's objects, by its output, without what tells the two build folders apart."""
    top = build / part if part else build
    # A unit of several files that are in the build folder is named after that folder (UNITY_GROUP in cmake/LeanattnTarget.cmake).
    group = re.sub(r"\W", "_", os.path.relpath(top, source))
    found = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        text = entry.get("command") or shlex.join(entry["arguments"])
        text = text.replace(f"{top}/", "<build>/").replace(f"unity_{group}_", "unity_build_")
        text = re.sub(rf"(?<=\s){re.escape(part)}/", "", text) if part else text
        words = shlex.split(text)
        output = words[words.index("-o") + 1].removeprefix("<build>/")
        if output.split("/")[0] in LIBRARY:
            found[output] = words
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", required=True, type=pathlib.Path, help="the build folder of leanattn itself")
    parser.add_argument("--as-part", required=True, type=pathlib.Path, help="the build folder of the other project")
    parser.add_argument("--part", required=True, help="the folder in it that is leanattn's")
    parser.add_argument("--source", required=True, type=pathlib.Path, help="leanattn's sources")
    arguments = parser.parse_args()
    source = arguments.source.resolve()
    own = commands(arguments.build.resolve(), "", source)
    part = commands(arguments.as_part.resolve(), arguments.part, source)
    if not part:
        sys.exit(f"{arguments.as_part} compiles nothing of the library")
    differences = [f"only {folder} compiles {output}" for folder, mine, other in ((arguments.build, own, part), (arguments.as_part, part, own))
                   for output in sorted(mine.keys() - other.keys())]
    for output in sorted(own.keys() & part.keys()):
        if own[output] != part[output]:
            words = [f"{sign} {word}" for sign, mine, other in (("-", own, part), ("+", part, own))
                     for word in mine[output] if word not in other[output]]
            differences.append("\n  ".join([f"{output} is compiled in another way:", *(words or ["the words are in another order"])]))
    if differences:
        sys.exit("\n".join([*differences, "What leanattn's own build sets for itself must also be set where it is a part of another project."]))
    print(f"{len(part)} commands are the same")


if __name__ == "__main__":
    main()
