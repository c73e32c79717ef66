"""LayerNorm on a GPU."""

import pytest
import torch

import halfstep as hs
from tests.gpu import on_gpu
from tests.helpers import gradient, normal
from tests.unit.test_norm import compare_with_residual

globals().update(on_gpu("tests.unit.test_norm"))

# The dtypes of x and of the residual that it is added to.
KINDS_OF_ROWS = [
    ("float32", "float32"),
    ("float16", "float16"),
    ("float16", "float32"),
    ("bfloat16", "bfloat16"),
    ("bfloat16", "float32"),
]


def is_few(rows, cols, size):
    """What takes one launch: is_few in kernels/cuda/norm_backward.cuh."""
    return rows <= 64 and cols * size <= 2 << 10


def borders():
    """Sizes on both sides of each limit, in packs and odd: (dtype, residual dtype, rows, cols)."""
    for dtype, residual_dtype in KINDS_OF_ROWS:
        size = getattr(torch, residual_dtype).itemsize
        longest = (2 << 10) // size
        sizes = [(rows, cols) for rows in (63, 64, 65) for cols in (24, 33, longest)]
        sizes += [(5, longest + more) for more in (-8, -1, 0, 1, 8)]
        sizes += [(1, longest), (31, 40), (33, 40)]
        assert {is_few(*shape, size) for shape in sizes} == {False, True}
        yield from ((dtype, residual_dtype, *shape) for shape in sizes)


on_borders = pytest.mark.parametrize("dtype, residual_dtype, rows, cols", list(borders()))


def gradients_of(device, rows, cols, dtype, residual_dtype):
    """run(), which gives the gradients of x, the residual, w and b anew in each call."""
    shapes = [(rows, cols), (rows, cols), (cols,), (cols,)]
    dtypes = [dtype, residual_dtype, dtype, dtype]
    x, r, w, b = leaves = [
        normal(seed, shape, name, device).requires_grad_()
        for seed, (shape, name) in enumerate(zip(shapes, dtypes, strict=True))
    ]
    outputs = hs.functional.layer_norm(x, (cols,), w, b, residual=r)
    grads = [gradient(i, (rows, cols), dtypes[i], device) for i in range(2)]
    return lambda: torch.autograd.grad(outputs, leaves, grads, retain_graph=True)


@on_borders
def test_borders_of_few_rows(device, dtype, residual_dtype, rows, cols):
    compare_with_residual(device, (rows, cols), dtype, residual_dtype)


@on_borders
def test_few_rows_need_no_workspace(device, dtype, residual_dtype, rows, cols):
    run = gradients_of(device, rows, cols, dtype, residual_dtype)
    run()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    grads = run()
    allocated = torch.cuda.memory_stats()["allocation.all.allocated"] - before
    outputs = len({t.data_ptr() for t in grads})
    assert outputs == (3 if dtype == residual_dtype else 4)
    few = is_few(rows, cols, getattr(torch, residual_dtype).itemsize)
    assert allocated == outputs + (0 if few else 1)


@on_borders
def test_borders_of_few_rows_give_the_same_bits(device, dtype, residual_dtype, rows, cols):
    run = gradients_of(device, rows, cols, dtype, residual_dtype)
    first = run()
    for _ in range(10):
        assert all(torch.equal(a, b) for a, b in zip(run(), first, strict=True))
