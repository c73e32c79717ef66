"""What hs.optim.AdamW refuses or skips, and that nothing has changed then."""

import copy

import pytest
import torch

from halfstep.optim import AdamW
from tests.helpers import normal

NAN = float("nan")


def parameter(shape, device, seed=7):
    return torch.nn.Parameter(normal(seed, shape, device=device))


def two_groups(device, ready):
    """An optimizer of two groups whose gradients are there; ready: it has made a step."""
    params = [parameter((3,), device), parameter((2, 3), device, 8)]
    optimizer = AdamW([{"params": [p]} for p in params], lr=0.1)
    for p in params:
        p.grad = torch.ones_like(p)
    if ready:
        optimizer.step()
    return optimizer, params


def everything(optimizer, params):
    """All that a step may write, and which parameters have a state."""
    return copy.deepcopy((params, [optimizer.state.get(p) for p in params]))


def same(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def refuse(optimizer, params, error, match):
    before = everything(optimizer, params)
    with pytest.raises(error, match=match):
        optimizer.step()
    assert same(everything(optimizer, params), before)


# ---- the numbers of a group ----
BAD_NUMBERS = [
    ("lr", -1.0, ValueError, "lr is -1, expected a finite value of 0 or more"),
    ("lr", NAN, ValueError, "lr is nan, expected"),
    ("lr", torch.tensor(NAN), ValueError, "lr is nan, expected"),
    ("lr", torch.tensor(-1.0), ValueError, "lr is -1, expected"),
    ("lr", torch.ones(2), ValueError, "lr has 2 elements of torch.float32, expected one real"),
    ("lr", torch.tensor(1j), ValueError, "lr has 1 elements of torch.complex64, expected one real"),
    ("lr", "x", TypeError, "lr is 'x', expected a number"),
    ("eps", -1.0, ValueError, "eps is -1, expected"),
    ("eps", None, TypeError, "eps is None, expected a number"),
    ("weight_decay", float("inf"), ValueError, "weight_decay is inf, expected"),
    ("betas", (0.9, 1.0), ValueError, "beta2 is 1, expected 0 or more and less than 1"),
    ("betas", (NAN, 0.9), ValueError, "beta1 is nan, expected"),
    ("betas", 0.9, ValueError, "betas is 0.9, expected two numbers"),
    ("amsgrad", True, ValueError, "amsgrad is True, expected False"),
    ("differentiable", True, ValueError, "differentiable is True, expected False"),
]


@pytest.mark.parametrize("ready", [False, True])
@pytest.mark.parametrize(("name", "value", "error", "message"), BAD_NUMBERS)
def test_numbers_changed_later(name, value, error, message, ready, device):
    optimizer, params = two_groups(device, ready)
    optimizer.param_groups[1][name] = value
    refuse(optimizer, params, error, f"adamw: {message}")


@pytest.mark.parametrize(("name", "value", "error", "message"), BAD_NUMBERS)
def test_numbers_of_a_new_group_and_of_a_saved_one(name, value, error, message, device):
    optimizer, _ = two_groups(device, True)
    with pytest.raises(error, match=f"adamw: {message}"):
        optimizer.add_param_group({"params": [parameter((1,), device)], name: value})
    assert len(optimizer.param_groups) == 2
    state = optimizer.state_dict()
    state["param_groups"][0]["lr"] = 5.0
    state["param_groups"][1][name] = value
    with pytest.raises(error, match=f"adamw: {message}"):
        optimizer.load_state_dict(state)
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_two_implementations_at_once(device):
    with pytest.raises(RuntimeError, match="adamw: fused and foreach are both True"):
        AdamW([parameter((1,), device)], fused=True, foreach=True)


# ---- the tensors of a group ----
def as_float64(optimizer, p):
    p.grad = None
    p.data = p.data.double()
    p.grad = torch.ones_like(p)


def expanded(optimizer, p):
    p.data = p.data[:1].expand(2, 3)


def partly_overlapping(optimizer, p):
    p.data = torch.ones(8, device=p.device).as_strided((2, 3), (1, 1))


def state_of(change):
    def break_it(optimizer, p):
        if p not in optimizer.state:
            optimizer.step()
        optimizer.state[p]["exp_avg_sq"] = change(optimizer.state[p]["exp_avg_sq"])

    return break_it


@pytest.mark.parametrize("ready", [False, True])
@pytest.mark.parametrize(
    ("break_it", "error", "message"),
    [
        (as_float64, TypeError, r"param\[0\] is float64, expected float32"),
        (expanded, ValueError, r"param\[0\] has shape \(2, 3\) and strides \(0, 1\), by which"),
        (partly_overlapping, ValueError, r"param\[0\] has shape \(2, 3\) and strides \(1, 1\)"),
        (state_of(lambda t: None), TypeError, r"exp_avg_sq\[0\] is a NoneType, expected a tensor"),
        (state_of(lambda t: t[:1].expand(2, 3)), ValueError, r"exp_avg_sq\[0\] has shape .* by wh"),
        (
            state_of(lambda t: t.reshape(3, 2)),
            ValueError,
            r"exp_avg_sq\[0\] has shape \(3, 2\), param\[0\] has shape \(2, 3\)",
        ),
        (
            state_of(lambda t: t.reshape(3, 2).t().reshape(3, 2)[:, :1]),
            ValueError,
            r"exp_avg_sq\[0\] has shape \(3, 1\), param\[0\] has shape \(2, 3\)",
        ),
        (state_of(lambda t: t.half()), TypeError, r"exp_avg_sq\[0\] is float16, expected float32"),
    ],
)
def test_tensors_changed_later(break_it, error, message, ready, device):
    optimizer, params = two_groups(device, ready)
    break_it(optimizer, params[1])
    refuse(optimizer, params, error, f"adamw: {message}")


def test_a_group_alone_gets_no_state_from_a_step_that_fails(device):
    p = parameter((2, 3), device)
    optimizer = AdamW([p])
    p.grad = torch.ones_like(p)
    expanded(optimizer, p)
    refuse(optimizer, [p], ValueError, r"adamw: param\[0\] has shape")
    as_float64(optimizer, p)
    refuse(optimizer, [p], TypeError, r"adamw: param\[0\] is float64")


def test_a_partly_overlapping_gradient_is_unscaled_right(device):
    p = parameter((4, 3), device)
    p.grad = torch.arange(9.0, device=device).as_strided((4, 3), (2, 1))
    expected = p.grad / 4
    optimizer = AdamW([p])
    optimizer.grad_scale = torch.tensor(4.0, device=device)
    optimizer.step()
    assert torch.equal(p.grad, expected)


# ---- a saved state ----
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"step": NAN}, ValueError, "step of parameter 0 is nan, expected a finite value"),
        ({"step": torch.tensor(-1.0)}, ValueError, "step of parameter 0 is -1, expected"),
        ({"step": -5}, ValueError, "step of parameter 0 is -5, expected"),
        ({"step": None}, TypeError, "step of parameter 0 is None, expected a number"),
        ({"exp_avg": None}, TypeError, "exp_avg of parameter 0 is a NoneType, expected a tensor"),
        (
            {"exp_avg_sq": torch.zeros(3, 2)},
            ValueError,
            r"exp_avg_sq of parameter 0 has shape \(3, 2\), the parameter has shape \(2, 3\)",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_saved_state_is_checked_before_any_of_it_is_taken(change, error, message, device):
    optimizer, params = two_groups(device, True)
    state = copy.deepcopy(optimizer.state_dict())
    state["state"][0]["step"] = torch.tensor(77.0)
    state["state"][1].update(change)
    before = everything(optimizer, params)
    with pytest.raises(error, match=f"adamw: {message}"):
        optimizer.load_state_dict(state)
    assert same(everything(optimizer, params), before)


# ---- on the device ----
@pytest.mark.parametrize("scale", [NAN, 0.0, -2.0, float("inf")])
def test_a_loss_scale_that_is_of_no_use_skips_the_step(scale, device):
    optimizer, params = two_groups(device, True)
    optimizer.grad_scale = torch.tensor(scale, device=device)
    before = everything(optimizer, params)
    optimizer.step()
    assert same(everything(optimizer, params), before)
    assert torch.equal(params[0].grad, torch.ones_like(params[0]))
