"""Cross entropy on a GPU, and a target out of range, which a kernel cannot refuse."""

import pytest
import torch

import halfstep as hs
from halfstep import _C
from tests.gpu import on_gpu
from tests.helpers import DTYPES, Margins, normal

for module in ("test_xent_arguments", "test_xent_soft", "test_xent"):
    globals().update(on_gpu(f"tests.unit.{module}"))

BAD = [9, -1, 2**31, -(2**31), 2**62, -(2**62)]


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_target_out_of_range_makes_its_row_nan_and_touches_nothing_else(dtype, bad):
    x = normal(0, (4, 9), dtype, "cuda")
    good, t = torch.tensor([0, 1, 2, 3], device="cuda"), torch.tensor([0, 1, bad, 3], device="cuda")
    m = Margins("cuda")
    loss, lse, denominator = (m.empty(s, "float32") for s in ((4,), (4, 2), (2,)))
    dx, expected_dx = m.like(x), torch.empty_like(x)
    dy = torch.ones(4, device="cuda")
    options = (-100, 0, 0.0, 0.0, False)
    _C.xent_forward(x, good, None, loss, lse, denominator, *options)
    _C.xent_backward(dy, x, good, None, lse, denominator, expected_dx, *options)
    expected = loss.clone()
    _C.xent_forward(x, t, None, loss, lse, denominator, *options)
    _C.xent_backward(dy, x, t, None, lse, denominator, dx, *options)
    torch.cuda.synchronize()
    m.check()
    rows = [0, 1, 3]
    assert loss[2].isnan() and dx[2].isnan().all()
    assert torch.equal(loss[rows], expected[rows]) and torch.equal(dx[rows], expected_dx[rows])


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_reduced_loss_shows_a_target_out_of_range(reduction):
    x, t = normal(0, (4, 9), device="cuda"), torch.tensor([0, 1, 9, 3], device="cuda")
    assert hs.functional.cross_entropy(x, t, reduction=reduction).isnan()
    torch.cuda.synchronize()


@pytest.mark.parametrize("classes", [1000, 32000, 50257, 128256])
def test_vocabularies(classes):
    from tests.unit.test_xent import compare, inputs

    compare(inputs(8, classes, "bfloat16", "cuda"), label_smoothing=0.1)
