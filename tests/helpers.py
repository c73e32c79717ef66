"""What tests share: inputs of every dtype and kind, gradients, poisoned margins, processes."""

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import ml_dtypes
import numpy as np
import torch

from halfstep import _C

ROOT = Path(__file__).resolve().parent.parent
DTYPES = ["float32", "float16", "bfloat16"]
HALVES = ["float16", "bfloat16"]
ACTIVATIONS = [None, "relu", "gelu", "gelu_tanh", "silu"]
# 0 to 3; the vector width (8 and 16 lanes) -1, 0, +1; a block of a few vectors -1, 0, +1.
SIZES = [0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 63, 64, 65]
# Gradients as they arrive under a loss scale, and as small as float16 only just holds.
GRADIENT_SCALES = [1.0, 2.0**16, 2.0**-14]


# ---- values ----
def dtype_name(array):
    return str(array.dtype).rpartition(".")[2]


def torch_dtype(name):
    return getattr(torch, name)


def to64(array):
    """A tensor or array as NumPy float64 (integers stay integers)."""
    if isinstance(array, torch.Tensor):
        array = array.detach().cpu()
        return array.numpy() if array.dtype == torch.int64 else array.double().numpy()
    if isinstance(array, Foreign):
        array = array.array
    array = np.asarray(array)
    return array if array.dtype == np.int64 else array.astype(np.float64)


def normal(seed, shape, dtype="float32", device="cpu", scale=1.0):
    """Standard normal values times scale, rounded to dtype: the same on every device."""
    values = np.random.default_rng([seed, *map(int, np.atleast_1d(shape))]).standard_normal(shape)
    return torch.from_numpy(np.asarray(values * scale)).to(torch_dtype(dtype)).to(device)


def with_outliers(x):
    """x with one element of every second row a thousand times larger, as activations have."""
    x = x.clone()
    if x.numel():
        x[..., ::2, :1] *= 1000
    return x


def gradient(seed, shape, dtype, device, scale=1.0):
    """A gradient of about 2^-8 times scale: at 2^16 a sum over rows still fits float16."""
    return normal(seed + 1000, shape, dtype, device, scale * 2.0**-8)


def backward(f, dy, **leaves):
    """{"y": f(**leaves), "d<name>": its gradients}. Absent (None) leaves have none."""
    leaves = {
        name: None if t is None else t.detach().requires_grad_() for name, t in leaves.items()
    }
    y = f(**leaves)
    y.backward(dy)
    return {"y": y.detach()} | {f"d{k}": t.grad for k, t in leaves.items() if t is not None}


def upcast(f, dtype):
    """f on float32 copies, its result rounded once to dtype."""

    def run(**tensors):
        y = f(**{name: None if t is None else t.float() for name, t in tensors.items()})
        return y.to(torch_dtype(dtype))

    return run


# ---- kinds of arrays ----
class Foreign:
    """An array of a library that we do not know: DLPack and the array namespace, no more."""

    def __init__(self, array):
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def __dlpack__(self, **options):
        if self.dtype == ml_dtypes.bfloat16:
            bits = torch.from_numpy(self.array.view(np.int16))
            return bits.view(torch.bfloat16).__dlpack__()
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return (1, 0)

    def __array_namespace__(self):
        return ForeignNamespace


class ForeignNamespace:
    asarray = Foreign


def to_numpy(t):
    """A CPU tensor as NumPy, bfloat16 as ml_dtypes has it."""
    t = t.detach()
    if t.dtype != torch.bfloat16:
        return t.numpy()
    return t.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)


KINDS = {"numpy": to_numpy, "foreign": lambda t: Foreign(to_numpy(t))}


def other_layouts(t):
    """(name, view with t's values that is not row-major) for each layout that t's rank allows."""
    yield "strided", torch.stack([t, torch.zeros_like(t)], -1)[..., 0]
    if t.dim() >= 2:
        yield "transposed", t.transpose(0, 1).contiguous().transpose(0, 1)
    if t.dim() == 4:
        yield "channels_last", t.contiguous(memory_format=torch.channels_last)


# ---- counters, margins, processes ----
@contextmanager
def counted(*functions):
    """Fails unless every named function of _C completed a call inside."""
    before = _C.calls()
    yield
    after = _C.calls()
    assert [f for f in functions if after[f] == before[f]] == []


class Margins:
    """Outputs cut from the middle of poisoned buffers."""

    WIDTH = 64
    POISON = 0x5A

    def __init__(self, device="cpu", shift=0):
        """shift moves outputs by that many elements, off every vector's alignment."""
        self.device, self.shift, self.buffers = device, shift, []

    def empty(self, shape, dtype):
        count, size = int(np.prod(shape)), torch_dtype(dtype).itemsize
        buffer = torch.full(
            ((count + 2 * self.WIDTH + self.shift) * size,),
            self.POISON,
            dtype=torch.uint8,
            device=self.device,
        )
        begin = (self.WIDTH + self.shift) * size
        self.buffers.append((buffer, begin, begin + count * size))
        return buffer[begin : begin + count * size].view(torch_dtype(dtype)).view(shape)

    def like(self, t):
        return self.empty(tuple(t.shape), dtype_name(t))

    def check(self):
        for buffer, begin, end in self.buffers:
            assert (buffer[:begin] == self.POISON).all(), "written in front of an output"
            assert (buffer[end:] == self.POISON).all(), "written behind an output"


def child(code, timeout=120, **environment):
    """Runs Python code in a new process and returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
