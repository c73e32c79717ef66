"""GradScaler and autocast: the two passes, the scale's rule, torch's optimizers and ours."""

import copy
import pickle
import warnings

import numpy as np
import pytest
import torch

from halfstep._ops import scaler as op
from halfstep.amp import GradScaler, autocast
from halfstep.optim import AdamW
from tests import reference
from tests.helpers import DTYPES, SIZES, child, counted, normal, other_layouts, to64, torch_dtype

BAD = [float("inf"), -float("inf"), float("nan")]
OPTIMIZERS = {
    "ours": lambda params: AdamW(params, lr=1e-2),
    "torch_fused": lambda params: torch.optim.AdamW(params, lr=1e-2, fused=True),
    "torch_plain": lambda params: torch.optim.SGD(params, lr=1e-2),
}


def scalar(value, device, dtype=torch.float32):
    return torch.full((), value, dtype=dtype, device=device)


# ---- the passes ----
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [None, 2.0**16, 3.0])
def test_check_of_finite_gradients(dtype, scale, device):
    grads = [normal(n, (n,), dtype, device, (scale or 1.0) * 2.0**-4) for n in SIZES]
    found = scalar(0.0, device)
    expected_found, expected = reference.scaler_check([to64(g) for g in grads], scale)
    op.check(grads, None if scale is None else scalar(scale, device), found)
    assert float(found) == expected_found == 0
    for g, e in zip(grads, expected, strict=True):
        unit = torch.finfo(torch_dtype(dtype)).eps
        # One rounding of 1 / scale, one of the product; subnormals of float16 have a fixed unit.
        np.testing.assert_allclose(
            to64(g), e, rtol=unit, atol=2.0**-25 if dtype == "float16" else 0
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("scale", [None, 4.0])
def test_check_finds_every_place(dtype, bad, scale, device):
    for size in SIZES[1:]:
        for place in {0, size // 2, size - 1}:
            grads = [torch.ones(n, dtype=torch_dtype(dtype), device=device) for n in (3, size, 0)]
            grads[1][place] = bad
            found = scalar(0.0, device)
            op.check(grads, None if scale is None else scalar(scale, device), found)
            assert float(found) == 1, (size, place)


def test_check_keeps_what_was_found_before(device):
    found = scalar(1.0, device)
    op.check([torch.ones(3, device=device)], None, found)
    op.check([], None, found)
    assert float(found) == 1


def test_a_quotient_that_overflows_is_found(device):
    found = scalar(0.0, device)
    op.check(
        [torch.full((3,), 60000.0, dtype=torch.float16, device=device)], scalar(0.5, device), found
    )
    assert float(found) == 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_check_of_any_strides(dtype, device):
    for _, g in other_layouts(normal(1, (4, 3, 2, 5), dtype, device)):
        expected, found, strides = g.clone() / 4, scalar(0.0, device), g.stride()
        op.check([g], scalar(4.0, device), found)
        assert torch.equal(g, expected)
        assert g.stride() == strides
        g[3, 2, 1, 4] = float("nan")
        op.check([g], None, found)
        assert float(found) == 1


@pytest.mark.parametrize("limits", [(0.0, 2.0**126), (2.0**-3, 2.0**20), (3.0, 1000.0)])
def test_ten_thousand_updates_follow_the_model(limits, device):
    rng = np.random.default_rng(5)
    scale, tracker = scalar(256.0, device), scalar(0, device, torch.int32)
    clean, dirty = scalar(0.0, device), scalar(1.0, device)
    expected = (256.0, 0)
    for rate in (0.02, 0.5, 0.0, 0.3):  # rates of overflow: grow, fall, to the top, down again
        for bad in rng.random(2500) < rate:
            op.update(scale, tracker, dirty if bad else clean, 2.0, 0.5, 3, *limits)
            value, count = reference.scaler_update(*expected, bad, 2.0, 0.5, 3, *limits)
            expected = (float(np.float32(value)), count)
            assert (float(scale), int(tracker)) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1.0, 0.5, 3, 0.0, 1.0), "growth_factor is 1, expected"),
        ((2.0, 1.0, 3, 0.0, 1.0), "backoff_factor is 1, expected"),
        ((2.0, 0.5, 0, 0.0, 1.0), "growth_interval is 0, expected"),
        ((2.0, 0.5, 3, 2.0, 1.0), "max_scale is 1, expected 2"),
    ],
)
def test_update_refuses(arguments, message, device):
    scale, tracker = scalar(8.0, device), scalar(0, device, torch.int32)
    with pytest.raises(ValueError, match=f"scaler: {message}"):
        op.update(scale, tracker, scalar(1.0, device), *arguments)
    assert float(scale) == 8


