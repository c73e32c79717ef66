"""The pass of AdamW against float64, and its checks. The optimizer: test_optim_adamw.py."""

import copy

import pytest
import torch

from halfstep import _C
from halfstep._ops import adamw as op
from tests import reference
from tests.helpers import DTYPES, HALVES, SIZES, normal, torch_dtype
from tests.tolerances import judge

STEPS = 30
TOTAL = sum(SIZES)
OPTIONS = {"lr": 3e-3, "betas": (0.8, 0.95), "eps": 1e-7, "weight_decay": 0.05}
PLAIN = {"lr": 3e-3, "beta1": 0.8, "beta2": 0.95, "eps": 1e-7, "weight_decay": 0.05}


# ---- the pass ----
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [None, 2.0**16, 2.0**-14])
@pytest.mark.parametrize("maximize", [False, True])
def test_thirty_steps_follow_float64(dtype, scale, maximize, device):
    def make(seed):
        g = normal(seed + 1000, (STEPS, TOTAL), dtype, device, (scale or 1.0) * 2.0**-3)
        return {"p": normal(seed, (TOTAL,), device=device), "g": g}

    def ours(p, g):
        p, m, v = p.clone(), torch.zeros_like(p), torch.zeros_like(p)
        steps = [torch.zeros((), device=device) for _ in SIZES]
        factor = None if scale is None else torch.tensor(scale, device=device)
        for row in g.clone():
            lists = [list(t.split(SIZES)) for t in (p, row, m, v)]
            op.step(*lists, steps, None, None, factor, None, **PLAIN, maximize=maximize)
        assert [float(s) for s in steps] == [STEPS] * len(SIZES)
        return {"p": p, "m": m, "v": v}

    def torchs(p, g):
        p = p.clone().requires_grad_()
        optimizer = torch.optim.AdamW([p], **OPTIONS, maximize=maximize)
        for row in g:
            p.grad = row.float() / (scale or 1.0)
            optimizer.step()
        state = optimizer.state[p]
        return {"p": p.detach(), "m": state["exp_avg"], "v": state["exp_avg_sq"]}

    def truth(p, g):
        m = v = 0 * p
        for t, row in enumerate(g):
            p, m, v = reference.adamw(
                p, row, m, v, t, **PLAIN, scale=scale or 1.0, maximize=maximize
            )
        return {"p": p, "m": m, "v": v}

    judge(make, ours, torchs, truth)


def one(device, dtype="float32", size=65):
    """p, g, m, v, step of one tensor, as lists."""
    p, g = normal(1, (size,), device=device), normal(2, (size,), dtype, device)
    return [[p], [g], [p * 0.1], [p * p], [torch.full((), 4.0, device=device)]]


@pytest.mark.parametrize("dtype", DTYPES)
def test_with_a_scale_the_unscaled_gradient_is_written_back(dtype, device):
    lists = one(device, dtype)
    before = lists[1][0].clone()
    op.step(*lists, None, None, torch.tensor(8.0, device=device), None, **PLAIN, maximize=True)
    assert torch.equal(lists[1][0], before / 8)


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("lr", "scale", "found"),
    [(None, 8.0, 1.0)]
    + [(None, scale, 0.0) for scale in (NAN, INF, -INF, 0.0, -2.0)]
    + [(lr, 8.0, 0.0) for lr in (NAN, INF, -1.0)],
)
def test_what_skips_a_step_leaves_everything_as_it_is(lr, scale, found, dtype, device):
    lists = one(device, dtype)
    before = copy.deepcopy(lists)
    half = normal(3, (65,), "float16", device)
    old_half = half.clone()
    scalars = [None if s is None else torch.tensor(s, device=device) for s in (lr, scale, found)]
    op.step(*lists, [half], *scalars, **PLAIN, maximize=False)
    for (actual,), (expected,) in zip(lists, before, strict=True):
        assert torch.equal(actual, expected)
    assert torch.equal(half, old_half)


@pytest.mark.parametrize("half", HALVES)
def test_16_bit_copies_are_the_new_parameters_rounded_once(half, device):
    p, g, m, v, step = one(device)
    lists = [[*x, *copy.deepcopy(x)] for x in (p, g, m, v, step)]
    copies = [None, torch.zeros(65, dtype=torch_dtype(half), device=device)]
    op.step(*lists, copies, None, None, None, **PLAIN, maximize=False)
    assert torch.equal(copies[1], lists[0][1].to(torch_dtype(half)))


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda a: a["p"].append(a["p"][0]), r"adamw: grad has 1 tensors, param has 2"),
        (
            lambda a: a["g"].__setitem__(0, a["g"][0].double()),
            r"adamw: grad\[0\] is float64, expected float32, float16 or bfloat16",
        ),
        (lambda a: a.update(beta1=1.0), r"adamw: beta1 is 1, expected"),
        (lambda a: a.update(lr=float("nan")), r"adamw: lr is -?nan, expected"),
        (lambda a: a.update(weight_decay=-1.0), r"adamw: weight_decay is -1, expected"),
    ],
)
def test_errors_name_the_argument_and_write_nothing(break_it, message, device):
    p, g, m, v, step = one(device)
    before = p[0].clone()
    arguments = {"p": p, "g": g, **PLAIN}
    break_it(arguments)
    options = {k: arguments[k] for k in PLAIN}
    with pytest.raises((ValueError, TypeError), match=message):
        _C.adamw(
            arguments["p"],
            arguments["g"],
            [*m],
            [*v],
            [*step],
            None,
            None,
            None,
            None,
            *options.values(),
            False,
            False,
        )
    assert torch.equal(p[0], before)
