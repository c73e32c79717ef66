"""kernels/base/cublaslt.h beside the real cublasLt.h: every value, size and function type."""

import os
import re
import shlex
import shutil
import subprocess
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

BASE = Path(__file__).resolve().parents[2] / "kernels" / "base"
OURS = BASE / "cublaslt.h"

# Our prefixes and the library's.
PREFIXES = {
    "HS_LT_REDUCTION_SCHEME_": "CUBLASLT_REDUCTION_SCHEME_",
    "HS_LT_EPILOGUE_": "CUBLASLT_EPILOGUE_",
    "HS_LT_COMPUTE_": "CUBLAS_COMPUTE_",
    "HS_LT_STATUS_": "CUBLAS_STATUS_",
    "HS_LT_DESC_": "CUBLASLT_MATMUL_DESC_",
    "HS_LT_PREF_": "CUBLASLT_MATMUL_PREF_",
    "HS_LT_OP_": "CUBLAS_OP_",
    "HS_LT_R_": "CUDA_R_",
}
TYPES = {
    "hs_lt_status": "cublasStatus_t",
    "hs_lt_compute_type": "cublasComputeType_t",
    "hs_lt_element_type": "cudaDataType_t",
    "hs_lt_desc_attribute": "cublasLtMatmulDescAttributes_t",
    "hs_lt_pref_attribute": "cublasLtMatmulPreferenceAttributes_t",
    "hs_lt_handle": "cublasLtHandle_t",
    "hs_lt_desc": "cublasLtMatmulDesc_t",
    "hs_lt_layout": "cublasLtMatrixLayout_t",
    "hs_lt_pref": "cublasLtMatmulPreference_t",
    "hs_lt_cuda_stream": "cudaStream_t",
    "hs_lt_algo": "cublasLtMatmulAlgo_t",
    "hs_lt_candidate": "cublasLtMatmulHeuristicResult_t",
}
# What cublasLt.h includes but the wheels leave out, and what needs that: crt/ holds attributes that
# mean nothing to a compiler for the CPU alone, and cuBLASLt declares nothing with 16-bit types.
STAND_INS = {
    "crt/host_defines.h": """
#define __host__
#define __device__
#define __device_builtin__
#define __cudart_builtin__
#define CUDARTAPI
#define CUDART_CB
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __attribute__((aligned(n)))
""",
    "cuda_fp16.h": "",
    "cuda_bf16.h": "",
}
CANDIDATE_FIELDS = ("algo", "workspaceSize", "state", "wavesCount", "reserved")


def include_folders():
    spec = PathFinder.find_spec("nvidia")
    roots = [Path(root) for root in (spec.submodule_search_locations or ())] if spec else []
    folders = [folder for root in roots for folder in sorted(root.glob("*/include"))]
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    folders += [Path(home) / "include" for home in homes if home]
    return [folder for folder in folders if folder.is_dir()]


@pytest.fixture(scope="module")
def compiles(tmp_path_factory):
    """Says whether the compiler takes a C source that includes cublasLt.h, and what it says."""
    compiler = shlex.split(os.environ.get("CC", "cc"))
    if shutil.which(compiler[0]) is None:
        pytest.skip(f"no C compiler: {compiler[0]}")
    folders = include_folders()
    if not any((folder / "cublasLt.h").exists() for folder in folders):
        pytest.skip("no cublasLt.h in site-packages/nvidia, CUDA_HOME or CUDA_PATH")
    folder = tmp_path_factory.mktemp("headers")
    source = folder / "headers.c"
    (folder / "crt").mkdir()
    for name, text in STAND_INS.items():
        (folder / name).write_text(text)
    folders.insert(0, folder)
    command = [*compiler, "-std=c11", "-fsyntax-only"]
    command += ["-Werror=incompatible-pointer-types"]
    command += [f"-I{BASE}", *(f"-I{folder}" for folder in folders), str(source)]

    def run(text):
        source.write_text(f"#include <cublasLt.h>\n{text}")
        done = subprocess.run(command, capture_output=True, text=True)
        return done.returncode == 0, done.stderr

    ok, message = run("int nothing;\n")
    assert ok, f"the vendor's header does not compile by itself: {message}"
    return run


def constants():
    text = re.sub(r"/\*.*?\*/", "", OURS.read_text(), flags=re.DOTALL)
    return re.findall(r"\b(HS_LT_\w+)\s*=\s*\d+", text)


def vendor_name(name):
    prefix = next(prefix for prefix in PREFIXES if name.startswith(prefix))
    return PREFIXES[prefix] + name.removeprefix(prefix)


def equal(left, right):
    return f'_Static_assert({left} == {right}, "{left}");\n'


def values():
    text = '#include "cublaslt.h"\n'
    return text + "".join(
        equal(f"(int){name}", f"(int){vendor_name(name)}") for name in constants()
    )


def test_the_constants_are_found():
    names = constants()
    assert len(names) == 34
    assert len({vendor_name(name) for name in names}) == len(names)


def test_values(compiles):
    ok, message = compiles(values())
    assert ok, message


def test_a_wrong_value_is_noticed(compiles):
    ok, message = compiles(values() + equal("(int)HS_LT_OP_N", "(int)CUBLAS_OP_T"))
    assert not ok
    assert message.count("error:") == 1
    assert "HS_LT_OP_N" in message


def test_sizes(compiles):
    text = '#include "cublaslt.h"\n'
    for ours, vendors in TYPES.items():
        text += equal(f"sizeof({ours})", f"sizeof({vendors})")
        text += equal(f"_Alignof({ours})", f"_Alignof({vendors})")
    for field in CANDIDATE_FIELDS:
        ours, vendors = "hs_lt_candidate", TYPES["hs_lt_candidate"]
        text += equal(f"offsetof({ours}, {field})", f"offsetof({vendors}, {field})")
    ok, message = compiles(text)
    assert ok, message


def test_function_types(compiles):
    symbols = re.findall(r'"(cublasLt\w+)"', OURS.read_text())
    text = "#define HS_LT_TYPES\n"
    text += "".join(f"typedef {vendors} {ours};\n" for ours, vendors in TYPES.items())
    text += '#include "cublaslt.h"\n'
    text += f'_Static_assert(sizeof(hs_cublaslt) == {len(symbols)} * sizeof(void *), "names");\n'
    ok, message = compiles(text + f"hs_cublaslt table = {{{', '.join(symbols)}}};\n")
    assert ok, message
    swapped = [symbols[1], symbols[0], *symbols[2:]]
    ok, _ = compiles(text + f"hs_cublaslt table = {{{', '.join(swapped)}}};\n")
    assert not ok, "functions in the wrong order were accepted"
