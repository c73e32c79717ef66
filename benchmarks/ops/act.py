"""Bias and activation."""

import torch
import torch.nn.functional as F

import halfstep.functional as hsf
from benchmarks.bench import assert_close, input_sets
from benchmarks.ops.common import both_directions, compiled

ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "relu": F.relu,
}


def run(table, quick=False):
    for rows, cols in [(16384, 768), (8192, 4096)]:
        for name in ["gelu"] if quick else ACTIVATIONS:
            bias_act(table, rows, cols, torch.bfloat16, name)
    bias_act(table, 8192, 4096, torch.float32, "gelu")


def bias_act(table, rows, cols, dtype, name):
    size = rows * cols * dtype.itemsize
    sets = []
    for _ in range(input_sets(3 * size)):
        x, g = (torch.randn(rows, cols, device="cuda").to(dtype) for _ in range(2))
        b = torch.randn(cols, device="cuda").to(dtype)
        sets.append(([x.requires_grad_(), b.requires_grad_()], g))

    def theirs(x, b):
        return ACTIVATIONS[name](x + b)

    variants = {
        "halfstep": lambda x, b: hsf.bias_act(x, b, name),
        "torch": theirs,
        "torch.compile": compiled(theirs),
    }
    assert_close(variants["halfstep"](*sets[0][0]), theirs(*sets[0][0]), 1e-2)
    op = f"bias_{name}"
    both_directions(table, op, dtype, f"{rows}x{cols}", variants, sets, 2 * size, 3 * size)
