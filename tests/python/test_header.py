"""rankfold.py says what rankfold.h says: a C program prints sizes, offsets, values; the compiler compares calls."""
import ctypes
import os
import subprocess
import tempfile
import unittest

from world import ROOT  # first: it finds rankfold
import rankfold

STRUCTS = [value for name, value in vars(rankfold).items() if name.startswith("rf_")]
VALUES = {
    **{f"RF_{name}": value for name, value in rankfold.RESULTS.items()},
    **{f"RF_{name}": getattr(rankfold, name) for name in (
        "F32", "BF16", "F16", "EAGER", "GRAPH", "REASSOC", "LOSSY", "DEPENDENT", "SHARE_DEVICE", "OPT_IN", "NO_PEER",
        "STORE_READ")},
    "RF_BACKEND_CPU": rankfold.CPU, "RF_BACKEND_CUDA": rankfold.CUDA,
    "RF_VERSION_MAJOR": rankfold.VERSION[0], "RF_VERSION_MINOR": rankfold.VERSION[1],
    "RF_VERSION_PATCH": rankfold.VERSION[2],
}
INTEGERS = {ctypes.c_int: "int", ctypes.c_uint: "unsigned", ctypes.c_uint32: "uint32_t", ctypes.c_uint64: "uint64_t",
            ctypes.c_size_t: "size_t", ctypes.c_double: "double"}


def expected():
    lines = [f"{name} {value}" for name, value in VALUES.items()]
    lines += [f"results {len(rankfold.RESULTS)}"]
    for struct in STRUCTS:
        name = struct.__name__
        lines.append(f"{name} {ctypes.sizeof(struct)}")
        for field, _ in struct._fields_:
            at = getattr(struct, field)
            lines.append(f"{name}.{field} {at.offset} {at.size}")
    return lines


def program():
    prints = [f'printf("{name} %lld\\n", (long long){name});' for name in VALUES]
    prints += ["int results = 0;", "#define RF_COUNT(name, number, text) results++;", "RF_RESULT_LIST(RF_COUNT)",
               'printf("results %d\\n", results);']
    for struct in STRUCTS:
        name = struct.__name__
        prints.append(f'printf("{name} %zu\\n", sizeof({name}));')
        for field, _ in struct._fields_:
            member = f"(({name} *)0)->{field}"
            prints.append(f'printf("{name}.{field} %zu %zu\\n", offsetof({name}, {field}), sizeof({member}));')
    return "\n".join(["#include <stdio.h>", "#include <rankfold.h>", rankfold.PROTOTYPES, "int main(void) {", *prints,
                      "return 0; }", ""])


def build(folder, text):
    """Compiles and runs a C program: what it prints, and what the compiler says."""
    source, output = os.path.join(folder, "program.c"), os.path.join(folder, "program")
    with open(source, "w", encoding="ascii") as file:
        file.write(text)
    command = ["cc", "-std=c11", f"-I{ROOT}/runtime/include", "-o", output, source]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        return None, done.stderr
    return subprocess.run([output], stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines(), done.stderr


class Header(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())

    def test_structs_and_values_are_those_of_the_header(self):
        printed, said = build(self.folder, program())
        self.assertIsNotNone(printed, said)
        self.assertEqual(printed, expected())

    def test_another_prototype_would_not_compile(self):
        for right, wrong in (("rf_channel_rebind(rf_comm *, int)", "rf_channel_rebind(rf_comm *, uint64_t)"),
                             ("void rf_comm_destroy", "int rf_comm_destroy")):
            self.assertIn(right, rankfold.PROTOTYPES)
            printed, said = build(self.folder, program().replace(right, wrong))
            self.assertIsNone(printed)
            self.assertIn("conflicting types", said)


if __name__ == "__main__":
    unittest.main()
