"""LayerNorm against the reference. tests/gpu/test_norm.py runs the same tests on a GPU.

Cases of public trackers: N1, N3, N4, T1, T2 are below; N2 (a device that is not the current one)
needs two GPUs and stands in tests/gpu/test_streams.py. L1 to L3 are about losses.
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

EPS = 1e-5
MODEL = (3, 197, 768)  # a batch of ViT-B tokens
# On a GPU the backward of few rows is another kernel than that of many.
few_and_many = pytest.mark.parametrize("rows", [5, 300])


def inputs(shape, dtype, device, weight_dtype=None, scale=1.0, outliers=False):
    """make(seed) for judge. The weight is not drawn around 1, so that its effect is seen."""

    def make(seed):
        x = normal(seed, shape, dtype, device)
        return {
            "x": with_outliers(x) if outliers else x,
            "w": normal(seed + 1, shape[-1:], weight_dtype or dtype, device),
            "b": normal(seed + 2, shape[-1:], weight_dtype or dtype, device),
            "dy": gradient(seed, shape, dtype, device, scale),
        }

    return make


def truth(x, w, b, dy, eps=EPS):
    dx, dw, db = reference.layer_norm_backward(dy, x, w, eps)
    return {"y": reference.layer_norm(x, w, b, eps), "dx": dx, "dw": dw, "db": db}


def run(f, dtype=None, eps=EPS):
    """f (ours or torch's) with gradients, for judge; dtype: compute in float32, round to it."""

    def call(x, w, b):
        return f(x, x.shape[-1:], w, b, eps)

    call = call if dtype is None else upcast(call, dtype)
    return lambda x, w, b, dy: backward(call, dy, x=x, w=w, b=b)


def compare(make, dtype):
    judge(make, run(hs.functional.layer_norm), run(F.layer_norm, dtype), truth)


def compare_with_residual(device, shape, dtype, residual_dtype):
    base = inputs(shape, dtype, device)

    def make(seed):
        return base(seed) | {
            "r": normal(seed + 3, shape, residual_dtype, device),
            "dh": gradient(seed + 4, shape, residual_dtype, device),
        }

    def outputs(y, h, x, r, w, b, dy, dh):
        torch.autograd.backward([y, h], [dy, dh])
        return {"y": y, "h": h, "dx": x.grad, "dr": r.grad, "dw": w.grad, "db": b.grad}

    def leaves(*tensors):
        return [t.detach().requires_grad_() for t in tensors]

    def ours(x, r, w, b, dy, dh):
        x, r, w, b = leaves(x, r, w, b)
        y, h = hs.functional.layer_norm(x, shape[-1:], w, b, EPS, residual=r)
        return outputs(y, h, x, r, w, b, dy, dh)

    def torchs(x, r, w, b, dy, dh):
        x, r, w, b = leaves(x, r, w, b)
        h = (x.float() + r.float()).to(r.dtype)
        y = F.layer_norm(h.float(), shape[-1:], w.float(), b.float(), EPS).to(x.dtype)
        return outputs(y, h, x, r, w, b, dy, dh)

    def expected(x, r, w, b, dy, dh):
        h = reference.rounded(x + r, residual_dtype)
        dx, dw, db = reference.layer_norm_backward(dy, h, w, EPS, dh)
        y = reference.layer_norm(h, w, b, EPS)
        return {"y": y, "h": h, "dx": dx, "dr": dx, "dw": dw, "db": db}

    judge(make, ours, torchs, expected)


@few_and_many
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cols", SIZES)
def test_sizes(device, dtype, cols, rows):
    compare(inputs((rows, cols), dtype, device), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [0, 1, 2, 3, 31, 32, 33])
def test_rows(device, dtype, rows):
    compare(inputs((rows, 24), dtype, device), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_model_size_with_outliers(device, dtype):
    compare(inputs(MODEL, dtype, device, outliers=True), dtype)


@few_and_many
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", GRADIENT_SCALES)
def test_gradient_scales(device, dtype, scale, rows):
    compare(inputs((rows, 100), dtype, device, scale=scale), dtype)


@few_and_many
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("cols", [3, 17, 640])
def test_float32_weight_of_a_16_bit_input(device, dtype, cols, rows):
    compare(inputs((rows, cols), dtype, device, weight_dtype="float32"), dtype)


@few_and_many
@pytest.mark.parametrize("residual_dtype", ["same", "float32"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cols", [0, 3, 17, 256])
def test_residual(device, dtype, cols, residual_dtype, rows):
    residual_dtype = dtype if residual_dtype == "same" else residual_dtype
    compare_with_residual(device, (rows, cols), dtype, residual_dtype)


@few_and_many
@pytest.mark.parametrize("has_weight, has_bias", [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_without_weight_or_bias(device, dtype, has_weight, has_bias, rows):
    make = inputs((rows, 33), dtype, device)

    def absent(f):
        def call(x, w, b, dy):
            out = f(x, w if has_weight else None, b if has_bias else None, dy)
            return {name: t for name, t in out.items() if t is not None}

        return call

    def expected(x, w, b, dy):
        dx, dw, db = reference.layer_norm_backward(dy, x, w, EPS)
        out = {"y": reference.layer_norm(x, w, b, EPS), "dx": dx}
        return out | ({"dw": dw} if has_weight else {}) | ({"db": db} if has_bias else {})

    ours, torchs = run(hs.functional.layer_norm), run(F.layer_norm, dtype)
    judge(make, absent(ours), absent(torchs), absent(expected))


@few_and_many
@pytest.mark.parametrize("wanted", list(itertools.product([False, True], repeat=3)))
def test_only_the_wanted_gradients(device, wanted, rows):
    """Case N4: the weight's gradient when the input needs none, and every other combination."""
    tensors = inputs((rows, 20), "float32", device)(0)
    x, w, b = (tensors[n].requires_grad_(want) for n, want in zip("xwb", wanted, strict=True))
    y = hs.functional.layer_norm(x, (20,), w, b, EPS)
    assert y.requires_grad == any(wanted)
    if any(wanted):
        y.backward(tensors["dy"])
    full = run(hs.functional.layer_norm)(**tensors)
    for name, t, want in zip(("dx", "dw", "db"), (x, w, b), wanted, strict=True):
        assert (t.grad is not None) == want
        assert t.grad is None or torch.equal(t.grad, full[name])


@few_and_many
@pytest.mark.parametrize("wanted", list(itertools.product([False, True], repeat=4))[1:])
def test_only_the_wanted_gradients_with_residual(device, wanted, rows):
    dtypes = ("bfloat16", "float32", "float32", "float32")
    shapes = ((rows, 20), (rows, 20), (20,), (20,))

    def leaves(want):
        made = (
            normal(i, s, d, device) for i, (s, d) in enumerate(zip(shapes, dtypes, strict=True))
        )
        return [t.requires_grad_(w) for t, w in zip(made, want, strict=True)]

    def grads(want):
        x, r, w, b = tensors = leaves(want)
        y, h = hs.functional.layer_norm(x, (20,), w, b, residual=r)
        (y.float().sum() + (h * h).sum()).backward()
        return [t.grad for t in tensors]

    for got, full, want in zip(grads(wanted), grads([True] * 4), wanted, strict=True):
        assert torch.equal(got, full) if want else got is None


@pytest.mark.parametrize("shape", [(3, 0, 2520), (0, 8), (4, 0), (0, 0)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_case_n1_zero_sizes(device, dtype, shape):
    make = inputs(shape, dtype, device)
    out = run(hs.functional.layer_norm)(**make(0))
    assert out["y"].shape == out["dx"].shape == torch.Size(shape)
    assert out["dw"].shape == out["db"].shape == torch.Size(shape[-1:])
    assert not out["dw"].any() and not out["db"].any()
    compare(inputs((4, 8), dtype, device), dtype)  # the next op is fine


@pytest.mark.parametrize("weight_dtype", ["float32", "bfloat16"])
def test_case_n3_autocast(device, weight_dtype):
    linear = hs.nn.Linear(24, 40, device=device)
    norm = hs.nn.LayerNorm(40, device=device, dtype=torch_dtype(weight_dtype))
    x = normal(0, (6, 24), "float32", device)
    with torch.autocast(device, torch.bfloat16), counted("norm_forward"):
        y = norm(linear(x))
    assert y.dtype is torch.bfloat16
    with counted("norm_backward"):
        y.float().sum().backward()
    assert norm.weight.grad.dtype is norm.weight.dtype
    assert linear.weight.grad.dtype is torch.float32


def test_autocast_casts_nothing(device):
    x = normal(0, (6, 24), "float32", device)
    with torch.autocast(device, torch.bfloat16):
        assert hs.functional.layer_norm(x, (24,)).dtype is torch.float32


@pytest.mark.parametrize(
    "shape, strides", [((1, 640), (7, 1)), ((640, 1), (1, 9)), ((1, 1), (5, 3))]
)
def test_case_t1_strides_of_axes_of_size_one(device, shape, strides):
    x = normal(0, shape, "float32", device).as_strided(shape, strides)
    expected = reference.layer_norm(x.double().cpu().numpy())
    before = x.data_ptr()
    assert hs.functional.layer_norm(x, shape[-1:]).shape == torch.Size(shape)
    assert hs._compat.dense(x).data_ptr() == before, "a needless copy"
    torchs = F.layer_norm(x, shape[-1:])
    check("y", hs.functional.layer_norm(x, shape[-1:]), expected, largest_error(torchs, expected))


@few_and_many
def test_case_t2_large_mean(device, rows):
    def make(seed):
        tensors = inputs((rows, 640), "float32", device)(seed)
        return tensors | {"x": tensors["x"] * 0.01 + 1e4}

    compare(make, "float32")


def test_case_t2_constant_rows(device):
    for dtype, value in (("float32", 1e30), ("float32", 3.7), ("float16", 1e4), ("bfloat16", 1e30)):
        x = torch.full((3, 640), value, dtype=torch_dtype(dtype), device=device)
        b = normal(0, (640,), dtype, device)
        y = hs.functional.layer_norm(x, (640,), None, b)
        check("y", y, b.double().cpu().numpy()[None].repeat(3, 0))


@few_and_many
def test_case_t2_rows_of_1e30_stay_finite(device, rows):
    """The variance overflows float32 there; nothing may become NaN or infinite."""
    make = inputs((rows, 640), "float32", device)

    def large(seed):
        tensors = make(seed)
        return tensors | {"x": tensors["x"] * 1e30}

    def small(x, w, b, dy):  # the norm does not change with scale, so torch is asked at 1
        out = run(F.layer_norm, eps=0.0)(x * 1e-30, w, b, dy)
        return out | {"dx": out["dx"] * 1e-30}

    judge(large, run(hs.functional.layer_norm), small, truth)


@pytest.mark.parametrize("dtype", DTYPES)
def test_layouts(device, dtype):
    x = normal(0, (2, 3, 4, 17), dtype, device)
    w, b = normal(1, (17,), dtype, device), normal(2, (17,), dtype, device)
    dy = gradient(0, x.shape, dtype, device)
    expected = run(hs.functional.layer_norm)(x, w, b, dy)
    for (_, view), (_, grad) in zip(other_layouts(x), other_layouts(dy), strict=True):
        for out in (
            run(hs.functional.layer_norm)(view, w, b, dy),
            run(hs.functional.layer_norm)(x, w, b, grad),
        ):
            assert all(torch.equal(out[name], expected[name]) for name in expected)


def test_expanded_gradient(device):
    x, w, b = (normal(i, s, "float32", device) for i, s in enumerate([(6, 40), (40,), (40,)]))
    for dy in (torch.ones((), device=device), normal(3, (40,), "float32", device)):
        got = run(hs.functional.layer_norm)(x, w, b, dy.expand(6, 40))
        dense = run(hs.functional.layer_norm)(x, w, b, dy.expand(6, 40).contiguous())
        assert all(torch.equal(got[name], dense[name]) for name in got)


def test_several_normalised_axes(device):
    x, w, b = (normal(i, s, "float32", device) for i, s in enumerate([(5, 4, 6)] + [(4, 6)] * 2))
    flat = hs.functional.layer_norm(x.reshape(5, 24), (24,), w.reshape(-1), b.reshape(-1))
    assert torch.equal(hs.functional.layer_norm(x, (4, 6), w, b), flat.reshape(5, 4, 6))


def test_eps_reaches_the_kernel(device):
    x = normal(0, (3, 64), "float32", device, 1e-3)
    for eps in (0.0, 1e-12, 0.1):
        expected = reference.layer_norm(x.double().cpu().numpy(), eps=eps)
        torchs = largest_error(F.layer_norm(x, (64,), eps=eps), expected)
        check("y", hs.functional.layer_norm(x, (64,), eps=eps), expected, torchs)


@pytest.mark.parametrize("shift", [0, 1, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_margins(device, dtype, shift):
    for rows, cols in itertools.product((1, 3, 300), (1, 7, 16, 65)):
        m = Margins(device, shift)
        x, r = (normal(i, (rows, cols), dtype, device) for i in range(2))
        w, b = (normal(i, (cols,), dtype, device) for i in (2, 3))
        x = m.like(x).copy_(x)  # the width of the loads, and with it the order of sums, is shared
        y, total, dx, dr = m.like(x), m.like(x), m.like(x), m.like(x)
        dw, db = m.like(w), m.like(b)
        _C.norm_forward(x, r, w, b, y, total, cols, EPS)
        _C.norm_backward(x, total, w, r, dx, dr, dw, db, cols, EPS)
        m.check()
        expected_y, expected_sum = hs.functional.layer_norm(x, (cols,), w, b, EPS, residual=r)
        assert torch.equal(y, expected_y) and torch.equal(total, expected_sum)
        assert torch.equal(dx, dr)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays(dtype, kind):
    """NumPy (bfloat16 by ml_dtypes) and a foreign DLPack array give what torch tensors give."""
    tensors = inputs((5, 33), dtype, "cpu")(0)
    x, w, b, dy = (KINDS[kind](t) for t in tensors.values())
    expected = run(hs.functional.layer_norm)(**tensors)
    y = hs.functional.layer_norm(x, (33,), w, b, EPS)
    grads = hs.functional.layer_norm_backward(dy, x, (33,), w, b, EPS)
    for name, got in zip(("y", "dx", "dw", "db"), (y, *grads), strict=True):
        assert type(got) is type(x) and got.dtype == x.dtype
        assert largest_error(got, np.asarray(expected[name].double())) == 0, name


def test_module_keeps_torchs_parameters():
    ours, torchs = hs.nn.LayerNorm((4, 6), eps=1e-3), torch.nn.LayerNorm((4, 6), eps=1e-3)
    assert isinstance(ours, torch.nn.LayerNorm)
    assert ours.state_dict().keys() == torchs.state_dict().keys()
    torchs.load_state_dict(ours.state_dict())
    x = normal(0, (3, 4, 6))
    expected = torchs.double()(x.double()).detach().numpy()
    check("y", ours(x), expected, largest_error(torchs.float()(x), expected))


@pytest.mark.parametrize(
    "error, words, call",
    [
        (ValueError, ["normalized_shape", "(3,)"], lambda f, x: f(x, 3)),
        (ValueError, ["weight", "3", "4"], lambda f, x: f(x, 4, x[0, :3])),
        (ValueError, ["bias", "3", "4"], lambda f, x: f(x, 4, None, x[0, :3])),
        (ValueError, ["eps", "-1"], lambda f, x: f(x, 4, eps=-1.0)),
        (ValueError, ["eps", "nan"], lambda f, x: f(x, 4, eps=float("nan"))),
        (ValueError, ["residual"], lambda f, x: f(x, 4, residual=x[:1])),
        (TypeError, ["residual", "float16"], lambda f, x: f(x, 4, residual=x.half())),
        (TypeError, ["weight", "float16"], lambda f, x: f(x, 4, x[0].half())),
        (TypeError, ["x", "float64"], lambda f, x: f(x.double(), 4)),
        (TypeError, ["x", "int64"], lambda f, x: f(x.long(), 4)),
        (TypeError, ["eps"], lambda f, x: f(x, 4, eps="small")),
    ],
)
def test_errors_name_op_argument_and_values(error, words, call):
    with pytest.raises(error) as caught:
        call(hs.functional.layer_norm, normal(0, (2, 4)))
    for word in ["layer_norm", *words]:
        assert word in str(caught.value)


@pytest.mark.parametrize("size, shape", [(4, (2, 2)), (12, (5, 3, 4)), (3, (5, 3, 1))])
def test_a_row_is_not_made_of_other_axes(device, size, shape):
    w, x = normal(0, (size,), device=device), normal(1, shape, device=device)
    with pytest.raises(ValueError, match="layer_norm: "):
        hs.functional.layer_norm(x, (size,), w)


@pytest.mark.parametrize("eps", [-1.0, float("nan")])
def test_backward_checks_eps(eps):
    with pytest.raises(ValueError, match="layer_norm: eps is"):
        hs.functional.layer_norm_backward(*np.ones((2, 2, 3), np.float32), (3,), eps=eps)
