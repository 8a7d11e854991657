"""The ctypes binding has the sizes, offsets and enum values that a compiler gives the C header."""
import ctypes
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

import bench_paths
from peers import c_header, leanattn_c

COMPILER = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


HEADERS = [leanattn_c.HEADER, leanattn_c.HEADER.with_name("recurrent.h")]


class Header(unittest.TestCase):
    def setUp(self):
        self.text = "".join(header.read_text() for header in HEADERS)
        self.structs = c_header.structs(self.text)

    @unittest.skipUnless(COMPILER, "no C compiler is installed")
    def test_every_struct_has_the_size_and_offsets_that_a_compiler_gives_it(self):
        expected = {}
        for name, struct in self.structs.items():
            expected[name] = ctypes.sizeof(struct)
            expected.update({f"{name}.{field}": getattr(struct, field).offset for field, _ in struct._fields_})
        lines = [f'printf("%s %zu\\n", "{key}", ' + (f"offsetof({key.split('.')[0]}, {key.split('.')[1]})" if "." in key else f"sizeof({key})") + ");" for key in expected]
        program = "".join(f"#include <leanattn/{header.name}>\n" for header in HEADERS) + "#include <stdio.h>\nint main(void) {\n" + "\n".join(lines) + "\nreturn 0;\n}\n"
        with tempfile.TemporaryDirectory() as folder:
            source, binary = pathlib.Path(folder) / "layout.c", pathlib.Path(folder) / "layout"
            source.write_text(program)
            subprocess.run([COMPILER, "-std=c11", "-I", str(bench_paths.ROOT / "include"), str(source), "-o", str(binary)], check=True)
            output = subprocess.run([str(binary)], check=True, capture_output=True, text=True).stdout
        self.assertEqual({line.split()[0]: int(line.split()[1]) for line in output.splitlines()}, expected)

    def test_the_structs_that_the_binding_uses_are_there(self):
        self.assertLessEqual({"leanattn_engine_options", "leanattn_problem", "leanattn_shape", "leanattn_plan_info", "leanattn_decode_args"}, set(self.structs))

    def test_enum_values_are_read(self):
        enums = c_header.enums(self.text)
        self.assertEqual(enums["leanattn_status"]["LEANATTN_OK"], 0)
        self.assertEqual(enums["leanattn_provenance"]["LEANATTN_FALLBACK"], 4)

    def test_a_field_that_is_not_understood_is_an_error(self):
        with self.assertRaises(ValueError):
            c_header.structs("typedef struct odd { int (*callback)(void); } odd;")
        with self.assertRaises(ValueError):
            c_header.structs("typedef struct odd { unknown_t value; } odd;")

    def test_arrays_of_pointers_have_a_defined_number_of_them(self):
        found = c_header.structs("#define PARTS 8\ntypedef struct t { const void* o[PARTS]; float* lse[2]; } t;")
        self.assertEqual(ctypes.sizeof(found["t"]), 80)

    def test_structs_have_structs_before_them(self):
        found = c_header.structs("typedef struct s { void* p; int32_t n; } s; typedef struct t { int32_t a; s b, c; } t;")
        self.assertEqual((ctypes.sizeof(found["t"]), found["t"].c.offset), (40, 24))

    def test_comments_hold_no_fields(self):
        found = c_header.structs("typedef struct t { int32_t a; /* int32_t b; */ int32_t c, d; } t;")
        self.assertEqual([name for name, _ in found["t"]._fields_], ["a", "c", "d"])


LIBRARY = os.environ.get("LEANATTN_TEST_LIBRARY")


@unittest.skipUnless(LIBRARY, "LEANATTN_TEST_LIBRARY names no libleanattn.so")
class Loaded(unittest.TestCase):
    """The binding works with a built library. Without a driver, the library refuses an engine and says why."""

    def test_version_and_errors_come_through(self):
        library = leanattn_c.Library(LIBRARY)
        self.assertRegex(library.version().decode(), r"^\d+\.\d+\.\d+$")
        self.assertEqual(library.constant("provenance", 1), "bucket")
        with self.assertRaisesRegex(leanattn_c.LeanattnError, "invalid_argument|no_device|no_driver|unsupported"):
            leanattn_c.Engine(library, device=-1)

    def test_an_unknown_field_is_refused(self):
        with self.assertRaises(AttributeError):
            leanattn_c.Library(LIBRARY).make("problem", nonsense=1)


if __name__ == "__main__":
    unittest.main()