# ---- the loop ----
def parameter(device, shape=(5, 3), seed=7, dtype="float32"):
    return torch.nn.Parameter(normal(seed, shape, dtype, device))


def backward(scaler, p, value=0.25):
    """Gradients of about value, times the scale."""
    p.grad = None
    scaler.scale((p * value).sum()).backward()


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_scaled_step_is_the_plain_step(kind, device):
    p, q = parameter(device), parameter(device)
    optimizer, plain = OPTIMIZERS[kind]([p]), OPTIMIZERS[kind]([q])
    scaler = GradScaler(device)
    with counted("scaler_check", "scaler_update"):
        for value in (0.25, -0.5, 1.0):
            backward(scaler, p, value)
            result = scaler.step(optimizer)
            scaler.update()
            q.grad = torch.full_like(q, value)
            plain.step()
            assert torch.equal(p, q)
            assert torch.equal(p.grad, q.grad)
            assert (result.applied, result.skipped, result.reason) == (True, False, None)
    assert scaler.skipped_steps == 0


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("bad", BAD)
def test_a_bad_gradient_skips_the_step(kind, bad, device):
    p = parameter(device)
    before = p.detach().clone()
    optimizer, scaler = OPTIMIZERS[kind]([p]), GradScaler(device, init_scale=1024.0)
    backward(scaler, p)
    p.grad[2, 1] = bad
    result = scaler.step(optimizer)
    scaler.update()
    assert torch.equal(p, before)
    assert (result.applied, result.skipped) == (False, True)
    assert result.reason == "a gradient is inf or NaN"
    assert scaler.get_scale() == 512.0
    assert scaler.skipped_steps == 1
    backward(scaler, p)
    assert scaler.step(optimizer).applied
    scaler.update()
    assert not torch.equal(p, before)


@pytest.mark.parametrize("kind", ["ours", "torch_fused"])
def test_a_step_reads_nothing_from_the_device(kind, device, monkeypatch):
    p = parameter(device)
    optimizer, scaler = OPTIMIZERS[kind]([p]), GradScaler(device)
    reads = []

    def reading(name):
        original = getattr(torch.Tensor, name)
        monkeypatch.setattr(
            torch.Tensor, name, lambda self, *a: reads.append(name) or original(self, *a)
        )

    for name in ("item", "__bool__", "__float__", "__int__", "tolist", "cpu"):
        reading(name)
    backward(scaler, p)
    result = scaler.step(optimizer)
    repr(result)
    scaler.update()
    assert reads == []
    assert result.applied
    assert reads == ["item"]
    assert result.applied
    assert reads == ["item"]  # it is read once


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_of_any_dtype_are_unscaled(dtype, device):  # S2
    p = parameter(device, dtype=dtype)
    scaler = GradScaler(device, init_scale=1024.0)
    backward(scaler, p, 0.25)
    scaler.unscale_(torch.optim.SGD([p], lr=0.1))
    assert torch.equal(p.grad, torch.full_like(p, 0.25))


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("scalers", [GradScaler, torch.amp.GradScaler])
def test_clipping_is_on_unscaled_gradients(kind, scalers, device):  # S4
    p, q = parameter(device), parameter(device)
    optimizer, plain = OPTIMIZERS[kind]([p]), OPTIMIZERS[kind]([q])
    scaler = scalers(device, init_scale=2.0**16)
    for value in (0.25, 2.0, -0.5):
        backward(scaler, p, value)
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_([p], 0.75)
        scaler.step(optimizer)
        scaler.update()
        q.grad = torch.full_like(q, value)
        assert torch.equal(norm, torch.nn.utils.clip_grad_norm_([q], 0.75))
        plain.step()
        assert torch.equal(p, q)


