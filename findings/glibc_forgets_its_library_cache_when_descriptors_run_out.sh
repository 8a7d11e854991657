#!/usr/bin/env bash
# Needs no GPU. Runs on glibc (seen with 2.36).
#
# One would guess: a dlopen that fails because the process has no descriptor left (EMFILE) can be tried again once there is one.
# What happens: if the first search of /etc/ld.so.cache meets that limit, the process never reads the cache again. Libraries whose folder only the cache
# knows (/etc/ld.so.conf.d) fail with "No such file or directory" for good. Those in the default folders load.
# Why it matters: a library that loads a driver or compiler at first use, under load, reports it as not installed until the process ends. The message
# names neither the limit nor the cache. Opening such libraries early, or by their path, avoids it.
source "$(dirname "$0")/common.bash"
cat >"$work/again.py" <<'PYTHON'
import ctypes
import os
import resource
import subprocess
import sys

# A library that only the cache knows, which this script makes in a folder of its own.
name = sys.argv[1]


def load():
    try:
        ctypes.CDLL(name)
        return "loads"
    except OSError as error:
        return str(error)


if sys.argv[2] == "meets the limit":
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    first = load()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    print(f"without descriptors: {first}")
print(f"with descriptors: {load()}")
PYTHON
[[ $(id -u) -eq 0 ]] || { echo "needs root: it adds a folder to the loader's cache, in a mount namespace of its own"; exit 77; }
mkdir "$work/lib"
echo 'int lean_finding;' >"$work/empty.c"
cc -shared -o "$work/lib/libonly-the-cache-knows.so" "$work/empty.c"
cp /etc/ld.so.cache "$work/cache"
unshare -m bash -c 'mount --bind "$1/cache" /etc/ld.so.cache && ldconfig -C "$1/new" "$1/lib" && cat "$1/new" >/etc/ld.so.cache &&
  for how in "is left alone" "meets the limit"; do echo "a process that $how"; python3 "$1/again.py" libonly-the-cache-knows.so "$how"; done' _ "$work" | tee "$work/out"
[[ $(grep -c '^with descriptors: loads' "$work/out") -eq 1 && $(grep -c '^with descriptors: .*No such file' "$work/out") -eq 1 ]] ||
  changed "a process that met the limit finds the library afterwards"
ldd --version | head -n 1
