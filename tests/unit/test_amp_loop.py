"""GradScaler in the training loop, with our optimizer and torch's."""

import pytest
import torch

from halfstep.amp import GradScaler
from halfstep.optim import AdamW
from tests.helpers import DTYPES, counted, normal

BAD = [float("inf"), -float("inf"), float("nan")]
OPTIMIZERS = {
    "ours": lambda params: AdamW(params, lr=1e-2),
    "torch_fused": lambda params: torch.optim.AdamW(params, lr=1e-2, fused=True),
    "torch_plain": lambda params: torch.optim.SGD(params, lr=1e-2),
}


def scalar(value, device, dtype=torch.float32):
    return torch.full((), value, dtype=dtype, device=device)


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


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64])
@pytest.mark.parametrize("bad", [None, *BAD])
def test_gradients_that_the_kernel_does_not_take(dtype, bad, device):
    p, q = parameter(device), torch.nn.Parameter(torch.ones(3, dtype=dtype, device=device))
    scaler = GradScaler(device, init_scale=1024.0)
    for t in (p, q):
        scaler.scale((t.real * 0.25).sum()).backward()
    if bad is not None:
        q.grad[1] = bad
    optimizer = torch.optim.SGD([p, q], lr=1.0)
    scaler.unscale_(optimizer)
    assert torch.equal(p.grad, torch.full_like(p, 0.25))
    assert q.grad[0] == 0.25 and q.grad.dtype is dtype
    before = q.detach().clone()
    assert scaler.step(optimizer).skipped == (bad is not None)
    assert torch.equal(q, before) == (bad is not None)


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


@pytest.mark.parametrize("own", [float("nan"), 0.0, -2.0, float("inf")])
@pytest.mark.parametrize("unscaled", [False, True])
def test_a_scale_of_the_users_own_that_is_of_no_use_skips_the_step(own, unscaled, device):
    p = parameter(device)
    before = p.detach().clone()
    optimizer, scaler = AdamW([p]), GradScaler(device, init_scale=8.0)
    backward(scaler, p)
    if unscaled:
        scaler.unscale_(optimizer)
    optimizer.grad_scale = scalar(own, device)
    result = scaler.step(optimizer)
    scaler.update()
    assert result.skipped and scaler.skipped_steps == 1
    assert torch.equal(p, before)


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