@pytest.mark.parametrize("value", [0.25, float("inf")])
def test_torchs_scaler_drives_our_optimizer(value, device):
    p, q = parameter(device), parameter(device)
    ours, theirs = (
        GradScaler(device, growth_interval=1),
        torch.amp.GradScaler(device, growth_interval=1),
    )
    for scaler, t in ((ours, p), (theirs, q)):
        optimizer = AdamW([t], lr=1e-2)
        for v in (0.5, value, 0.125):
            backward(scaler, t, v)
            scaler.step(optimizer)
            scaler.update()
    assert torch.equal(p, q)
    assert ours.state_dict() == theirs.state_dict()


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_the_scale_stays_in_its_limits(kind, device):  # S1
    for limits, top in (({}, 2.0**126), ({"max_scale": 2.0**20}, 2.0**20)):
        p = parameter(device)
        optimizer, scaler = OPTIMIZERS[kind]([p]), GradScaler(device, growth_interval=1, **limits)
        for _ in range(200):
            backward(scaler, p, 2.0**-10)
            assert scaler.step(optimizer).applied
            scaler.update()
        assert scaler.get_scale() == top
        before = p.detach().clone()
        backward(scaler, p, 2.0**-10)
        assert scaler.step(optimizer).applied
        assert not torch.equal(p, before)
        assert torch.equal(p.grad, torch.full_like(p, 2.0**-10))


def test_the_scale_never_falls_to_zero(device):
    for limits, bottom in (({}, 2.0**-126), ({"min_scale": 4.0}, 4.0)):
        p = parameter(device)
        optimizer, scaler = AdamW([p]), GradScaler(device, growth_interval=1, **limits)
        for _ in range(200):
            backward(scaler, p, float("nan"))
            scaler.step(optimizer)
            scaler.update()
        assert scaler.get_scale() == bottom
        assert scaler.skipped_steps == 200
        backward(scaler, p)
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == 2 * bottom


def test_several_optimizers(device):
    p, q = parameter(device), parameter(device, seed=8)
    first, second = AdamW([p]), torch.optim.SGD([q], lr=0.1)
    scaler = GradScaler(device, init_scale=8.0)
    backward(scaler, p)
    backward(scaler, q, float("inf"))
    assert scaler.step(first).applied
    assert scaler.step(second).skipped
    scaler.update()
    assert scaler.get_scale() == 4.0
    assert scaler.skipped_steps == 1


def test_losses_may_come_as_a_list(device):
    scaler = GradScaler(device, init_scale=8.0)
    a, b = scaler.scale([torch.ones(2, device=device), torch.ones(1, device=device)])
    assert a.tolist() == [8.0, 8.0]
    assert b.tolist() == [8.0]


def test_sparse_gradients_with_torchs_optimizer(device):
    table = torch.nn.Embedding(6, 2, sparse=True, device=device)
    optimizer, scaler = torch.optim.SparseAdam(table.parameters()), GradScaler(device, 1024.0)
    for value, applied in ((0.5, True), (float("nan"), False)):
        optimizer.zero_grad()
        rows = torch.tensor([1, 4, 1], device=device)
        scaler.scale((table(rows) * value).sum()).backward()
        scaler.unscale_(optimizer)
        if applied:
            assert table.weight.grad.to_dense()[:, 0].tolist() == [0, 1.0, 0, 0, 0.5, 0]
        assert scaler.step(optimizer).applied == applied
        scaler.update()


def test_an_optimizer_that_takes_the_scaler(device):
    class Own(torch.optim.SGD):
        _step_supports_amp_scaling = True

        def step(self, closure=None, *, grad_scaler=None):
            grad_scaler.unscale_(self)
            (found,) = grad_scaler._found_inf_per_device(self).values()
            if not found:
                super().step()

    p = parameter(device)
    before = p.detach().clone()
    optimizer, scaler = Own([p], lr=1.0), GradScaler(device)
    backward(scaler, p, 0.25)
    assert scaler.step(optimizer).applied
    scaler.update()
    assert torch.equal(p, before - 0.25)
    backward(scaler, p, float("inf"))
    assert scaler.step(optimizer).skipped
    scaler.update()
    assert scaler.skipped_steps == 1


