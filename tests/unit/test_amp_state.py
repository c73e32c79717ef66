"""GradScaler switched off, saved, loaded, set by hand and misused; and old scripts."""

import copy
import inspect
import pickle
import warnings

import pytest
import torch

from halfstep.amp import GradScaler
from halfstep.optim import AdamW
from tests.helpers import child
from tests.unit.test_amp_loop import backward, parameter, scalar


# ---- switched off, saved, set ----
def test_disabled_is_the_optimizer_alone(device):
    p, q = parameter(device), parameter(device)
    optimizer, plain = AdamW([p]), AdamW([q])
    scaler = GradScaler(device, enabled=False)
    loss = (p * p).sum()
    assert scaler.scale(loss) is loss
    p.grad, q.grad = torch.ones_like(p), torch.ones_like(q)
    scaler.unscale_(optimizer)
    result = scaler.step(optimizer, lambda: 3.0)
    scaler.update()
    plain.step()
    assert (result.applied, result.value) == (True, 3.0)
    assert torch.equal(p, q)
    assert (scaler.state_dict(), scaler.get_scale(), scaler.skipped_steps) == ({}, 1.0, 0)
    assert not pickle.loads(pickle.dumps(scaler)).is_enabled()


@pytest.mark.parametrize("first", [GradScaler, torch.amp.GradScaler])
@pytest.mark.parametrize("then", [GradScaler, torch.amp.GradScaler])
@pytest.mark.parametrize("used", [False, True])
def test_state_dict_goes_both_ways(first, then, used, device):
    p = parameter(device)
    optimizer = AdamW([p])
    source = first(device, 2.0**7, 3.0, 0.25, 5)
    for value in (0.5, float("inf"), 0.5, 0.5):
        backward(source, p, value)
        source.step(optimizer)
        source.update()
    target = then(device)
    if used:
        backward(target, p)
    target.load_state_dict(pickle.loads(pickle.dumps(source.state_dict())))
    assert (
        target.state_dict()
        == source.state_dict()
        == {
            "scale": 32.0,
            "growth_factor": 3.0,
            "backoff_factor": 0.25,
            "growth_interval": 5,
            "_growth_tracker": 2,
        }
    )
    for _ in range(3):
        backward(target, p)
        target.step(optimizer)
        target.update()
    assert target.get_scale() == 96.0


def test_a_saved_scale_is_brought_into_the_limits(device):
    state = torch.amp.GradScaler(device).state_dict()
    scaler = GradScaler(device, min_scale=1.0)
    for saved, loaded in ((float("inf"), 2.0**126), (0.0, 1.0)):
        scaler.load_state_dict(state | {"scale": saved})
        assert scaler.get_scale() == loaded
    with pytest.raises(ValueError, match=r"load_state_dict: scale is nan"):
        scaler.load_state_dict(state | {"scale": float("nan")})
    with pytest.raises(RuntimeError):
        scaler.load_state_dict({})


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"growth_factor": 0.5}, ValueError, "growth_factor is 0.5, expected more than 1"),
        ({"growth_factor": float("nan")}, ValueError, "growth_factor is nan, expected"),
        ({"backoff_factor": 2.0}, ValueError, "backoff_factor is 2.0, expected between 0 and 1"),
        ({"growth_interval": 0}, ValueError, "growth_interval is 0, expected 1 or more"),
        ({"growth_interval": None}, TypeError, "growth_interval is None, expected"),
        ({"scale": "8"}, TypeError, "scale is '8', expected a number"),
        ({"_growth_tracker": -1}, ValueError, "_growth_tracker is -1, expected a whole number"),
    ],
)
def test_a_saved_state_is_checked_before_any_of_it_is_taken(change, error, message, device):
    scaler = GradScaler(device)
    before = scaler.state_dict()
    state = {**before, "scale": 2.0, "growth_factor": 3.0}
    with pytest.raises(error, match=rf"GradScaler\.load_state_dict: {message}"):
        scaler.load_state_dict(state | change)
    assert scaler.state_dict() == before


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
def test_copies_go_on_alike(duplicate, device):
    p = parameter(device)
    optimizer, scaler = AdamW([p]), GradScaler(device, 64.0, growth_interval=3)
    backward(scaler, p, float("inf"))
    scaler.step(optimizer)
    scaler.update()
    other = duplicate(scaler)
    for s in (scaler, other):
        backward(s, p, float("nan"))
        s.step(optimizer)
        s.update()
    assert other.state_dict() == scaler.state_dict()
    assert other.skipped_steps == scaler.skipped_steps == 2


def test_new_scale(device):
    p = parameter(device)
    scaler = GradScaler(device, max_scale=2.0**20)
    backward(scaler, p)
    for new, expected in (
        (512.0, 512.0),
        (64, 64.0),
        (scalar(128.0, device), 128.0),
        (torch.full((1,), 2.0**30), 2.0**20),
    ):
        scaler.update(new)
        assert scaler.get_scale() == expected
    for useless in (float("nan"), 0.0, -1.0):
        scaler.update(scalar(useless, device))
        assert scaler.get_scale() == 2.0**20
    with pytest.raises(TypeError, match=r"new_scale is torch.complex64, expected a real number"):
        scaler.update(scalar(1.0, device, torch.complex64))
    for bad in (float("nan"), float("inf"), 0.0, -1.0, 2.0**21):
        with pytest.raises(ValueError, match=rf"GradScaler: new_scale is {bad}, expected"):
            scaler.update(bad)
    for tensor in (torch.ones(2, device=device), torch.ones(1, device=device).requires_grad_()):
        with pytest.raises(ValueError, match=r"GradScaler.update: new_scale has \d elements"):
            scaler.update(tensor)
    with pytest.raises(TypeError, match="new_scale is 'big', expected a number"):
        scaler.update("big")
    assert scaler.get_scale() == 2.0**20


