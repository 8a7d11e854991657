"""Packs an engine of bench/engines, or the peers of bench/recurrent, from published wheels, small enough to travel to a GPU machine that reaches no
package index.

    python3 bench/engines/pack_engine.py sglang OUT.tar.xz
    # there: mkdir -p /tmp/site && tar -C /tmp/site -xJf OUT.tar.xz && PYTHONPATH=/tmp/site python3 bench/engines --engine sglang --out results

It needs pip, xz, zstd and some minutes, and no GPU. The machine there needs Python 3.12, PyTorch 2.11 for CUDA 13, and a GPU of compute capability 9.0. Of
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
ZSTD = b"\x28\xb5\x2f\xfd"
# In a mangled name of FlashAttention: the end of the tile, whose last size is that of queries and keys, the head size of the values, and the type.
_FLASH = re.compile(rb"(\w_|E)EEELi(\d+)EN(?:7cutlass|S_)\d+(bfloat16_t|half_t|float_e4m3_t)E")


@dataclasses.dataclass(frozen=True)
class Package:
    """What a pack consists of."""

    wheels: list  # requirements, exact
    kept: str = ""  # files of wheels, as a regular expression
    left_out: str = r"$^"  # of these
    pruned: tuple = ()  # shared libraries whose kernels are thinned out
    files: dict = dataclasses.field(default_factory=dict)  # beside the wheels': {path: text}


PACKAGES = {
    # FlashAttention-3 from a wheel that is built for the stable ABI of PyTorch. Transformers looks for a distribution of this name.
    "transformers": Package(["transformers==5.23.0", "tokenspeed-fa3==3.0.0.post20260810"], pruned=("flash_attn_3/_C.abi3.so",), files={
        "flash_attn_3-3.0.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: flash-attn-3\nVersion: 3.0.0\n",
        "flash_attn_3-3.0.0.dist-info/top_level.txt": "flash_attn_interface\n"}),
    # What models with selected tokens need beside a small package of vLLM: the kernels of the indexer, which are compiled there.
    "vllm-deep-gemm": Package(["vllm==0.26.0"], kept=r"vllm/third_party/deep_gemm/", left_out=r".*/_C\.cpython-3(10|11|13|14)"),
    # With what a step of sglang_decode.py imports; FlashAttention-3 is in sglang-kernel.
    "sglang": Package("""sglang==0.5.16 sglang-kernel==0.4.5 transformers==5.12.1 tokenizers==0.22.2 annotated-doc==0.0.7 annotated-types==0.8.0
        apache-tvm-ffi==0.1.11 compressed-tensors==0.20.0 dill==0.4.1 distro==1.9.0 fastapi==0.136.3 gguf==0.19.0 jiter==0.19.0 loguru==0.7.3
        msgspec==0.22.0 openai==2.6.1 orjson==3.13.0 partial-json-parser==0.2.1.1.post7 pybase64==1.5.1 pydantic==2.14.3 pydantic-core==2.50.4
        python-multipart==0.0.34 pyzmq==27.3.0 setproctitle==1.3.8 sniffio==1.3.1 starlette==1.10.0 typing-inspection==0.4.5
        uvicorn==0.54.0""".split(),
        left_out=r"sglang/(multimodal_gen|test|srt/grpc/_core|jit_kernel/(benchmark|tests)/)|sgl_kernel/(sm100/|flashmla_ops|infllm_ops)|"
                 r"(triton_kernels|lib|include|bin|tests)/|_mscclpp",
        pruned=("sgl_kernel/flash_ops.abi3.so", "sgl_kernel/sm90/common_ops.abi3.so")),
}

# What vLLM's Triton kernels of linear attention import, without the rest of vLLM. Its Kimi kernels launch without programmatic dependent launch, so that a
# launch does not begin before the one before it has ended, as those of the other systems.
VLLM_STAND_INS = {
    "vllm/triton_utils.py": "import triton\nimport triton.language as tl\nimport triton.language.extra.libdevice as tldevice\n",
    "vllm/platforms.py": "import types\n\nimport torch\n\ncurrent_platform = types.SimpleNamespace(\n    is_cuda=lambda: True, is_cuda_alike=lambda: True, "
                         "is_arch_support_pdl=lambda: False,\n    is_device_capability_family=lambda family, device_id=None: "
                         "torch.cuda.get_device_capability(device_id)[0] == family // 10)\n",
    **{f"{folder}/__init__.py": "" for leaf in ("vllm/utils", "vllm/third_party/flash_linear_attention/ops", "vllm/models/kimi_k3/nvidia/ops/third_party/kda")
       for folder in [leaf, *map(str, pathlib.PurePosixPath(leaf).parents)] if folder != "."}}
PACKAGES["recurrent-peers"] = Package(
    ["fla-core==0.6.0", "einops==0.8.2", "vllm==0.33.0"],
    kept=r"fla|einops|vllm-[^/]*/METADATA|vllm/utils/math_utils\.py|vllm/models/kimi_k3/nvidia/ops/third_party/kda/fused_recurrent\.py|"
         r"vllm/third_party/flash_linear_attention/ops/(fused_recurrent|fused_sigmoid_gating|op|utils)\.py", files=VLLM_STAND_INS)


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
            tar = subprocess.Popen(["tar", "-C", site, "--sparse", "-cf", "-", *sorted(path.name for path in site.iterdir())], stdout=subprocess.PIPE)
            subprocess.run(["xz", "-T0", "-6"], stdin=tar.stdout, stdout=file, check=True)
            if tar.wait():
                sys.exit("tar failed")
    print(f"{out.name}: {out.stat().st_size / 2**20:.1f} MiB")


def unpack(package, wheels, site):
    """Fills the folder `site` with the package, as an installation would have it."""
    flags = [flag for platform in PLATFORMS for flag in ("--platform", platform)]
    subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--python-version", "3.12", "--implementation",
                    "cp", "--abi", "cp312", "--abi", "abi3", "--abi", "none", *flags, "--dest", wheels, *package.wheels], check=True)
    kept, left_out = re.compile(package.kept), re.compile(package.left_out)
    for wheel in sorted(wheels.iterdir()):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site, [name for name in archive.namelist() if kept.match(name) and not left_out.match(name)])
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
    """Whether machine code has kernels that a model with bf16 and head size 128 runs, as far as names tell. A size of 128 for queries and keys is
    written as a reference to the tile's first size, which is 128, too."""
    kinds = set(_FLASH.findall(code))
    return not kinds or any(end != b"E" and (size, type) == (b"128", b"bfloat16_t") for end, size, type in kinds)


