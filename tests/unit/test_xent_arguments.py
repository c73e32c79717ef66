"""What cross entropy takes as torch does, and what it refuses."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import halfstep as hs
from halfstep import _C
from tests.helpers import HALVES, normal
from tests.unit.test_xent import IGNORED

hsf = hs.functional


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_one_row_takes_a_target_of_shape_1(device, reduction):
    """As newer versions of torch do."""
    x, t = normal(0, (9,), "float32", device), torch.tensor([3], device=device)
    loss = hsf.cross_entropy(x, t, reduction=reduction)
    assert loss.shape == ()
    assert torch.equal(loss, hsf.cross_entropy(x, t[0], reduction=reduction))


def test_float64_probabilities_are_read_in_float32(device):
    x, t = normal(0, (4, 9), "float32", device), normal(1, (4, 9), "float32", device).softmax(1)
    assert torch.equal(hsf.cross_entropy(x, t.double()), hsf.cross_entropy(x, t))
    if device == "cpu":
        got = hsf.cross_entropy(x.numpy(), t.double().numpy())
        assert got == hsf.cross_entropy(x, t).numpy()


@pytest.mark.parametrize("dtype", HALVES)
def test_16_bit_class_weights(device, dtype):
    x, t = normal(0, (4, 9), dtype, device), torch.arange(4, device=device)
    w = normal(1, (9,), dtype, device).abs()
    assert torch.equal(hsf.cross_entropy(x, t, w), hsf.cross_entropy(x, t, w.float()))


@pytest.mark.parametrize("reduction, shape", [("none", (2, 2)), ("none", ()), ("mean", (4,))])
def test_the_gradient_of_arrays_has_the_shape_of_the_loss(reduction, shape):
    x, t = normal(0, (4, 9)).numpy(), np.arange(4)
    with pytest.raises(ValueError, match=r"cross_entropy: grad has shape") as caught:
        hsf.cross_entropy_backward(np.ones(shape, np.float32), x, t, reduction=reduction)
    assert str(shape) in str(caught.value)


def test_class_weights_of_indices_get_no_gradient(device):
    """An error as in torch, and not a gradient that is missing."""
    x, t = normal(0, (4, 9), "float32", device), torch.arange(4, device=device)
    w = torch.ones(9, device=device, requires_grad=True)
    for leaf in (x, x.clone().requires_grad_()):
        with pytest.raises(RuntimeError):
            F.cross_entropy(leaf, t, w)
        with pytest.raises(RuntimeError, match=r"cross_entropy: weight requires a gradient"):
            hsf.cross_entropy(leaf, t, w)
    with torch.no_grad():
        assert torch.equal(hsf.cross_entropy(x, t, w), hsf.cross_entropy(x, t, w.detach()))


@pytest.mark.parametrize("bad", [9, -1, 2**40, -(2**40)])
def test_a_target_out_of_range_on_the_cpu_writes_nothing(bad):
    x, t = normal(0, (4, 9)), torch.tensor([0, 1, bad, 3])
    with pytest.raises(ValueError, match=r"cross_entropy.*target") as caught:
        hs.functional.cross_entropy(x, t)
    assert f"is {bad}, expected 0 to 8" in str(caught.value)
    loss, lse, denominator = torch.full((), 7.0), torch.full((4, 2), 7.0), torch.full((2,), 7.0)
    with pytest.raises(ValueError):
        _C.xent_forward(x, t, None, loss, lse, denominator, IGNORED, 1, 0.0, 0.0, False)
    assert (torch.cat([loss[None], lse.flatten(), denominator]) == 7).all()


# As int64 the last one would be -100, which is ignored.
NEGATIVE = np.array([0, 1, 2, 2**64 - 100], np.uint64)
MASKED = np.ma.array([0, 1, 2, 3], mask=[0, 1, 0, 0])


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "error, words, call",
    [
        (ValueError, ["target", "(3,)", "(4, 9)"], lambda f, x, t: f(x, t[:3])),
        (ValueError, ["target"], lambda f, x, t: f(x, x[:, :3])),
        (ValueError, ["reduction", "batchmean"], lambda f, x, t: f(x, t, reduction="batchmean")),
        (ValueError, ["label_smoothing", "1.5"], lambda f, x, t: f(x, t, label_smoothing=1.5)),
        (ValueError, ["z_loss", "-1"], lambda f, x, t: f(x, t, z_loss=-1.0)),
        (ValueError, ["all_ignored", "one"], lambda f, x, t: f(x, t, all_ignored="one")),
        (ValueError, ["reduction", "[1]"], lambda f, x, t: f(x, t, reduction=[1])),
        (ValueError, ["ignore_index", "3"], lambda f, x, t: f(x, x.softmax(1), ignore_index=3)),
        (ValueError, ["weight", "(3,)", "(9,)"], lambda f, x, t: f(x, t, x[0, :3])),
        (ValueError, ["weight", "(1, 9)", "(9,)"], lambda f, x, t: f(x, t, x[:1])),
        (ValueError, ["weight", "(9, 1)", "(9,)"], lambda f, x, t: f(x, t, x.new_ones(9, 1))),
        (ValueError, ["target", "(2,)", "(9,)"], lambda f, x, t: f(x[0], t[:2])),
        (ValueError, ["classes"], lambda f, x, t: f(x[:, :0], t)),
        (ValueError, ["class axis"], lambda f, x, t: f(x[0, 0], t[0])),
        (TypeError, ["float64"], lambda f, x, t: f(x.double(), t)),
        (TypeError, ["target", "bool"], lambda f, x, t: f(x, t > 0)),
        (TypeError, ["target", "complex64"], lambda f, x, t: f(x, t * 1j)),
        (TypeError, ["target", "uint64"], lambda f, x, t: f(x.numpy(), NEGATIVE)),
        (TypeError, ["target", "uint64"], lambda f, x, t: f(x, torch.from_numpy(NEGATIVE))),
        (TypeError, ["target", "list"], lambda f, x, t: f(x, [0, 1, 2, 3])),
        (TypeError, ["target", "tensor"], lambda f, x, t: f(x.numpy(), t)),
        (TypeError, ["target", "sparse_coo"], lambda f, x, t: f(x, t.to_sparse())),
        (TypeError, ["target", "masked"], lambda f, x, t: f(x.numpy(), MASKED)),
        (TypeError, ["input", "nested"], lambda f, x, t: f(torch.nested.nested_tensor([x]), t)),
        (TypeError, ["weight", "float64"], lambda f, x, t: f(x, t, x[0].double())),
        (TypeError, ["weight", "int64"], lambda f, x, t: f(x, t, torch.arange(9))),
        (TypeError, ["weight", "complex64"], lambda f, x, t: f(x, t, x[0] * 1j)),
        (TypeError, ["weight", "list"], lambda f, x, t: f(x, t, [1.0] * 9)),
        (TypeError, ["weight", "ndarray"], lambda f, x, t: f(x, t, x[0].numpy())),
        (TypeError, ["weight", "tensor"], lambda f, x, t: f(x.numpy(), t.numpy(), x[0])),
        (TypeError, ["weight", "list"], lambda f, x, t: f(x.numpy(), t.numpy(), [1.0] * 9)),
    ],
)
def test_errors_name_op_argument_and_values(error, words, call):
    with pytest.raises(error) as caught:
        call(hs.functional.cross_entropy, normal(0, (4, 9)), torch.arange(4))
    for word in ["cross_entropy", *words]:
        assert word in str(caught.value)