# ---- misuse ----
def test_calls_out_of_order(device):
    p = parameter(device)
    optimizer, scaler = AdamW([p]), GradScaler(device)
    for call in (scaler.unscale_, scaler.step):
        with pytest.raises(AssertionError):
            call(optimizer)
    with pytest.raises(AssertionError):
        scaler.update()
    backward(scaler, p)
    with pytest.raises(AssertionError, match=r"GradScaler\.update: no gradients were checked"):
        scaler.update()
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match=r"unscale_: called twice for AdamW"):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    for call, name in ((scaler.unscale_, "unscale_"), (scaler.step, "step")):
        with pytest.raises(RuntimeError, match=rf"GradScaler\.{name}: called after step\(\)"):
            call(optimizer)
    scaler.update()
    p.grad = None
    with pytest.raises(AssertionError, match=r"GradScaler\.step: SGD has no gradients"):
        scaler.step(torch.optim.SGD([p], lr=0.1))


def test_closures_are_refused(device):
    p = parameter(device)
    optimizer, scaler = AdamW([p]), GradScaler(device)
    backward(scaler, p)
    for arguments in ({"closure": lambda: 1.0}, {}):
        with pytest.raises(RuntimeError, match=r"GradScaler\.step: closure is given"):
            scaler.step(optimizer, *([] if arguments else [lambda: 1.0]), **arguments)
    assert scaler.step(optimizer, closure=None).applied


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"init_scale": float("nan")}, ValueError, "init_scale is nan, expected"),
        ({"init_scale": float("inf")}, ValueError, "init_scale is inf, expected"),
        ({"init_scale": 0.0, "min_scale": 0}, ValueError, "init_scale is 0.0, expected"),
        ({"init_scale": "8"}, TypeError, "init_scale is '8', expected a number"),
        ({"max_scale": 4.0}, ValueError, "init_scale is 65536.0, expected .* 4.0 .max_scale"),
        ({"max_scale": float("inf")}, ValueError, "min_scale is .* and max_scale inf, expected"),
        ({"min_scale": 8.0, "max_scale": 4.0}, ValueError, "min_scale is 8.0 and max_scale 4.0"),
        ({"min_scale": None}, TypeError, "min_scale is None, expected a number"),
        ({"growth_factor": 1.0}, ValueError, "growth_factor is 1.0, expected more than 1"),
        ({"backoff_factor": 1.0}, ValueError, "backoff_factor is 1.0, expected between 0 and 1"),
        ({"growth_interval": 0}, ValueError, "growth_interval is 0, expected 1 or more"),
        ({"growth_interval": 1.5}, TypeError, "growth_interval is 1.5, expected a whole number"),
        ({"growth_interval": None}, TypeError, "growth_interval is None, expected a whole number"),
        ({"growth_factor": "a"}, TypeError, "growth_factor is 'a', expected a number"),
        ({"backoff_factor": None}, TypeError, "backoff_factor is None, expected a number"),
        ({"init_scale": 1e-50, "min_scale": 0}, ValueError, "init_scale is 1e-50, expected .* 0"),
        ({"max_scale": 3.4028236e38}, ValueError, ".* max_scale 3.4028236e.38, expected"),
        ({"device": "meta"}, ValueError, "device is 'meta', expected 'cuda' or 'cpu'"),
    ],
)
def test_arguments_are_checked(options, error, message):
    with pytest.raises(error, match=f"GradScaler: {message}"):
        GradScaler(**{"device": "cpu"} | options)


def test_an_optimizer_that_is_none_is_named(device):
    scaler = GradScaler(device)
    backward(scaler, parameter(device))
    for name in ("step", "unscale_"):
        with pytest.raises(TypeError, match=rf"GradScaler\.{name}: optimizer is a NoneType"):
            getattr(scaler, name)(None)


# ---- old scripts ----
without_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without it")


@without_cuda
def test_without_cuda_the_scaler_is_active_on_the_cpu():
    with pytest.warns(UserWarning, match="GradScaler: CUDA is not available"):
        scaler = GradScaler()
    assert scaler.is_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not GradScaler(enabled=False).is_enabled()
        assert GradScaler("cpu").is_enabled()


@pytest.mark.filterwarnings("ignore:GradScaler")
def test_the_first_argument_may_be_the_scale():
    assert GradScaler(1024.0).get_scale() == 1024.0
    assert GradScaler(1024, growth_interval=7).get_growth_interval() == 7
    assert not GradScaler(1024.0, 3.0, 0.25, 10, False).is_enabled()
    state = {"scale": 1024.0, "growth_factor": 3.0, "backoff_factor": 0.25, "growth_interval": 10}
    scaler = GradScaler(1024.0, 3.0, 0.25, 10)
    assert scaler.state_dict() == state | {"_growth_tracker": 0}
    scaler = GradScaler(1024.0, 3.0, growth_interval=10, backoff_factor=0.25, max_scale=4096.0)
    assert scaler.state_dict() == state | {"_growth_tracker": 0}
    assert "device" in inspect.signature(GradScaler).parameters


def test_an_old_script_changes_its_import_line_only():
    script = """
import torch
{line}
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
scaler = GradScaler()
x, y = torch.randn(32, 4), torch.randn(32, 1)
losses = []
for i in range(12):
    with autocast():
        loss = torch.nn.functional.mse_loss(net(x).float(), y) / 4
    scaler.scale(loss).backward()
    if i % 4 == 3:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    losses.append(float(loss))
print(losses[-1] < losses[0], scaler.is_enabled())
"""
    line = "from halfstep.amp import autocast, GradScaler"
    assert child(script.format(line=line), PYTHONWARNINGS="ignore").split() == ["True", "True"]
