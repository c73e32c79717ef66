"""The one direction of knowledge: fails on any include or import that the layout does not allow."""

import ast
import re
import subprocess

import pytest

from tests.helpers import ROOT

# Each folder, and the folders that its files may include besides themselves.
INCLUDES = {
    "kernels/base": set(),
    "kernels/ops": {"kernels/base"},
    "kernels/cpu": {"kernels/base", "kernels/ops"},
    "kernels/cuda": {"kernels/base", "kernels/ops"},
    "csrc/runtime": {"kernels/base"},
    "csrc/bind": {
        "kernels/base",
        "kernels/ops",
        "kernels/cpu",
        "kernels/cuda",
        "csrc/runtime",
    },
}
# What of the C library anybody may use; the operating system is os.c's alone.
C_LIBRARY = {
    "float.h",
    "inttypes.h",
    "limits.h",
    "math.h",
    "stdarg.h",
    "stdatomic.h",
    "stdbool.h",
    "stddef.h",
    "stdint.h",
    "stdio.h",
    "stdlib.h",
    "string.h",
}
SYSTEM_BY_FOLDER = {
    "kernels/base": {"cuda_fp16.h", "cuda_bf16.h"},
    "kernels/cpu": {"immintrin.h", "arm_neon.h"},
    "kernels/cuda": {
        "cuda_runtime.h",
        "cuda_runtime_api.h",
        "cuda_fp16.h",
        "cuda_bf16.h",
    },
    "csrc/bind": {"Python.h", "numpy/arrayobject.h"},
}
SYSTEM_BY_FILE = {
    "kernels/base/os.c": {"dlfcn.h", "pthread.h", "sched.h", "unistd.h", "sys/sysinfo.h", "errno.h"}
}
# Left to right: a module imports only what stands further left than itself.
LAYERS = [
    {"_C"},
    {"_compat", "_libs"},
    {"_half", "_ops"},
    {"functional"},
    {"nn", "optim", "amp", "checkpoint", "data", "graph", "monitor", "profile", "memory"}
    | {"precision"},
    {"_accelerate"},
    {"_demo", "demo", "export", "doctor", "bench", "integrations"},
    {"cli"},
]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
LONGEST = 400


def tracked(*patterns):
    done = subprocess.run(
        ["git", "ls-files", "--", *patterns], cwd=ROOT, capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip("the sources are not in a git checkout")
    return [ROOT / line for line in done.stdout.splitlines() if (ROOT / line).is_file()]


def includes(path):
    for line in path.read_text().splitlines():
        match = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
        if match:
            yield match.groups()


def c_sources():
    suffixes = {".c", ".h", ".cu", ".cuh"}
    return [p for p in tracked("kernels", "csrc") if p.suffix in suffixes]


def folder_of(path):
    return path.parent.relative_to(ROOT).as_posix()


def test_every_c_file_stands_in_a_known_folder():
    assert {folder_of(p) for p in c_sources()} <= set(INCLUDES)


def test_includes_follow_the_arrows():
    wrong = []
    for path in c_sources():
        allowed = INCLUDES[folder_of(path)] | {folder_of(path)}
        for mark, name in includes(path):
            target = (path.parent / name).resolve()
            if mark == '"' and not target.is_file():
                wrong.append(f"{path.relative_to(ROOT)}: {name} does not exist")
            elif mark == '"' and folder_of(target) not in allowed:
                wrong.append(f"{path.relative_to(ROOT)} includes {name}")
    assert wrong == []


def test_system_headers():
    wrong = []
    for path in c_sources():
        name = path.relative_to(ROOT).as_posix()
        allowed = C_LIBRARY | SYSTEM_BY_FOLDER.get(folder_of(path), set())
        allowed |= SYSTEM_BY_FILE.get(name, set())
        wrong += [f"{name}: <{n}>" for m, n in includes(path) if m == "<" and n not in allowed]
    assert wrong == []


def module_of(path):
    """("functional", ...) for python/halfstep/functional/norm.py."""
    parts = path.relative_to(ROOT / "python" / "halfstep").with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def imports(path):
    """The dotted names that a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_python_imports_only_what_stands_to_its_left():
    wrong = []
    for path in tracked("python/halfstep/*.py"):
        module = module_of(path)
        if not module:
            continue  # the package itself: checked below
        if module[0] not in RANK:
            wrong.append(f"{path.relative_to(ROOT)}: {module[0]} has no place in the layout")
            continue
        for name in imports(path):
            parts = name.split(".")
            if parts[0] != "halfstep":
                continue
            if len(parts) > 1 and parts[1] in RANK:
                if parts[1] != module[0] and RANK[parts[1]] >= RANK[module[0]]:
                    same = {module[0], parts[1]} == {"_ops", "_half"}
                    wrong += [] if same else [f"{path.relative_to(ROOT)} imports {name}"]
            elif module[0] not in LAYERS[-1] | LAYERS[-2]:
                wrong.append(f"{path.relative_to(ROOT)} imports the package itself ({name})")
    assert wrong == []


def test_the_package_imports_only_c_when_it_is_imported():
    tree = ast.parse((ROOT / "python/halfstep/__init__.py").read_text())
    names = {
        alias.name
        for node in tree.body
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    assert names == {"importlib", "_C"}


def test_only_python_knows_torch():
    """And of Python only what the layout names: C knows neither torch's headers nor its symbols."""
    for path in c_sources():
        assert not [n for _, n in includes(path) if re.match(r"(torch|ATen|c10)/", n)], path


@pytest.mark.parametrize(
    "patterns", [("kernels", "csrc", "python", "benchmarks", "setup.py"), ("tests",)]
)
def test_no_long_files(patterns):
    suffixes = {".py", ".c", ".h", ".cu", ".cuh"}
    lengths = {
        p.relative_to(ROOT).as_posix(): len(p.read_text().splitlines())
        for p in tracked(*patterns)
        if p.suffix in suffixes
    }
    assert {name: n for name, n in lengths.items() if n > LONGEST} == {}


def test_every_op_has_its_files():
    """One op, one name, everywhere."""
    headers = {p.stem for p in tracked("kernels/ops/*.h")} - {"check"}
    for op in headers:
        expected = [f"kernels/ops/{op}.c", f"kernels/cuda/{op}.c*", f"tests/unit/test_{op}.py"]
        if op != "linear":  # the CPU multiplies with torch or NumPy
            expected.append(f"kernels/cpu/{op}.c")
        for pattern in expected:
            assert list(ROOT.glob(pattern)), f"{op}: no {pattern}"
