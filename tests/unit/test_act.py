"""Bias and activation against the reference. tests/gpu/test_act.py runs the same on a GPU.

Cases of public trackers: N1, N3, N4, T1 by kind. N2 stands in tests/gpu/test_streams.py. T2 is
about a variance and L1 to L3 about losses: an activation has neither.
"""

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import halfstep as hs
from halfstep import _C
from tests import reference
from tests.helpers import (
    ACTIVATIONS,
    DTYPES,
    GRADIENT_SCALES,
    HALVES,
    KINDS,
    SIZES,
    Margins,
    backward,
    counted,
    gradient,
    normal,
    other_layouts,
    torch_dtype,
    upcast,
    with_outliers,
)
from tests.tolerances import check, judge, largest_error

TORCH = {
    None: lambda x: x,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
}
KIND_CODES = {None: 0, "relu": 1, "gelu": 2, "gelu_tanh": 3, "silu": 4}


def inputs(shape, dtype, device, bias_dtype=None, scale=1.0, outliers=False):
    def make(seed):
        x = normal(seed, shape, dtype, device, 2.0)
        return {
            "x": with_outliers(x) if outliers else x,
            "b": normal(seed + 1, shape[-1:], bias_dtype or dtype, device),
            "dy": gradient(seed, shape, dtype, device, scale),
        }

    return make


def ours(kind):
    return lambda x, b, dy: backward(lambda x, b: hs.functional.bias_act(x, b, kind), dy, x=x, b=b)


def torchs(kind, dtype):
    call = upcast(lambda x, b: TORCH[kind](x + b), dtype)
    return lambda x, b, dy: backward(call, dy, x=x, b=b)


def truth(kind):
    def expected(x, b, dy):
        dx, db = reference.bias_act_backward(dy, x, b, kind)
        return {"y": reference.bias_act(x, b, kind), "dx": dx, "db": db}

    return expected


def compare(make, kind, dtype):
    judge(make, ours(kind), torchs(kind, dtype), truth(kind))


