"""The linear layer with its activation, forward and backward."""

import torch
import torch.nn.functional as F

import halfstep.functional as hsf
from benchmarks.bench import assert_close
from benchmarks.ops.act import ACTIVATIONS
from benchmarks.ops.common import both_directions, compiled


def run(table, quick=False):
    for dtype in (torch.float16, torch.bfloat16):
        for name in [None, "gelu"] if quick else [None, *ACTIVATIONS]:
            linear(table, 8192, 768, 3072, dtype, name)
        linear(table, 8192, 3072, 768, dtype, None)


def linear(table, rows, inputs, outputs, dtype, activation):
    sets = []
    for _ in range(3):
        x = torch.randn(rows, inputs, device="cuda").to(dtype)
        w = (torch.randn(outputs, inputs, device="cuda") * inputs**-0.5).to(dtype)
        b = torch.randn(outputs, device="cuda").to(dtype)
        g = torch.randn(rows, outputs, device="cuda").to(dtype)
        sets.append(([t.requires_grad_() for t in (x, w, b)], g))
    f = ACTIVATIONS.get(activation, lambda y: y)

    def theirs(x, w, b):
        return f(F.linear(x, w, b))

    variants = {
        "halfstep": lambda x, w, b: hsf.linear(x, w, b, activation),
        "torch": theirs,
        "torch.compile": compiled(theirs),
    }
    assert_close(variants["halfstep"](*sets[0][0]), theirs(*sets[0][0]), 1e-2)
    op = "linear" if activation is None else f"linear_{activation}"
    operations = 2 * rows * inputs * outputs
    shape = f"{rows}x{inputs}x{outputs}"
    both_directions(table, op, dtype, shape, variants, sets, 0, 0, operations)
