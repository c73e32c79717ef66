"""What importing does and does not do, build_info, and what a wheel holds."""

import os
import re
import subprocess
import sys
import zipfile

import pytest

import halfstep as hs
from tests.helpers import ROOT, child

IMPORT = """
import sys, numpy
before = set(sys.modules)
import halfstep
print(sorted(set(sys.modules) - before - {"importlib"}))
maps = open("/proc/self/maps").read()
print([line for line in maps.splitlines() if "libcuda" in line or "libtorch" in line])
"""


def test_importing_loads_neither_torch_nor_cuda():
    modules, mapped = child(IMPORT).splitlines()
    assert modules == str(["halfstep", "halfstep._C"])
    assert mapped == "[]"


def test_build_info_names_what_was_built():
    info = hs.build_info()
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", info["version"])
    assert info["cpu_instruction_set"] in ("base", "avx2", "avx512")
    assert isinstance(info["cuda"], bool) and bool(info["cuda_architectures"]) == info["cuda"]
    assert all(a.isdigit() for a in info["cuda_architectures"])
    assert isinstance(info["gpus"], int) and info["gpus"] >= 0
    assert info["compiler"]


def test_the_version_is_the_project_files():
    text = (ROOT / "pyproject.toml").read_text()
    assert re.search(r'^version = "(.+)"$', text, re.M).group(1) == hs.__version__


def test_instruction_set_is_lowered_and_never_raised():
    code = "import halfstep; print(halfstep.build_info()['cpu_instruction_set'])"
    assert child(code, HALFSTEP_ISA="base").strip() == "base"
    assert child(code, HALFSTEP_ISA="avx512").strip() == child(code, HALFSTEP_ISA="").strip()


def test_dir_lists_the_public_names():
    assert set(hs.__all__) <= set(dir(hs))
    with pytest.raises(AttributeError, match=r"halfstep.*nothing"):
        hs.nothing  # noqa: B018


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [*command, "-w", str(folder), str(ROOT)],
        env={**os.environ, "HALFSTEP_CUDA": "0"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("*.whl")
    return path


@pytest.mark.slow
def test_the_wheel_serves_every_python(wheel):
    assert re.search(r"-cp311-abi3-linux_\w+\.whl$", wheel.name)


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_no_source_tree(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert "halfstep/_C.abi3.so" in names and "halfstep/functional/norm.py" in names
    outside = [n for n in names if not re.match(r"halfstep/|halfstep-[\d.]+\.dist-info/", n)]
    assert outside == []
    assert [n for n in names if n.endswith((".c", ".h", ".cu", ".cuh", ".o"))] == []
    assert [n for n in names if n.endswith(".so")] == ["halfstep/_C.abi3.so"]


@pytest.mark.slow
def test_the_wheel_keeps_to_the_stable_abi(wheel):
    pytest.importorskip("abi3audit", reason="abi3audit is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "abi3audit", "--strict", str(wheel)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
