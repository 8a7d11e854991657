"""c_header.py -- ctypes structs and enum values read from a C header, so that the binding cannot drift from it. No compiler, no GPU.

Understands what leanattn/leanattn.h is written in: `typedef struct name { ... } name;` with scalar, pointer, char-array and
pointer-array fields, callbacks (`typedef int32_t (*name)(...);`), arrays of a number or of a `#define`d one, and `typedef enum name { NAME = value, ... } name;`. Anything else in such a body is an error.
"""
import ctypes
import re

SCALARS = {
    "size_t": ctypes.c_size_t, "int32_t": ctypes.c_int32, "uint32_t": ctypes.c_uint32, "int64_t": ctypes.c_int64, "uint64_t": ctypes.c_uint64,
    "float": ctypes.c_float, "double": ctypes.c_double,
}


def without_comments(text):
    return re.sub(r"/\*.*?\*/", " ", text, flags=re.DOTALL)


def structs(text):
    """Name to ctypes.Structure of every struct with a body."""
    plain = without_comments(text)
    for name, number in re.findall(r"#define (\w+) (\d+)\s*$", plain, flags=re.MULTILINE):
        plain = plain.replace(f"[{name}]", f"[{number}]")
    pointers = re.findall(r"typedef \w+ \(\*(\w+)\)\(|typedef struct \w+\* (\w+);", plain)  # to functions, and to structs of others
    scalars = SCALARS | {name: ctypes.c_void_p for name in map("".join, pointers)}
    found = re.finditer(r"typedef struct (\w+) \{(.*?)\} \1;", plain, flags=re.DOTALL)
    made = {}
    for match in found:
        made[match[1]] = type(match[1], (ctypes.Structure,), {"_fields_": fields(match[2], scalars | made)})
    return made


def enums(text):
    """Name to {constant: value} of every enum."""
    found = re.finditer(r"typedef enum (\w+) \{(.*?)\} \1;", without_comments(text), flags=re.DOTALL)
    return {match[1]: {name: int(value) for name, value in re.findall(r"(\w+) = (\d+)", match[2])} for match in found}


def constants(text):
    """{constant: value} of all enums, those without a name as well."""
    bodies = re.findall(r"\benum (?:\w+ )?\{(.*?)\}", without_comments(text), flags=re.DOTALL)
    return {name: int(value) for body in bodies for name, value in re.findall(r"(\w+) = (\d+)", body)}


def fields(body, scalars):
    """(name, ctype) of each field declared in a struct's body. `scalars` are the types that are one word, structs that stand in front included."""
    result = []
    for declaration in filter(None, (part.strip() for part in body.split(";"))):
        pointer = re.fullmatch(r"(?:const )?(\w+)\s*\*\s*(\w+)", declaration)
        scalar = re.fullmatch(r"(\w+)\s+(\w+(?:\s*,\s*\w+)*)", declaration)
        pointers = re.fullmatch(r"(?:const )?\w+\s*\*\s*(\w+)\[(\d+)\]", declaration)
        array = re.fullmatch(r"char\s+(\w+)\[(\d+)\]", declaration)
        if pointer:
            result.append((pointer[2], ctypes.c_char_p if pointer[1] == "char" else ctypes.c_void_p))
        elif pointers:
            result.append((pointers[1], ctypes.c_void_p * int(pointers[2])))
        elif array:
            result.append((array[1], ctypes.c_char * int(array[2])))
        elif scalar and scalar[1] in scalars:
            result.extend((name.strip(), scalars[scalar[1]]) for name in scalar[2].split(","))
        else:
            raise ValueError(f"a field this reader does not understand: {declaration!r}")
    return result
