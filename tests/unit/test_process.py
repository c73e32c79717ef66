"""Leaks, threads, forks, instruction sets, and the process without torch or its exchange API."""

import gc
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

import halfstep as hs
from halfstep import _C
from tests.helpers import ROOT, child, normal
from tests.tolerances import FACTOR, ULPS, ulp

hsf = hs.functional


def one_step(x, w, b, t):
    h = hsf.linear(hsf.layer_norm(hsf.dropout(x, 0.1, state=(1, 2)), (16,), w[0], b), w, b, "gelu")
    loss = hsf.cross_entropy(h, t)
    loss.backward()
    return loss


def step_inputs():
    x, w, b = normal(0, (4, 16)), normal(1, (16, 16)), normal(2, (16,))
    return (*(t.requires_grad_() for t in (x, w, b)), torch.arange(4))


def resident_bytes():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def numpy_step(x, w, b, t):
    y = hsf.layer_norm(x, (16,), w, b)
    hsf.layer_norm_backward(y, x, (16,), w, b)
    hsf.cross_entropy_backward(hsf.cross_entropy(x, t), x, t)


def refused(x, w, b, t):
    for call in (
        lambda: hsf.layer_norm(x, (16,), w[:3], b),
        lambda: hsf.gelu(x.double()),
        lambda: hsf.cross_entropy(x, t + 100),
    ):
        with pytest.raises((TypeError, ValueError)):
            call()


@pytest.mark.parametrize("kind", ["torch", "numpy", "errors"])
def test_ten_thousand_calls_leak_nothing(kind):
    tensors = step_inputs()
    if kind == "numpy":
        x, w, b, t = (a.detach().numpy() for a in tensors)
        tensors, call = (x, w[0].copy(), b, t), numpy_step
    else:
        call = one_step if kind == "torch" else refused

    def settle():
        gc.collect()
        return [sys.getrefcount(t) for t in tensors], resident_bytes()

    for _ in range(300):
        call(*tensors)
    counts, memory = settle()
    for _ in range(10_000 // 4):  # four calls of C or more in each
        call(*tensors)
    after, grown = settle()
    assert after == counts
    assert grown - memory < 2**20, f"grew by {grown - memory} bytes"


def test_four_threads_give_the_same_bits():
    x, dy = normal(0, (256, 512)), normal(1, (256, 512))
    w, b, t = normal(2, (512,)), normal(3, (512,)), torch.arange(256)

    def work():
        leaf = x.detach().requires_grad_()
        y = hsf.layer_norm(hsf.gelu(leaf), (512,), w, b)
        hsf.cross_entropy(y, t).backward()
        y2 = hsf.layer_norm(x, (512,), w, b)
        return torch.cat([leaf.grad, y2, hsf.dropout(dy, 0.5, state=(7, 0))])

    expected, results = work(), []
    threads = [
        threading.Thread(target=lambda: results.extend(work() for _ in range(10))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 40
    assert all(torch.equal(r, expected) for r in results)


def test_the_thread_count_changes_no_mask_and_no_row():
    x, before = normal(0, (300, 700)), _C.thread_count()
    results = []
    try:
        for count in (1, 2, 3, 8):
            assert _C.thread_count(count) == count
            results.append(
                torch.cat([hsf.layer_norm(x, (700,)), hsf.dropout(x, 0.5, state=(1, 2))])
            )
    finally:
        _C.thread_count(before)
    assert all(torch.equal(r, results[0]) for r in results)


FORK = """
import os, threading
import numpy as np, halfstep as hs
x = np.random.default_rng(0).standard_normal((2048, 1024)).astype(np.float32)
expected = hs.functional.layer_norm(x, (1024,))  # the pool is running
pid = os.fork()
if pid == 0:
    same = np.array_equal(hs.functional.layer_norm(x, (1024,)), expected)
    os._exit(0 if same else 1)
_, status = os.waitpid(pid, 0)
assert np.array_equal(hs.functional.layer_norm(x, (1024,)), expected)
print("child", os.waitstatus_to_exitcode(status))
"""


def test_an_op_works_after_a_fork():
    assert child(FORK, HALFSTEP_NUM_THREADS="4").strip() == "child 0"


ISA = """
import sys
import numpy as np, ml_dtypes, halfstep as hs
f, rng, out = hs.functional, np.random.default_rng(0), {}
assert hs.build_info()["cpu_instruction_set"] == sys.argv[1]
for dtype in (np.float32, np.float16, ml_dtypes.bfloat16):
    x, dy = (rng.standard_normal((37, 101)).astype(dtype) for _ in range(2))
    w, b = (rng.standard_normal(101).astype(dtype) for _ in range(2))
    t = np.arange(37)
    made = [f.layer_norm(x, 101, w, b), *f.layer_norm_backward(dy, x, 101, w, b)]
    for kind in (None, "relu", "gelu", "gelu_tanh", "silu"):
        made += [f.bias_act(x, b, kind), *f.bias_act_backward(dy, x, b, kind)]
    made += [f.cross_entropy(x, t), f.cross_entropy_backward(np.float32(1)[...], x, t)]
    made += [f.dropout(x, 0.3, state=(5, 6))]
    for i, a in enumerate(made):
        out[f"{np.dtype(dtype).name} {i} {a.dtype.name}"] = np.asarray(a, np.float64)
np.savez(sys.argv[2], **out)
"""


def test_instruction_sets_agree(tmp_path):
    """Each against the plainest one, within the rule for two results of the same arithmetic."""
    available = {"x86_64": ["base", "avx2", "avx512"]}.get(os.uname().machine, ["base"])
    best = child("import halfstep; print(halfstep._C.build()['cpu_instruction_set'])").strip()
    results = {}
    for isa in available[: available.index(best) + 1]:
        path = tmp_path / f"{isa}.npz"
        code = f"import sys; sys.argv = ['isa', {isa!r}, {str(path)!r}]\n{ISA}"
        child(code, HALFSTEP_ISA=isa)
        results[isa] = np.load(path)
    for isa, result in results.items():
        for name, expected in results["base"].items():
            dtype = name.split()[-1]
            unit = ulp(np.abs(expected).max(), dtype)
            error = np.abs(result[name] - expected).max()
            assert error <= FACTOR * ULPS[dtype] * unit, f"{isa}: {name}"


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # an import of it raises
import numpy as np, halfstep as hs
x = np.ones((2, 4), np.float32)
for y in (hs.functional.layer_norm(x, 4), hs.functional.linear(x, x, None, "gelu"),
          hs.functional.dropout(x), hs.functional.cross_entropy(x, np.array([0, 3]))):
    assert isinstance(y, np.ndarray)
print("fine")
"""


def test_arrays_work_without_torch():
    assert child(WITHOUT_TORCH).strip() == "fine"


def test_the_path_of_torch_below_2_10():
    """The same tests with tensors read through to_dlpack."""
    files = [f"tests/unit/test_{name}.py" for name in ("norm", "act", "xent", "boundary")]
    words = ["layouts", "residual", "margins", "zero_sizes", "refused", "counters", "negative"]
    options = ["-q", "-x", "-p", "no:cacheprovider", "--without-exchange-api"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *files, "-k", " or ".join(words)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:]
