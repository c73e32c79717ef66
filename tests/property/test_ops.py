"""norm, act and cross entropy over shapes, dtypes and layouts that hypothesis picks."""

import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import halfstep as hs
from tests import reference
from tests.helpers import ACTIVATIONS, DTYPES, normal, to64
from tests.tolerances import check, largest_error
from tests.unit import test_act, test_norm, test_xent

SETTINGS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
axes = st.lists(st.integers(0, 9), max_size=3)
columns = st.integers(1, 150)
dtypes = st.sampled_from(DTYPES)
layouts = st.sampled_from(["dense", "strided", "flipped axes", "expanded"])
seeds = st.integers(0, 10_000)


def laid_out(t, layout):
    """t's values (of its first row, when expanded) in another layout."""
    if layout == "strided":
        return torch.stack([t, t + 1], -1)[..., 0]
    if layout == "flipped axes":
        return t.permute(*reversed(range(t.dim()))).contiguous().permute(*reversed(range(t.dim())))
    if layout == "expanded" and t.dim() > 1 and t.shape[0] > 0:
        return t[:1].expand(t.shape)
    return t


@SETTINGS
@given(axes, columns, dtypes, layouts, layouts, seeds)
def test_layer_norm(lead, cols, dtype, layout, dy_layout, seed):
    made = test_norm.inputs((*lead, cols), dtype, "cpu")(seed)
    made["x"], made["dy"] = laid_out(made["x"], layout), laid_out(made["dy"], dy_layout)
    judge_one(
        made,
        test_norm.run(hs.functional.layer_norm),
        test_norm.run(F.layer_norm, dtype),
        test_norm.truth,
    )


@SETTINGS
@given(axes, columns, dtypes, layouts, layouts, st.sampled_from(ACTIVATIONS), seeds)
def test_bias_act(lead, cols, dtype, layout, dy_layout, kind, seed):
    made = test_act.inputs((*lead, cols), dtype, "cpu")(seed)
    made["x"], made["dy"] = laid_out(made["x"], layout), laid_out(made["dy"], dy_layout)
    judge_one(made, test_act.ours(kind), test_act.torchs(kind, dtype), test_act.truth(kind))


@SETTINGS
@given(
    st.integers(1, 40),
    columns,
    dtypes,
    layouts,
    st.sampled_from(test_xent.REDUCTIONS),
    st.sampled_from([0.0, 0.1]),
    st.sampled_from([0.0, 1e-3]),
    seeds,
)
def test_cross_entropy(rows, classes, dtype, layout, reduction, smoothing, z_loss, seed):
    options = {"reduction": reduction, "label_smoothing": smoothing, "z_loss": z_loss}
    made = test_xent.inputs(rows, classes, dtype, "cpu", reduction)(seed)
    x = laid_out(made["x"], layout).detach().requires_grad_()
    loss = hs.functional.cross_entropy(x, made["t"], **options)
    loss.backward(made["dy"])
    truth = to64(x), to64(made["t"])
    expected = reference.cross_entropy(*truth, **options)
    grad = reference.cross_entropy_backward(to64(made["dy"]), *truth, **options)
    leaf = x.detach().requires_grad_()
    baseline = test_xent.torch_loss(leaf.float(), made["t"], None, **options)
    baseline.backward(made["dy"])
    check("loss", loss, expected, SLACK * largest_error(baseline, expected))
    check("dx", x.grad, grad, SLACK * largest_error(leaf.grad, grad))


# One draw shows torch's error on that draw alone; the rule takes the largest of several.
SLACK = 4


def judge_one(made, ours, baseline, truth):
    expected = truth(**{name: to64(t) for name, t in made.items()})
    torchs = baseline(**made)
    for name, value in ours(**made).items():
        check(name, value, expected[name], SLACK * largest_error(torchs[name], expected[name]))


@SETTINGS
@given(axes, dtypes, layouts, st.floats(0, 1), st.integers(-(2**63), 2**63 - 1))
def test_dropout(shape, dtype, layout, p, seed):
    x = laid_out(normal(0, (*shape, 5), dtype), layout)
    y = hs.functional.dropout(x, p, state=(seed, 0))
    check("y", y, reference.dropout(to64(x), p, seed, 0) if p else to64(x))
