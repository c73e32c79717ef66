"""The linear layer with its activation against the reference; tests/gpu/test_linear.py on a GPU.

Cases of public trackers: N1, N3, N4, T1 by kind. N2 stands in tests/gpu/test_streams.py. T2 is
about a variance and L1 to L3 about losses: a product has neither.
"""

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import halfstep as hs
from tests import reference
from tests.helpers import (
    ACTIVATIONS,
    DTYPES,
    GRADIENT_SCALES,
    HALVES,
    backward,
    counted,
    gradient,
    normal,
    other_layouts,
    to64,
    to_numpy,
    torch_dtype,
)
from tests.tolerances import check, judge, largest_error
from tests.unit.test_act import TORCH


def inputs(shape, out, dtype, device, weight_dtype=None, scale=1.0):
    """make(seed) for judge; the weight keeps y at the size of x, as trained layers do.

    No z is zero but for rounding: there relu's mask is a matter of luck in every implementation.
    """

    def make(seed):
        for attempt in itertools.count():
            tensors = draw(seed + 1000 * attempt)
            z = to64(tensors["x"]) @ to64(tensors["w"]).T + to64(tensors["b"])
            if z.size == 0 or abs(z).min() > 1e-5:
                return tensors

    def draw(seed):
        weight = weight_dtype or dtype
        size = max(shape[-1], 1) ** -0.5
        return {
            "x": normal(seed, shape, dtype, device),
            "w": normal(seed + 1, (out, shape[-1]), weight, device, size),
            "b": normal(seed + 2, (out,), weight, device),
            "dy": gradient(seed, (*shape[:-1], out), dtype, device, scale),
        }

    return make


def ours(kind):
    return lambda x, w, b, dy: backward(
        lambda x, w, b: hs.functional.linear(x, w, b, kind), dy, x=x, w=w, b=b
    )


def torchs(kind):
    """torch in the same dtype; a float32 weight is cast, as autocast does."""

    def call(x, w, b):
        return TORCH[kind](F.linear(x, w.to(x.dtype), b.to(x.dtype)))

    return lambda x, w, b, dy: backward(call, dy, x=x, w=w, b=b)


def truth(kind, dtype):
    """A weight of another dtype is read in x's."""

    def expected(x, w, b, dy):
        w, b = reference.rounded(w, dtype), reference.rounded(b, dtype)
        dx, dw, db = reference.linear_backward(dy, x, w, b, kind)
        return {"y": reference.linear(x, w, b, kind), "dx": dx, "dw": dw, "db": db}

    return expected


def compare(make, kind, dtype):
    judge(make, ours(kind), torchs(kind), truth(kind, dtype))


