"""What cuBLASLt does in the linear layer: epilogues, types, alignments, choice of algorithm.

The calls go straight to _C, so that outputs can lie between margins at any alignment.
"""

import itertools

import pytest
import torch
import torch.nn.functional as F

import halfstep.functional  # noqa: F401 - it makes torch known to _C
from halfstep import _C
from tests import reference
from tests.helpers import ACTIVATIONS, DTYPES, HALVES, Margins, gradient, normal, to64, torch_dtype
from tests.tolerances import check, largest_error
from tests.unit.test_act import TORCH

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

DEVICE = "cuda"
# (rows, in, out): tensor cores' sizes, then odd ones, then single rows and columns.
SHAPES = [(256, 768, 3072), (64, 64, 8), (33, 767, 129), (3, 1, 3), (1, 3, 1), (1, 64, 24)]

# Of the operands, of dw, of db.
GRADIENT_DTYPES = [("float32", "float32", "float32")]
for half in HALVES:
    GRADIENT_DTYPES += [(half, *pair) for pair in itertools.product([half, "float32"], repeat=2)]


def operands(rows, cols, out, dtype):
    w = normal(1, (out, cols), dtype, DEVICE, cols**-0.5)
    return normal(0, (rows, cols), dtype, DEVICE), w, normal(2, (out,), dtype, DEVICE)


def forward(x, w, b, kind, margins=None, keep_z=True):
    """y, z by our op; z is None for the kinds that do not keep it."""
    margins = margins or Margins(DEVICE)
    like = torch.empty((*x.shape[:-1], w.shape[0]), dtype=x.dtype, device="meta")
    y = margins.like(like)
    z = margins.like(like) if keep_z and kind not in (None, "relu") else None
    _C.linear_forward(x, w, b, y, z, ACTIVATIONS.index(kind), 0)
    margins.check()
    return y, z


def backward(dy, x, w, dw_dtype, db_dtype):
    """dx, dw, db of the plain product."""
    margins = Margins(DEVICE)
    dx, dw = margins.like(x), margins.empty(tuple(w.shape), dw_dtype)
    db = margins.empty((w.shape[0],), db_dtype)
    _C.linear_backward(dy, x, w, None, dx, dw, db, 0, 0)
    margins.check()
    return dx, dw, db


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("kind", ACTIVATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_forward(shape, dtype, kind, with_bias, shift):
    x, w, b = operands(*shape, dtype)
    b = b if with_bias else None
    b64 = None if b is None else to64(b)
    plain = F.linear(x, w, b)
    expected = reference.linear(to64(x), to64(w), b64, kind)
    expected_z = reference.linear(to64(x), to64(w), b64)
    for keep_z in (True, False):
        y, z = forward(x, w, b, kind, Margins(DEVICE, shift), keep_z)
        check("y", y, expected, largest_error(TORCH[kind](plain), expected))
        if z is not None:
            check("z", z, expected_z, largest_error(plain, expected_z))


@pytest.mark.parametrize("dtypes", GRADIENT_DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_bias_gradient_beside_the_weight_gradient(shape, dtypes):
    """db comes out of dw's product where both have one dtype."""
    dtype, dw_dtype, db_dtype = dtypes
    x, w, _ = operands(*shape, dtype)
    dy = gradient(3, (shape[0], shape[2]), dtype, DEVICE)
    expected = reference.linear_backward(to64(dy), to64(x), to64(w))
    torchs = (dy @ w, (dy.T @ x).to(torch_dtype(dw_dtype)), dy.sum(0).to(torch_dtype(db_dtype)))
    actual = backward(dy, x, w, dw_dtype, db_dtype)
    for name, ours, theirs, truth in zip(("dx", "dw", "db"), actual, torchs, expected, strict=True):
        check(name, ours, truth, largest_error(theirs, truth))


@pytest.mark.parametrize("kind", ACTIVATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_stays(dtype, kind):
    """An overflow in float16 must reach the loss scaler; max(NaN, 0) may not hide it."""
    x, w, b = operands(64, 64, 64, dtype)
    x[5] = float("nan")
    for bias in (b, None):
        y, _ = forward(x, w, bias, kind)
        assert torch.isnan(y).all(1).tolist() == [row == 5 for row in range(64)]


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_a_shape_that_comes_first_in_capture(kind):
    """No timing, allocation or wait inside; replay and eager use one algorithm afterwards."""
    x, w, b = operands(48, 80 + 8 * ACTIVATIONS.index(kind), 104, "float16")
    y = torch.empty(48, 104, dtype=torch.float16, device=DEVICE)
    z = None if kind in (None, "relu") else torch.empty_like(y)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        _C.linear_forward(x, w, b, y, z, ACTIVATIONS.index(kind), 0)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, forward(x, w, b, kind)[0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_shape_one_algorithm(dtype):
    """The call that times and the calls after it give the same bits, on any stream."""
    x, w, b = operands(512, 1000, 520, dtype)
    first = forward(x, w, b, "gelu_tanh")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        second = forward(x, w, b, "gelu_tanh")
    stream.synchronize()
    for ours, again in zip(first, second, strict=True):
        assert torch.equal(ours, again)


def test_timing_leaves_no_memory_behind():
    """The private buffers, 32 MiB of workspace alone, go back to the driver."""
    x, w, b = operands(1024, 2048, 1056, "bfloat16")
    forward(x, w, b, None)
    torch.cuda.synchronize()
    before = torch.cuda.mem_get_info()[0]
    for out in (1032, 1040, 1048):
        forward(x, w[:out], b[:out], None)
    torch.cuda.synchronize()
    assert before - torch.cuda.mem_get_info()[0] < 32 << 20
