"""Packs an engine of bench/engines from published wheels, small enough to travel to a GPU machine that reaches no package index.

    python3 bench/engines/pack_engine.py transformers OUT.tar.xz
    # there: mkdir -p /tmp/site && tar -C /tmp/site -xJf OUT.tar.xz && PYTHONPATH=/tmp/site python3 bench/engines --engine transformers --out results

It needs pip, xz and some minutes, and no GPU. The machine there needs Python 3.12, PyTorch 2.11 for CUDA 13, and a GPU of compute capability 9.0. Of
compiled kernels, the machine code of other GPUs and, of FlashAttention-3, that of other types than bf16 and other head sizes than 128 is zeroed, so
that it compresses; whatever asks for such a kernel fails.
"""
import argparse
import dataclasses
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import zipfile

PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (39, 35, 34, 31, 28, 27, 26, 24, 17, 12, 5)] + [
    "manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "any"]
FATBIN, PTX, MACHINE_CODE, ARCH = 0xBA55ED50, 1, 2, 90
DEBUG = (b".debug_", b".nv_debug_")  # sections that no launch reads
# In a mangled name of FlashAttention-3: the head size of the values and the type.
_FLASH = re.compile(rb"Li(\d+)EN7cutlass\d+(bfloat16_t|half_t|float_e4m3_t)E")


@dataclasses.dataclass(frozen=True)
class Package:
    """What a pack consists of."""

    wheels: tuple  # requirements, exact
    left_out: str = r"$^"  # files of wheels, as a regular expression
    pruned: tuple = ()  # shared libraries whose kernels are thinned out
    files: dict = dataclasses.field(default_factory=dict)  # beside the wheels': {path: text}


PACKAGES = {
    # FlashAttention-3 from a wheel that is built for the stable ABI of PyTorch. Transformers looks for a distribution of this name.
    "transformers": Package(("transformers==5.23.0", "tokenspeed-fa3==3.0.0.post20260810"), pruned=("flash_attn_3/_C.abi3.so",), files={
        "flash_attn_3-3.0.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: flash-attn-3\nVersion: 3.0.0\n",
        "flash_attn_3-3.0.0.dist-info/top_level.txt": "flash_attn_interface\n"}),
}


def main():
    parser = argparse.ArgumentParser(prog="pack_engine.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=list(PACKAGES))
    parser.add_argument("out", type=pathlib.Path, help="the archive, .tar.xz")
    options = parser.parse_args()
    package, out = PACKAGES[options.engine], options.out.resolve()
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        site = pathlib.Path(folder, "site")
        unpack(package, pathlib.Path(folder, "wheels"), site)
        with out.open("wb") as file:
            tar = subprocess.Popen(["tar", "-C", site, "-cf", "-", *sorted(path.name for path in site.iterdir())], stdout=subprocess.PIPE)
            subprocess.run(["xz", "-T0", "-6"], stdin=tar.stdout, stdout=file, check=True)
            if tar.wait():
                sys.exit("tar failed")
    print(f"{out.name}: {out.stat().st_size / 2**20:.1f} MiB")


def unpack(package, wheels, site):
    """Fills the folder `site` with the package, as an installation would have it."""
    flags = [flag for platform in PLATFORMS for flag in ("--platform", platform)]
    subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--python-version", "3.12", "--implementation",
                    "cp", "--abi", "cp312", "--abi", "abi3", "--abi", "none", *flags, "--dest", wheels, *package.wheels], check=True)
    left_out = re.compile(package.left_out)
    for wheel in sorted(wheels.iterdir()):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site, [name for name in archive.namelist() if not left_out.match(name)])
    for name in package.pruned:
        prune(site / name)
    for name, text in package.files.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)


def sections(data, start=0):
    """(name, offset, size) of every section of the ELF file that begins at `start`."""
    at, size, count, names = struct.unpack_from("<Q", data, start + 0x28)[0], *struct.unpack_from("<HHH", data, start + 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, start + at + index * size) for index in range(count)]
    strings = start + headers[names][4] if headers else 0
    for name, _, _, _, offset, length, *_ in headers:
        yield bytes(data[strings + name:data.index(0, strings + name)]), start + offset, length


def fat_entries(data):
    """(container, payload offset, payload size, kind, architecture) of every entry of every fat binary in an ELF file."""
    for name, place, length in sections(data):
        if name not in (b".nv_fatbin", b"__nv_relfatbin"):
            continue
        end = place + length
        while place + 16 <= end:
            magic, _, head, length = struct.unpack_from("<IHHQ", data, place)
            if magic != FATBIN:
                place += 8
                continue
            entry, stop = place + head, place + head + length
            while entry + 64 <= stop:
                kind, _, entry_head, payload, _, _, _, _, arch = struct.unpack_from("<HHIQIIHHI", data, entry)
                yield place, entry + entry_head, payload, kind, arch
                entry += entry_head + payload
            place = stop


def is_wanted(code):
    """Whether machine code has kernels that a model with bf16 and head size 128 runs, as far as names tell."""
    kinds = set(_FLASH.findall(code))
    return not kinds or (b"128", b"bfloat16_t") in kinds


def zero_unused(data, offset, size):
    """Zeroes what debuggers read in machine code, and the instructions of kernels that no model here runs. Compressed code stays as it is."""
    if data[offset:offset + 4] != b"\x7fELF":
        return
    unused = DEBUG if is_wanted(bytes(data[offset:offset + size])) else (*DEBUG, b".text.")
    for name, begin, length in list(sections(data, offset)):
        if name.startswith(unused):
            data[begin:begin + length] = bytes(length)


def prune(path):
    """Zeroes the code that is not loaded there. Headers stay, so that the driver chooses as before."""
    data = bytearray(path.read_bytes())
    containers = {}
    for container, *entry in fat_entries(data):
        containers.setdefault(container, []).append(entry)
    for entries in containers.values():
        native = any(kind == MACHINE_CODE and arch == ARCH for _, _, kind, arch in entries)
        for offset, size, kind, arch in entries:
            if kind == MACHINE_CODE and arch == ARCH:
                zero_unused(data, offset, size)
            elif native or kind != PTX or arch > ARCH:
                data[offset:offset + size] = bytes(size)
    path.write_bytes(data)


if __name__ == "__main__":
    main()