def without_unused(code):
    """Machine code with zeros for what debuggers read and, where no model here runs its kernels, for instructions."""
    code = bytearray(code)
    unused = DEBUG if is_wanted(bytes(code)) else (*DEBUG, b".text.")
    for name, begin, length in list(sections(code)):
        if name.startswith(unused):
            code[begin:begin + length] = bytes(length)
    return bytes(code)


def zero_unused(data, offset, size):
    """The same for machine code in a library, which may be compressed: then it is compressed anew, and its length noted in the entry's header."""
    head = bytes(data[offset:offset + 4])
    if head == b"\x7fELF":
        data[offset:offset + size] = without_unused(data[offset:offset + size])
    elif head == ZSTD:
        length = struct.unpack_from("<I", data, offset - 64 + 16)[0]
        code = subprocess.run(["zstd", "-dcq"], input=bytes(data[offset:offset + length]), stdout=subprocess.PIPE, check=True).stdout
        if not is_wanted(code):
            made = subprocess.run(["zstd", "-q", "-19"], input=without_unused(code), stdout=subprocess.PIPE, check=True).stdout
            data[offset:offset + size] = made + bytes(size - len(made))
            struct.pack_into("<I", data, offset - 64 + 16, len(made))


def write_sparse(path, data, block=1 << 16):
    """Writes a file whose zeros take no space."""
    with path.open("wb") as file:
        for start in range(0, len(data), block):
            part = bytes(data[start:start + block])
            if part.count(0) == len(part):
                file.seek(len(part), 1)
            else:
                file.write(part)
        file.truncate(len(data))


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
    write_sparse(path, data)


if __name__ == "__main__":
    main()
