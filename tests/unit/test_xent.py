"""Softmax cross entropy against the reference. tests/gpu/test_xent.py runs the same on a GPU.

Cases of public trackers: N1, N3, T1, L1, L2, L3. N2 stands in tests/gpu/test_streams.py; N4
in test_xent_soft.py, as only probabilities and their weights get a gradient beside the logits. T2
by kind: logits of a large mean and near 1e30. What is refused stands in test_xent_arguments.py.
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
    SIZES,
    Margins,
    counted,
    normal,
    torch_dtype,
)
from tests.tolerances import check, judge, largest_error

REDUCTIONS = ["none", "mean", "sum"]
REDUCTION_CODES = {"none": 0, "mean": 1, "sum": 2}
IGNORED = -100


def targets(seed, rows, classes, device, ignored=0.25):
    """Class indices with class 0 among them and about a quarter of the rows ignored."""
    rng = np.random.default_rng([seed, rows, classes])
    t = rng.integers(0, classes, rows)
    t[: min(rows, 1)] = 0
    t[1:][rng.random(max(rows - 1, 0)) < ignored] = IGNORED
    return torch.from_numpy(t).to(device)


def probabilities(seed, rows, classes, dtype, device):
    return normal(seed + 7, (rows, classes), "float32").softmax(1).to(torch_dtype(dtype)).to(device)


def inputs(rows, classes, dtype, device, reduction="mean", scale=1.0, weighted=False, soft=False):
    def make(seed):
        made = {"x": normal(seed, (rows, classes), dtype, device, 3.0)}
        if soft:
            made["t"] = probabilities(seed, rows, classes, dtype, device)
        else:
            made["t"] = targets(seed, rows, classes, device)
        if weighted:
            made["w"] = normal(seed + 1, (classes,), "float32", device).abs() + 0.5
        made["dy"] = normal(seed + 2, (rows,) if reduction == "none" else (), "float32", device)
        made["dy"] = made["dy"] * scale
        return made

    return make


def split(loss, dx, t):
    """The gradient's small parts by nature, judged on their own: all but the target columns."""
    if t.ndim == 2:
        return {"loss": loss, "dx": dx}
    classes = dx.shape[1]
    at_target = t.reshape(-1, 1) == (torch if torch.is_tensor(t) else np).arange(classes)
    return {"loss": loss, "dx at targets": dx[at_target], "dx elsewhere": dx[~at_target]}


def gradients(loss_of, x, t, dy):
    x = x.detach().requires_grad_()
    loss = loss_of(x)
    loss.backward(dy)
    grad = x.grad.cpu()
    return split(loss.detach(), grad, t.cpu())


def compare(make, **options):
    def ours(x, t, dy, w=None):
        return gradients(lambda x: hs.functional.cross_entropy(x, t, w, **options), x, t, dy)

    def torchs(x, t, dy, w=None):
        return gradients(lambda x: torch_loss(x.float(), t, w, **options), x, t, dy)

    def truth(x, t, dy, w=None):
        loss = reference.cross_entropy(x, t, weight=w, **options)
        return split(loss, reference.cross_entropy_backward(dy, x, t, weight=w, **options), t)

    judge(make, ours, torchs, truth)


def torch_loss(x, t, w, reduction="mean", z_loss=0.0, all_ignored="nan", **options):
    t = t if t.ndim == 1 else t.float()
    loss = F.cross_entropy(x, t, w, reduction=reduction, **options)
    if z_loss:
        z = z_loss * torch.logsumexp(x, 1) ** 2
        if t.ndim == 1:
            kept = t != options.get("ignore_index", IGNORED)
            z = torch.where(kept, z, 0.0) if reduction == "none" else z[kept]
        loss = loss + (z if reduction == "none" else getattr(z, reduction)())
    return loss


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_classes(device, dtype, reduction):
    for classes in SIZES[1:]:
        compare(inputs(5, classes, dtype, device, reduction), reduction=reduction)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 2, 3, 31, 32, 33, 65])
def test_rows(device, dtype, rows):
    compare(inputs(rows, 10, dtype, device))


@pytest.mark.parametrize("dtype", DTYPES)
def test_model_size(device, dtype):
    compare(inputs(16, 32000, dtype, device), label_smoothing=0.1)


@pytest.mark.parametrize("scale", GRADIENT_SCALES)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_gradient_scales(device, dtype, reduction, scale):
    """The loss scale arrives in backward. fp16 overflows at 2^16 where torch's would too."""
    scale = scale if dtype != "float16" else min(scale, 2.0**13)
    compare(inputs(12, 50, dtype, device, reduction, scale), reduction=reduction)