def test_a_scale_of_the_users_own_is_multiplied(device):
    p, q = parameter(device), parameter(device)
    optimizer, plain, scaler = AdamW([p]), AdamW([q]), GradScaler(device)
    scaler.scale((p * 4).sum() * 0.25).backward()
    optimizer.grad_scale = scalar(4.0, device)
    scaler.step(optimizer)
    q.grad = torch.full_like(q, 0.25)
    plain.step()
    assert torch.equal(p.grad, q.grad)
    assert torch.equal(p, q)
    assert not hasattr(optimizer, "grad_scale")
    assert not hasattr(optimizer, "found_inf")


def test_writes_count_as_in_place_changes(device):
    p = parameter(device)
    optimizer, scaler = AdamW([p]), GradScaler(device)
    backward(scaler, p)
    scale, gradient = scaler._scale, p.grad
    versions = scale._version, gradient._version
    scaler.unscale_(optimizer)
    assert gradient._version > versions[1]
    scaler.step(optimizer)
    scaler.update()
    assert scaler._scale is scale
    assert scale._version > versions[0]


def test_a_step_that_raises_leaves_nothing_on_the_optimizer(device):
    p = parameter(device)
    optimizer, scaler = AdamW([p]), GradScaler(device)
    backward(scaler, p)
    optimizer.param_groups[0]["lr"] = -1.0
    with pytest.raises(ValueError, match="adamw: lr is -1, expected"):
        scaler.step(optimizer)
    assert not hasattr(optimizer, "grad_scale")
    assert not hasattr(optimizer, "found_inf")


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
        ({"device": "meta"}, ValueError, "device is 'meta', expected 'cuda' or 'cpu'"),
    ],
)
def test_arguments_are_checked(options, error, message):
    with pytest.raises(error, match=f"GradScaler: {message}"):
        GradScaler(**{"device": "cpu"} | options)


def test_a_gradient_of_another_dtype_is_named(device):
    p = parameter(device).to(torch.float64).detach().requires_grad_()
    scaler = GradScaler(device)
    backward(scaler, p)
    with pytest.raises(TypeError, match=r"scaler: grad\[0\] is float64, expected float32"):
        scaler.unscale_(torch.optim.SGD([p], lr=0.1))


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
    with pytest.raises(ValueError, match=r"GradScaler: device is 1024.0"):
        GradScaler(1024.0, 3.0)


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


class TestAutocast:
    def test_is_torchs(self):
        assert issubclass(autocast, torch.autocast)
        assert autocast().device == ("cuda" if torch.cuda.is_available() else "cpu")

    def test_arguments(self):
        a = autocast("cpu", torch.bfloat16, False, False)
        assert (a.device, a.fast_dtype, a._enabled, a._cache_enabled) == (
            "cpu",
            torch.bfloat16,
            False,
            False,
        )
        assert not autocast(False)._enabled  # as torch.cuda.amp.autocast(False)
        assert autocast(True)._enabled
        with pytest.raises(ValueError, match="device_type"):
            autocast(3)

    def test_nested_and_as_a_decorator(self, device):
        x = torch.ones(2, 2, device=device)

        @autocast(device, torch.bfloat16)
        def product():
            return x @ x

        assert product().dtype == torch.bfloat16
        with autocast(device, torch.bfloat16):
            assert (x @ x).dtype == torch.bfloat16
            with autocast(device, enabled=False):
                assert (x @ x).dtype == torch.float32
            assert (x @ x).dtype == torch.bfloat16
        assert (x @ x).dtype == torch.float32

    def test_pickles(self, device):
        a = pickle.loads(pickle.dumps(autocast(device, torch.bfloat16)))
        with a:
            assert torch.get_autocast_dtype(device) == torch.bfloat16
            assert torch.is_autocast_enabled(device)

    def test_compiles_without_a_graph_break(self, device):
        @torch.compile(backend="eager", fullgraph=True)
        def product(x):
            with autocast(device, torch.bfloat16):
                return x @ x

        assert product(torch.ones(2, 2, device=device)).dtype == torch.bfloat16