@pytest.mark.parametrize("kind", ACTIVATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sizes(device, dtype, kind):
    for cols in SIZES:
        compare(inputs((3, cols), dtype, device), kind, dtype)


@pytest.mark.parametrize("kind", ACTIVATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows(device, dtype, kind):
    for rows in (0, 1, 2, 31, 32, 33):
        compare(inputs((rows, 12), dtype, device), kind, dtype)


@pytest.mark.parametrize("kind", ACTIVATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_model_size_with_outliers(device, dtype, kind):
    compare(inputs((99, 1024), dtype, device, outliers=True), kind, dtype)


@pytest.mark.parametrize("scale", GRADIENT_SCALES)
@pytest.mark.parametrize("kind", ACTIVATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_gradient_scales(device, dtype, kind, scale):
    compare(inputs((8, 50), dtype, device, scale=scale), kind, dtype)


@pytest.mark.parametrize("kind", ACTIVATIONS)
@pytest.mark.parametrize("dtype", HALVES)
def test_float32_bias_of_a_16_bit_input(device, dtype, kind):
    compare(inputs((6, 33), dtype, device, bias_dtype="float32"), kind, dtype)


@pytest.mark.parametrize("kind", ACTIVATIONS[1:])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_tails(device, dtype, kind):
    """Far from zero exp overflows and results are small by nature: each range on its own."""
    for low, high in ((-100, -20), (-20, -6), (-6, -3), (-3, 3), (3, 20), (20, 1000)):

        def make(seed, low=low, high=high):
            steps = np.linspace(low, high, 257) + seed * (high - low) / 2570
            x = torch.from_numpy(steps).to(torch_dtype(dtype)).to(device)
            return {
                "x": x,
                "b": torch.zeros(257, dtype=x.dtype, device=device),
                "dy": torch.ones_like(x),
            }

        def part(f):
            return lambda **t: {k: v for k, v in f(**t).items() if k != "db"}

        judge(make, part(ours(kind)), part(torchs(kind, dtype)), part(truth(kind)))


@pytest.mark.parametrize("kind", ACTIVATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_special_values(device, dtype, kind):
    values = [float("nan"), float("inf"), 0.0, -0.0, -float("inf")]
    x = torch.tensor(values, dtype=torch_dtype(dtype), device=device)
    y = hs.functional.bias_act(x, None, kind)
    assert torch.isnan(y[0]), "a NaN stays a NaN"
    assert y[1] == float("inf")
    assert y[2] == 0 and y[3] == 0
    if kind == "relu":
        assert y[4] == 0


@pytest.mark.parametrize("wanted", list(itertools.product([False, True], repeat=2)))
@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_only_the_wanted_gradients(device, kind, wanted):
    """Case N4 by kind."""
    tensors = inputs((4, 20), "float32", device)(0)
    x, b = (tensors[n].requires_grad_(want) for n, want in zip("xb", wanted, strict=True))
    y = hs.functional.bias_act(x, b, kind)
    assert y.requires_grad == any(wanted)
    if any(wanted):
        y.backward(tensors["dy"])
    full = ours(kind)(**tensors)
    for name, t, want in zip(("dx", "db"), (x, b), wanted, strict=True):
        assert (t.grad is not None) == want
        assert t.grad is None or torch.equal(t.grad, full[name])


@pytest.mark.parametrize("shape", [(3, 0, 2520), (0, 8), (4, 0), (0,)])
@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_case_n1_zero_sizes(device, kind, shape):
    for dtype in DTYPES:
        out = ours(kind)(**inputs(shape, dtype, device)(0))
        assert out["y"].shape == out["dx"].shape == torch.Size(shape)
        assert out["db"].shape == torch.Size(shape[-1:]) and not out["db"].any()
        compare(inputs((4, 8), dtype, device), kind, dtype)


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_case_n3_autocast(device, kind):
    """Nothing is cast: 16 bits in, 16 bits out, also with a float32 bias."""
    for dtype, bias_dtype in itertools.product(DTYPES, ("float32", "same")):
        make = inputs((3, 5), dtype, device, None if bias_dtype == "same" else bias_dtype)
        with torch.autocast(device, torch.bfloat16), counted("act_forward", "act_backward"):
            out = ours(kind)(**make(0))
        assert out["y"].dtype is torch_dtype(dtype)


@pytest.mark.parametrize("shape, strides", [((1, 640), (7, 1)), ((640, 1), (1, 9))])
def test_case_t1_strides_of_axes_of_size_one(device, shape, strides):
    x = normal(0, shape, "float32", device)
    odd = x.as_strided(shape, strides)
    assert hs._compat.dense(odd).data_ptr() == x.data_ptr(), "a needless copy"
    assert torch.equal(hs.functional.gelu(odd), hs.functional.gelu(x))


@pytest.mark.parametrize("kind", ACTIVATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_layouts(device, dtype, kind):
    x, b = normal(0, (2, 3, 4, 17), dtype, device), normal(1, (17,), dtype, device)
    dy = gradient(0, x.shape, dtype, device)
    expected = ours(kind)(x, b, dy)
    for (_, view), (_, grad) in zip(other_layouts(x), other_layouts(dy), strict=True):
        for out in (ours(kind)(view, b, dy), ours(kind)(x, b, grad)):
            assert all(torch.equal(out[name], expected[name]) for name in expected)


def test_expanded_gradient(device):
    x, b = normal(0, (6, 40), "float32", device), normal(1, (40,), "float32", device)
    for kind in ACTIVATIONS:
        dy = torch.ones((), device=device).expand(6, 40)
        got, dense = ours(kind)(x, b, dy), ours(kind)(x, b, dy.contiguous())
        assert all(torch.equal(got[name], dense[name]) for name in got)


@pytest.mark.parametrize("shift", [0, 1, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_margins(device, dtype, shift):
    for kind, cols in itertools.product(ACTIVATIONS, (1, 7, 16, 65)):
        m = Margins(device, shift)
        x, dy = normal(0, (3, cols), dtype, device), normal(1, (3, cols), dtype, device)
        b = normal(2, (cols,), dtype, device)
        y, dx, db = m.like(x), m.like(x), m.like(b)
        _C.act_forward(x, b, y, cols, KIND_CODES[kind])
        _C.act_backward(dy, x, b, dx, db, cols, KIND_CODES[kind])
        m.check()
        expected = ours(kind)(x, b, dy)
        assert torch.equal(y, expected["y"]) and torch.equal(dx, expected["dx"])
        assert torch.equal(db, expected["db"])


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_in_place_in_c(device, kind):
    """The contract allows y to be x and dx to be dy."""
    x, dy = normal(0, (3, 65), "bfloat16", device), normal(1, (3, 65), "bfloat16", device)
    expected = ours(kind)(x, torch.zeros(65, dtype=x.dtype, device=device), dy)
    grad = dy.clone()
    _C.act_backward(grad, x, None, grad, None, 65, KIND_CODES[kind])
    _C.act_forward(x, None, x, 65, KIND_CODES[kind])
    assert torch.equal(x, expected["y"]) and torch.equal(grad, expected["dx"])


def test_relu_backward_takes_y_for_x(device):
    x, dy = normal(0, (3, 65), "float32", device), normal(1, (3, 65), "float32", device)
    y, from_x, from_y = torch.relu(x), torch.empty_like(x), torch.empty_like(x)
    _C.act_backward(dy, x, None, from_x, None, 65, KIND_CODES["relu"])
    _C.act_backward(dy, y, None, from_y, None, 65, KIND_CODES["relu"])
    assert torch.equal(from_x, from_y)


@pytest.mark.parametrize("array_kind", KINDS)
@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_arrays(array_kind, kind):
    for dtype in DTYPES:
        tensors = inputs((5, 33), dtype, "cpu")(0)
        x, b, dy = (KINDS[array_kind](t) for t in tensors.values())
        expected = ours(kind)(**tensors)
        y = hs.functional.bias_act(x, b, kind)
        grads = hs.functional.bias_act_backward(dy, x, b, kind)
        for name, got in zip(("y", "dx", "db"), (y, *grads), strict=True):
            assert type(got) is type(x) and got.dtype == x.dtype
            assert largest_error(got, np.asarray(expected[name].double())) == 0, name


@pytest.mark.parametrize(
    "name, kind, options",
    [
        ("relu", "relu", {}),
        ("silu", "silu", {}),
        ("gelu", "gelu", {}),
        ("gelu", "gelu_tanh", {"approximate": "tanh"}),
    ],
)
def test_torchs_names(device, name, kind, options):
    x, dy = normal(0, (3, 7), "float32", device), normal(1, (3, 7), "float32", device)
    got = backward(lambda x: getattr(hs.functional, name)(x, **options), dy, x=x)
    expected = reference.act(x.double().cpu().numpy(), kind)
    check("y", got["y"], expected, largest_error(TORCH[kind](x), expected))
    from_array = getattr(hs.functional, f"{name}_backward")(
        dy.cpu().numpy(), x.cpu().numpy(), **options
    )
    assert largest_error(from_array, got["dx"].double().cpu().numpy()) == 0 or device != "cpu"


@pytest.mark.parametrize(
    "error, words, call",
    [
        (ValueError, ["activation", "tanh"], lambda f, x: f.bias_act(x, None, "tanh")),
        (ValueError, ["activation"], lambda f, x: f.bias_act(x, None, ["relu"])),
        (ValueError, ["bias_act", "bias", "3", "4"], lambda f, x: f.bias_act(x, x[0, :3])),
        (TypeError, ["bias_act", "bias", "float16"], lambda f, x: f.bias_act(x, x[0].half())),
        (TypeError, ["bias_act", "x", "float64"], lambda f, x: f.gelu(x.double())),
        (ValueError, ["gelu", "approximate", "erf"], lambda f, x: f.gelu(x, "erf")),
        (ValueError, ["relu", "inplace"], lambda f, x: f.relu(x, True)),
        (ValueError, ["silu", "inplace"], lambda f, x: f.silu(x, inplace=True)),
    ],
)
def test_errors_name_op_argument_and_values(error, words, call):
    with pytest.raises(error) as caught:
        call(hs.functional, normal(0, (2, 4)))
    for word in words:
        assert word in str(caught.value)