@pytest.mark.parametrize("soft", [False, True], ids=["indices", "probabilities"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("z_loss", [0.0, 1e-2])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_options(device, reduction, z_loss, smoothing, weighted, soft):
    for dtype in DTYPES:
        compare(
            inputs(9, 21, dtype, device, reduction, weighted=weighted, soft=soft),
            reduction=reduction,
            label_smoothing=smoothing,
            z_loss=z_loss,
        )


@pytest.mark.parametrize("ignore_index", [-1, 0, 3, 10**9])
def test_ignore_index(device, ignore_index):
    def make(seed):
        made = inputs(12, 5, "float32", device)(seed)
        kept = made["t"] != IGNORED
        return made | {"t": torch.where(kept, made["t"], ignore_index)}

    compare(make, ignore_index=ignore_index)
    made = make(0)
    x = made["x"].requires_grad_()
    hs.functional.cross_entropy(x, made["t"], ignore_index=ignore_index).backward()
    assert not x.grad[made["t"] == ignore_index].any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_case_l1_all_ignored(device, dtype, reduction):
    x = normal(0, (4, 9), dtype, device).requires_grad_()
    t = torch.full((4,), IGNORED, device=device)
    for choice in ("nan", "zero"):
        x.grad = None
        loss = hs.functional.cross_entropy(x, t, reduction=reduction, all_ignored=choice)
        loss.sum().backward()
        if reduction == "mean" and choice == "nan":
            assert torch.isnan(loss)
        else:
            assert not loss.any()
        if reduction != "mean" or choice == "zero":
            assert not x.grad.any() and torch.isfinite(x.grad).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_case_l2_logits_are_never_modified(device, dtype):
    x = normal(0, (6, 33), dtype, device)
    t, before = targets(0, 6, 33, device), x.clone()
    x.requires_grad_()
    loss = hs.functional.cross_entropy(x, t)
    (first,) = torch.autograd.grad(loss, x, retain_graph=True)
    kept = first.clone()
    (second,) = torch.autograd.grad(loss, x, retain_graph=True)
    assert torch.equal(x.detach(), before)
    assert torch.equal(first, kept) and torch.equal(first, second)


@pytest.mark.parametrize("dtype", DTYPES)
def test_case_l3_class_0_counts_and_the_gradient_is_untouched(device, dtype):
    def make(seed):
        made = inputs(6, 5, dtype, device, "none")(seed)
        return made | {"t": torch.tensor([0, 0, 1, 0, 4, 0], device=device)}

    compare(make, reduction="none")
    made = make(0)
    dy = made["dy"].clone()
    x = made["x"].requires_grad_()
    hs.functional.cross_entropy(x, made["t"], reduction="none").backward(dy)
    assert torch.equal(dy, made["dy"])
    assert x.grad.any(1).all(), "class 0 was masked"


@pytest.mark.parametrize("dtype", HALVES)
def test_case_n3_autocast(device, dtype):
    linear = hs.nn.Linear(24, 10, device=device)
    loss_fn = hs.nn.CrossEntropyLoss()
    functions = ("xent_forward", "xent_backward")
    with torch.autocast(device, torch_dtype(dtype)), counted(*functions):
        logits = linear(normal(0, (6, 24), "float32", device))
        loss = loss_fn(logits, targets(0, 6, 10, device))
        loss.backward()
    assert logits.dtype is torch_dtype(dtype) and loss.dtype is torch.float32
    assert linear.weight.grad.dtype is torch.float32


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_case_n1_no_rows(device, reduction):
    for dtype in DTYPES:
        x = normal(0, (0, 7), dtype, device).requires_grad_()
        t = torch.zeros(0, dtype=torch.int64, device=device)
        loss = hs.functional.cross_entropy(x, t, reduction=reduction)
        expected = F.cross_entropy(x.detach().float(), t, reduction=reduction)
        assert torch.equal(loss.isnan(), expected.isnan()) and loss.shape == expected.shape
        assert not loss.nan_to_num().any()
        loss.sum().backward()
        assert x.grad.shape == x.shape
    compare(inputs(4, 8, "float32", device))


def test_case_t1_one_row_and_one_class(device):
    for shape, strides in (((1, 640), (7, 1)), ((640, 1), (1, 9))):
        x = normal(0, shape, "float32", device)
        t = torch.zeros(shape[0], dtype=torch.int64, device=device)
        odd = x.as_strided(shape, strides)
        got, expected = hs.functional.cross_entropy(odd, t), hs.functional.cross_entropy(x, t)
        assert torch.equal(got, expected)


@pytest.mark.parametrize("offset", [1e4, -1e4, 1e30])
def test_case_t2_large_logits(device, offset):
    def make(seed):
        made = inputs(6, 40, "float32", device)(seed)
        return made | {"x": made["x"] + offset}

    compare(make)


def test_infinite_logits(device):
    x = torch.tensor([[0.5, -torch.inf, 1.0], [-torch.inf, 2.0, -torch.inf]], device=device)
    t = torch.tensor([2, 1], device=device)
    x.requires_grad_()
    loss = hs.functional.cross_entropy(x, t, reduction="none")
    loss.sum().backward()
    expected = F.cross_entropy(x.detach().double(), t, reduction="none").cpu().numpy()
    check("loss", loss, expected, 2.0**-23)
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_more_axes(device, dtype):
    """(n, classes, d1, d2) and (classes,), also in channels_last."""
    x, t = normal(0, (2, 5, 3, 4), dtype, device), targets(0, 24, 5, device).reshape(2, 3, 4)
    rows = x.movedim(1, -1).reshape(-1, 5)
    for layout in (torch.contiguous_format, torch.channels_last):
        for reduction in REDUCTIONS:
            leaf = x.to(memory_format=layout).detach().requires_grad_()
            flat = rows.detach().requires_grad_()
            loss = hs.functional.cross_entropy(leaf, t, reduction=reduction)
            same = hs.functional.cross_entropy(flat, t.reshape(-1), reduction=reduction)
            loss.sum().backward()
            same.sum().backward()
            assert torch.equal(loss.reshape(-1), same.reshape(-1))
            assert torch.equal(leaf.grad.movedim(1, -1).reshape(-1, 5), flat.grad)
    one = hs.functional.cross_entropy(rows[0], t.reshape(-1)[0])
    assert one.shape == () and torch.equal(
        one, hs.functional.cross_entropy(rows[:1], t.reshape(-1)[:1])
    )


def test_strided_logits_and_expanded_gradient(device):
    wide = normal(0, (6, 80), "float32", device)
    x, t = wide[:, ::2].detach().requires_grad_(), targets(0, 6, 40, device)
    dense = wide[:, ::2].contiguous().detach().requires_grad_()
    for leaf in (x, dense):
        loss = hs.functional.cross_entropy(leaf, t, reduction="none")
        loss.backward(torch.full((), 0.5, device=device).expand(6))
    assert torch.equal(x.grad, dense.grad)


@pytest.mark.parametrize("target_dtype", [torch.int32, torch.int16, torch.uint8])
def test_other_integer_targets(device, target_dtype):
    x, t = normal(0, (6, 9), "float32", device), torch.arange(6, device=device)
    got = hs.functional.cross_entropy(x, t.to(target_dtype))
    assert torch.equal(got, hs.functional.cross_entropy(x, t))


@pytest.mark.parametrize("shift", [0, 1, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_margins(device, dtype, shift):
    for reduction, rows, classes in itertools.product(REDUCTIONS, (1, 5), (1, 7, 16, 65)):
        options = (IGNORED, REDUCTION_CODES[reduction], 0.1, 1e-3, False)
        m = Margins(device, shift)
        x, t = normal(0, (rows, classes), dtype, device), targets(0, rows, classes, device)
        shape = (rows,) if reduction == "none" else ()
        loss, lse = m.empty(shape, "float32"), m.empty((rows, 2), "float32")
        denominator, dx = m.empty((2,), "float32"), m.like(x)
        dy = normal(1, shape, "float32", device)
        _C.xent_forward(x, t, None, loss, lse, denominator, *options)
        _C.xent_backward(dy, x, t, None, lse, denominator, dx, *options)
        m.check()
        expected = hs.functional.cross_entropy(
            x, t, reduction=reduction, label_smoothing=0.1, z_loss=1e-3
        )
        assert torch.equal(loss, expected)
        truth = reference.cross_entropy_backward(
            dy.double().cpu().numpy(),
            x.double().cpu().numpy(),
            t.cpu().numpy(),
            reduction=reduction,
            label_smoothing=0.1,
            z_loss=1e-3,
        )
        check("dx", dx, truth, 1e-6 * float(dy.abs().max()))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy_arrays(dtype, reduction):
    from tests.helpers import to_numpy

    made = inputs(6, 33, dtype, "cpu", reduction, weighted=True)(0)
    x, t, w, dy = (to_numpy(made[n]) for n in ("x", "t", "w", "dy"))
    leaf = made["x"].requires_grad_()
    expected = hs.functional.cross_entropy(leaf, made["t"], made["w"], reduction=reduction)
    expected.backward(made["dy"])
    loss = hs.functional.cross_entropy(x, t, w, reduction=reduction)
    dx = hs.functional.cross_entropy_backward(dy, x, t, w, reduction=reduction)
    assert loss.dtype == np.float32 and dx.dtype == x.dtype
    assert largest_error(loss, expected.detach().double().numpy()) == 0
    assert largest_error(dx, leaf.grad.double().numpy()) == 0


def test_module_takes_torchs_arguments(device):
    w = torch.rand(9, device=device) + 0.5
    options = {"weight": w, "ignore_index": 3, "reduction": "sum", "label_smoothing": 0.1}
    ours, torchs = hs.nn.CrossEntropyLoss(**options), torch.nn.CrossEntropyLoss(**options)
    assert isinstance(ours, torch.nn.CrossEntropyLoss)
    assert ours.state_dict().keys() == torchs.state_dict().keys()
    x, t = normal(0, (6, 9), "float32", device), torch.arange(6, device=device)
    expected = torchs.double()(x.double(), t).cpu().numpy()
    check("loss", ours(x, t), expected, largest_error(torchs.float()(x, t), expected))


def test_deprecated_reduction_arguments(device):
    x, t = normal(0, (6, 9), "float32", device), torch.arange(6, device=device)
    f = hs.functional.cross_entropy
    assert torch.equal(f(x, t, size_average=False), f(x, t, reduction="sum"))
    assert torch.equal(f(x, t, reduce=False), f(x, t, reduction="none"))
    assert torch.equal(f(x, t, size_average=True), f(x, t))
