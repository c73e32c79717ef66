"""Target probabilities that require a gradient, and their class weights, against the reference."""

import itertools

import pytest
import torch

import halfstep as hs
from tests import reference
from tests.helpers import DTYPES, GRADIENT_SCALES, normal
from tests.tolerances import judge
from tests.unit.test_xent import REDUCTIONS, inputs, torch_loss

NAMES = ("x", "t", "w")


def run_all(loss_of):
    """The loss and the gradients of all that requires one."""

    def call(dy, **leaves):
        leaves = {name: t.detach().requires_grad_() for name, t in leaves.items()}
        loss = loss_of(**leaves)
        loss.backward(dy)
        return {"loss": loss.detach()} | {f"d{name}": t.grad for name, t in leaves.items()}

    return call


def compare_all(make, **options):
    def truth(x, t, dy, w=None):
        dt, dw = reference.cross_entropy_soft_backward(dy, x, t, weight=w, **options)
        out = {
            "loss": reference.cross_entropy(x, t, weight=w, **options),
            "dx": reference.cross_entropy_backward(dy, x, t, weight=w, **options),
            "dt": dt,
        }
        return out if w is None else out | {"dw": dw}

    judge(
        make,
        run_all(lambda x, t, w=None: hs.functional.cross_entropy(x, t, w, **options)),
        run_all(lambda x, t, w=None: torch_loss(x.float(), t, w, **options)),
        truth,
    )


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_gradient(device, dtype, reduction, smoothing, weighted):
    make = inputs(9, 21, dtype, device, reduction, weighted=weighted, soft=True)
    compare_all(make, reduction=reduction, label_smoothing=smoothing, z_loss=1e-2)


@pytest.mark.parametrize("scale", GRADIENT_SCALES)
def test_scales_of_every_gradient(device, scale):
    compare_all(inputs(12, 50, "float32", device, "mean", scale, weighted=True, soft=True))


@pytest.mark.parametrize("wanted", list(itertools.product([False, True], repeat=3)))
def test_only_the_wanted_gradients(device, wanted):
    made = inputs(5, 7, "float32", device, weighted=True, soft=True)(0)
    dy = made.pop("dy")
    full = run_all(lambda x, t, w: hs.functional.cross_entropy(x, t, w))(dy, **made)
    leaves = [made[n].requires_grad_(want) for n, want in zip(NAMES, wanted, strict=True)]
    loss = hs.functional.cross_entropy(*leaves)
    assert loss.requires_grad == any(wanted)
    if any(wanted):
        loss.backward(dy)
    for name, leaf, want in zip(NAMES, leaves, wanted, strict=True):
        assert (leaf.grad is not None) == want
        assert not want or torch.equal(leaf.grad, full[f"d{name}"])


@pytest.mark.parametrize("target_dtype", [torch.float64, torch.float16])
def test_gradients_have_the_dtypes_of_their_leaves(device, target_dtype):
    x = normal(0, (4, 6), "float32", device)
    t = normal(1, (4, 6), "float32", device).softmax(1).to(target_dtype).requires_grad_()
    w = torch.ones(6, dtype=torch.float16, device=device, requires_grad=True)
    hs.functional.cross_entropy(x, t, w).backward()
    assert t.grad.dtype is target_dtype and w.grad.dtype is torch.float16


def test_the_gradient_of_targets_with_more_axes(device):
    """(n, classes, d1, d2): the target's gradient comes back in its layout."""
    x, t = (normal(seed, (2, 5, 3, 4), "float32", device) for seed in (0, 1))
    t = t.softmax(1).requires_grad_()
    flat = t.detach().movedim(1, -1).reshape(-1, 5).requires_grad_()
    hs.functional.cross_entropy(x, t).backward()
    hs.functional.cross_entropy(x.movedim(1, -1).reshape(-1, 5), flat).backward()
    assert torch.equal(t.grad.movedim(1, -1).reshape(-1, 5), flat.grad)