@pytest.mark.parametrize("kind", ACTIVATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sizes(device, dtype, kind):
    sizes = [(1, 1, 1), (2, 3, 1), (3, 1, 2), (7, 9, 8), (16, 15, 17), (33, 64, 31), (65, 24, 129)]
    for rows, features, out in sizes:
        compare(inputs((rows, features), out, dtype, device), kind, dtype)


@pytest.mark.parametrize("kind", ACTIVATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_model_size(device, dtype, kind):
    compare(inputs((1, 50, 192), 768, dtype, device), kind, dtype)


@pytest.mark.parametrize("scale", GRADIENT_SCALES)
@pytest.mark.parametrize("kind", ACTIVATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_gradient_scales(device, dtype, kind, scale):
    compare(inputs((8, 50), 40, dtype, device, scale=scale), kind, dtype)


@pytest.mark.parametrize("kind", ACTIVATIONS)
@pytest.mark.parametrize("dtype", HALVES)
def test_float32_weight_of_a_16_bit_input(device, dtype, kind):
    """The gradients of weight and bias are float32 then."""
    make = inputs((12, 40), 24, dtype, device, weight_dtype="float32")
    out = ours(kind)(**make(0))
    assert out["dw"].dtype is out["db"].dtype is torch.float32
    compare(make, kind, dtype)


@pytest.mark.parametrize("shape, out", [((0, 8), 4), ((3, 0), 4), ((3, 8), 0), ((2, 0, 8), 4)])
@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_case_n1_zero_sizes(device, kind, shape, out):
    for dtype in DTYPES:
        compare(inputs(shape, out, dtype, device), kind, dtype)
        compare(inputs((4, 8), 8, dtype, device), kind, dtype)


@pytest.mark.parametrize("kind", ACTIVATIONS)
@pytest.mark.parametrize("dtype", HALVES)
def test_case_n3_autocast(device, dtype, kind):
    layer = hs.nn.Linear(24, 16, device=device, activation=kind)
    x = normal(0, (6, 24), "float32", device).requires_grad_()
    moved = {"linear_forward"} if device == "cuda" else {"act_forward"} if kind else set()
    with torch.autocast(device, torch_dtype(dtype)), counted(*moved):
        y = layer(x)
    assert y.dtype is torch_dtype(dtype)
    y.float().square().sum().backward()
    assert x.grad.dtype is layer.weight.grad.dtype is layer.bias.grad.dtype is torch.float32
    same = hs.functional.linear(
        x.detach().to(y.dtype), layer.weight.detach(), layer.bias.detach(), kind
    )
    assert torch.equal(y, same)


@pytest.mark.parametrize("wanted", list(itertools.product([False, True], repeat=3)))
@pytest.mark.parametrize("kind", [None, "relu", "gelu"])
def test_case_n4_only_the_wanted_gradients(device, kind, wanted):
    tensors = inputs((4, 20), 12, "float32", device)(0)
    x, w, b = (tensors[n].requires_grad_(want) for n, want in zip("xwb", wanted, strict=True))
    y = hs.functional.linear(x, w, b, kind)
    assert y.requires_grad == any(wanted)
    if any(wanted):
        y.backward(tensors["dy"])
    full = ours(kind)(**tensors)
    for name, t, want in zip(("dx", "dw", "db"), (x, w, b), wanted, strict=True):
        assert (t.grad is not None) == want
        assert t.grad is None or largest_error(t.grad, full[name].double().cpu().numpy()) <= 1e-7


@pytest.mark.parametrize("shape, strides", [((1, 640), (7, 1)), ((640, 1), (1, 9))])
def test_case_t1_strides_of_axes_of_size_one(device, shape, strides):
    tensors = inputs(shape, 3, "float32", device)(0)
    expected = ours("gelu")(**tensors)
    odd = tensors | {"x": tensors["x"].as_strided(shape, strides)}
    got = ours("gelu")(**odd)
    assert all(torch.equal(got[name], expected[name]) for name in got)


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_layouts(device, kind):
    tensors = inputs((2, 3, 4, 17), 8, "bfloat16", device)(0)
    expected = ours(kind)(**tensors)
    changed = [
        tensors | {name: view}
        for name in ("x", "w", "dy")
        for _, view in other_layouts(tensors[name])
    ]
    for variant in changed:
        got = ours(kind)(**variant)
        assert all(torch.equal(got[name], expected[name]) for name in got)


def test_expanded_gradient(device):
    tensors = inputs((6, 40), 8, "float32", device)(0)
    for kind in ACTIVATIONS:
        dy = torch.full((), 0.5, device=device).expand(6, 8)
        got = ours(kind)(**tensors | {"dy": dy})
        dense = ours(kind)(**tensors | {"dy": dy.contiguous()})
        assert all(torch.equal(got[name], dense[name]) for name in got)


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_without_bias(device, kind):
    def call(f):
        return lambda x, w, b, dy: backward(f, dy, x=x, w=w)

    def expected(x, w, b, dy):
        dx, dw, _ = reference.linear_backward(dy, x, w, None, kind)
        return {"y": reference.linear(x, w, None, kind), "dx": dx, "dw": dw}

    judge(
        inputs((5, 20), 12, "bfloat16", device),
        call(lambda x, w: hs.functional.linear(x, w, None, kind)),
        call(lambda x, w: TORCH[kind](F.linear(x, w))),
        expected,
    )


def test_one_row_without_leading_axes(device):
    tensors = inputs((1, 20), 12, "float32", device)(0)
    x, w, b = tensors["x"], tensors["w"], tensors["b"]
    assert hs.functional.linear(x[0], w, b).shape == (12,)
    assert torch.equal(hs.functional.linear(x[0], w, b), hs.functional.linear(x, w, b)[0])


@pytest.mark.parametrize("kind", ACTIVATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy_arrays(dtype, kind):
    make = inputs((5, 33), 12, dtype, "cpu")

    def arrays(x, w, b, dy):
        x, w, b, dy = (to_numpy(t) for t in (x, w, b, dy))
        y = hs.functional.linear(x, w, b, kind)
        dx, dw, db = hs.functional.linear_backward(dy, x, w, b, kind)
        assert all(isinstance(a, np.ndarray) for a in (y, dx, dw, db))
        return {"y": y, "dx": dx, "dw": dw, "db": db}

    judge(make, arrays, torchs(kind), truth(kind, dtype))


@pytest.mark.parametrize("dtype", HALVES)
def test_numpy_float32_weight_of_a_16_bit_input(dtype):
    made = inputs((5, 33), 12, dtype, "cpu", weight_dtype="float32")(0)
    x, w, b, dy = (to_numpy(made[n]) for n in ("x", "w", "b", "dy"))
    dx, dw, db = hs.functional.linear_backward(dy, x, w, b, "gelu")
    expected = ours("gelu")(**made)
    got = {"y": hs.functional.linear(x, w, b, "gelu"), "dx": dx, "dw": dw, "db": db}
    for name, value in got.items():
        check(name, value, to64(expected[name]))


@pytest.mark.parametrize(
    "error, words, change",
    [
        (ValueError, ["grad", "(2, 2, 5)", "(4, 5)"], {"grad": np.ones((2, 2, 5), np.float32)}),
        (TypeError, ["grad", "float64", "float32"], {"grad": np.ones((4, 5))}),
        (TypeError, ["grad", "list"], {"grad": [1.0]}),
        (TypeError, ["x is float64"], {"input": np.ones((4, 3)), "weight": np.ones((5, 3))}),
        (TypeError, ["weight", "int64"], {"weight": np.ones((5, 3), np.int64)}),
        (ValueError, ["bias", "(4,)"], {"bias": np.ones(4, np.float32)}),
    ],
)
@pytest.mark.parametrize("kind", [None, "gelu"])
def test_backward_of_arrays_checks_its_arguments(kind, error, words, change):
    good = {"grad": (4, 5), "input": (4, 3), "weight": (5, 3), "bias": (5,)}
    arrays = {name: np.ones(shape, np.float32) for name, shape in good.items()}
    assert hs.functional.linear_backward(**arrays)[0].shape == (4, 3)
    with pytest.raises(error) as caught:
        hs.functional.linear_backward(**arrays | change, activation=kind)
    for word in ["linear", *words]:
        assert word in str(caught.value)


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_weight_of_one_axis(device, kind):
    """(*, in) and (in,) give (*), as in torch, which has no bias there."""
    tensors = inputs((3, 5, 20), 1, "float32", device)(0)
    expected = ours(kind)(**tensors)
    x, w, b, dy = (tensors[n] for n in ("x", "w", "b", "dy"))
    got = ours(kind)(x, w[0], b[0], dy[..., 0])
    assert got["y"].shape == (3, 5) and got["dw"].shape == (20,) and got["db"].shape == ()
    for name in got:
        assert torch.equal(got[name].flatten(), expected[name].flatten())
    if device == "cpu":
        dx, dw, db = hs.functional.linear_backward(
            *(t.numpy() for t in (dy[..., 0], x, w[0], b[0])), activation=kind
        )
        assert dw.shape == (20,) and db.shape == ()
        check("dx", dx, to64(expected["dx"]))


@pytest.mark.parametrize("kind", [None, "relu", "gelu"])
@pytest.mark.parametrize("wanted", list(itertools.product([False, True], repeat=3))[1:])
def test_backward_keeps_only_what_the_wanted_gradients_read(device, kind, wanted):
    """What is kept shows in the saved tensors and in which in-place changes are refused."""
    made = inputs((4, 20), 12, "float32", device)(0)
    dy = made.pop("dy")
    leaves = {n: t.requires_grad_(want) for (n, t), want in zip(made.items(), wanted, strict=True)}
    need_x, need_w, _ = wanted
    kept = {"x": need_w, "w": need_x, "b": False}
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        hs.functional.linear(*leaves.values(), kind)
    assert len(saved) == need_x + need_w + bool(kind)
    for changed in leaves:
        copies = {n: t * 1 for n, t in leaves.items()}
        y = hs.functional.linear(*copies.values(), kind)
        with torch.no_grad():
            copies[changed].mul_(2)
        if kept[changed]:
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                y.backward(dy)
        else:
            y.backward(dy)


def test_float32_weight_may_change_under_autocast(device):
    """Backward reads the 16-bit cast of forward's weight, as torch's does."""
    made = inputs((4, 20), 12, "float32", device)(0)
    x, w = made["x"].requires_grad_(), made["w"].requires_grad_()
    with torch.autocast(device, torch.bfloat16):
        y = hs.functional.linear(x, w)
    expected = w.detach().bfloat16()
    with torch.no_grad():
        w.mul_(2)
    y.backward(torch.ones_like(y))
    assert torch.equal(x.grad, torch.ones_like(y).matmul(expected).float())


def test_module_keeps_torchs_parameters():
    ours_, torchs_ = hs.nn.Linear(6, 4, activation="relu"), torch.nn.Linear(6, 4)
    assert isinstance(ours_, torch.nn.Linear)
    assert ours_.state_dict().keys() == torchs_.state_dict().keys()
    torchs_.load_state_dict(ours_.state_dict())
    x = normal(0, (3, 6))
    assert largest_error(ours_(x), torchs_(x).relu().double().detach().numpy()) <= 2.0**-22


ONES = np.ones((2, 4))


def freed(x):
    x = x.clone()
    x.untyped_storage().resize_(0)
    return x


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "error, words, call",
    [
        (ValueError, ["x", "(2, 4)", "weight", "(3, 5)"], lambda f, x: f(x, x.new_ones(3, 5))),
        (ValueError, ["weight", "(1, 2, 4)"], lambda f, x: f(x, x[None])),
        (ValueError, ["bias", "(3,)"], lambda f, x: f(x, x, x[0, :3])),
        (ValueError, ["bias", "(1,)", "expected (2,)"], lambda f, x: f(x, x, x[0, :1])),
        (ValueError, ["bias", "(2,)"], lambda f, x: f(x, x[0], x[0, :2])),
        (ValueError, ["activation", "tanh"], lambda f, x: f(x, x, None, "tanh")),
        (TypeError, ["weight", "float16", "float32"], lambda f, x: f(x, x.half())),
        (TypeError, ["bias", "float16", "float32"], lambda f, x: f(x, x, x[0, :2].half())),
        (TypeError, ["weight", "bfloat16", "float16"], lambda f, x: f(x.half(), x.bfloat16())),
        (TypeError, ["weight", "float64", "float16"], lambda f, x: f(x.half(), x.double())),
        (TypeError, ["weight", "int64", "float16"], lambda f, x: f(x.half(), x.long())),
        (TypeError, ["weight", "bool", "float16"], lambda f, x: f(x.half(), x > 0)),
        (TypeError, ["weight", "complex64", "float16"], lambda f, x: f(x.half(), x * 1j)),
        (TypeError, ["bias", "float64", "float16"], lambda f, x: f(x.half(), x, x[0].double())),
        (TypeError, ["float64"], lambda f, x: f(x.double(), x.double())),
        (TypeError, ["int64"], lambda f, x: f(x.long(), x.long())),
        (TypeError, ["weight", "ndarray"], lambda f, x: f(x, x.numpy())),
        (TypeError, ["weight", "tensor"], lambda f, x: f(x.numpy(), x)),
        (TypeError, ["weight", "NoneType"], lambda f, x: f(x, None)),
        (TypeError, ["weight", "list"], lambda f, x: f(x.numpy(), [1.0])),
        (TypeError, ["bias", "list"], lambda f, x: f(x, x, [1.0])),
        (TypeError, ["x", "sparse_csr"], lambda f, x: f(x.to_sparse_csr(), x)),
        (TypeError, ["weight", "nested"], lambda f, x: f(x, torch.nested.nested_tensor([x]))),
        (TypeError, ["weight", "meta"], lambda f, x: f(x, x.to("meta"))),
        (TypeError, ["weight", "freed storage"], lambda f, x: f(x.half(), freed(x))),
        (TypeError, ["weight", "float64", "float16"], lambda f, x: f(x.half().numpy(), ONES)),
        (TypeError, ["input", "masked"], lambda f, x: f(np.ma.array(x.numpy(), mask=x > 0), ONES)),
    ],
)
def test_errors_name_op_argument_and_values(error, words, call):
    with pytest.raises(error) as caught:
        call(hs.functional.linear, normal(0, (2, 4)))
    for word in ["linear", *words]:
        assert word in str(caught.value)
