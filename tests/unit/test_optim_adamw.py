"""hs.optim.AdamW against float64 and torch.optim.AdamW: trajectories, layouts, state, refusals."""

import copy
import inspect
import io
import pickle

import pytest
import torch

from halfstep import _C
from halfstep._half import half_of
from halfstep._ops import adamw as op
from halfstep.optim import AdamW
from halfstep.optim.adamw import _new_state
from tests import reference
from tests.helpers import HALVES, SIZES, normal, other_layouts, to64, torch_dtype
from tests.tolerances import check, largest_error

STEPS = 30
OPTIONS = {"lr": 3e-3, "betas": (0.8, 0.95), "eps": 1e-7, "weight_decay": 0.05}
PLAIN = {"lr": 3e-3, "beta1": 0.8, "beta2": 0.95, "eps": 1e-7, "weight_decay": 0.05}


def gradients(shape, device, steps=STEPS):
    return [normal(100 + i, shape, device=device, scale=2.0**-3) for i in range(steps)]


def run(optimizer, p, grads):
    for g in grads:
        p.grad = g.clone(memory_format=torch.preserve_format)
        optimizer.step()
    return p.detach()


def parameter(shape, device):
    return torch.nn.Parameter(normal(7, shape, device=device))


def expected_and_torch_error(shape, device, **options):
    """The float64 parameter after STEPS steps, and how far torch.optim.AdamW is from it."""
    plain = PLAIN | options
    p, grads = to64(parameter(shape, device)), gradients(shape, device)
    m = v = 0 * p
    for t, g in enumerate(grads):
        p, m, v = reference.adamw(p, to64(g), m, v, t, **plain)
    q = parameter(shape, device)
    torchs = torch.optim.AdamW([q], **OPTIONS | options)
    return p, largest_error(run(torchs, q, grads), p)


def test_is_torchs_class_with_torchs_signature():
    assert issubclass(AdamW, torch.optim.AdamW)
    ours = inspect.signature(AdamW).parameters
    for name, theirs in inspect.signature(torch.optim.AdamW).parameters.items():
        assert (ours[name].kind, ours[name].default) == (theirs.kind, theirs.default)


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"fused": False}, {"capturable": True}])
def test_choices_of_implementation_make_no_difference(options, device):
    p, q = parameter((5, 3), device), parameter((5, 3), device)
    grads = gradients((5, 3), device, 3)
    assert torch.equal(run(AdamW([p], **options), p, grads), run(AdamW([q]), q, grads))


def test_one_call_for_each_group(device):
    params = [parameter((n,), device) for n in SIZES]
    optimizer = AdamW([{"params": params[:3]}, {"params": params[3:], "lr": 0.1}])
    for p in params:
        p.grad = torch.ones_like(p)
    before = _C.calls()["adamw"]
    optimizer.step()
    assert _C.calls()["adamw"] - before == 2


def test_groups_have_their_own_options(device):
    p, q = parameter((65,), device), parameter((65,), device)
    optimizer = AdamW([p], **OPTIONS)
    optimizer.add_param_group({"params": [q], "lr": 1e-2, "weight_decay": 0.0, "maximize": True})
    for g in gradients((65,), device):
        p.grad, q.grad = g.clone(), g.clone()
        optimizer.step()
    for t, options in ((p, {}), (q, {"lr": 1e-2, "weight_decay": 0.0, "maximize": True})):
        expected, error = expected_and_torch_error((65,), device, **options)
        check("p", t.detach(), expected, error)


@pytest.mark.parametrize("where", ["cpu", "same"])
def test_tensor_lr(where, device):
    lr = torch.tensor(1.0, device="cpu" if where == "cpu" else device)
    p = parameter((65,), device)
    optimizer = AdamW([p], **OPTIONS | {"lr": lr})
    lr.fill_(3e-3)  # read at the step, not when the optimizer was made
    expected, error = expected_and_torch_error((65,), device)
    check("p", run(optimizer, p, gradients((65,), device)), expected, error)


@pytest.mark.parametrize("name", ["strided", "transposed", "channels_last"])
@pytest.mark.parametrize("which", ["parameter", "gradient", "both", "state"])
def test_any_strides(name, which, device):
    shape = (4, 3, 2, 5)

    def laid_out(t):
        return dict(other_layouts(t))[name]

    p = parameter(shape, device)
    grads = gradients(shape, device)
    if which in ("parameter", "both"):
        p = torch.nn.Parameter(laid_out(p.detach()))
    if which in ("gradient", "both"):
        grads = [laid_out(g) for g in grads]
    strides = p.stride()
    optimizer = AdamW([p], **OPTIONS)
    if which == "state":
        optimizer.state[p] = _new_state(p)
        optimizer.state[p]["exp_avg"] = laid_out(torch.zeros_like(p))
    for g in grads:
        p.grad = torch.empty_strided(g.shape, g.stride(), device=device).copy_(g)
        optimizer.step()
    expected, error = expected_and_torch_error(shape, device)
    check("p", p.detach(), expected, error)
    assert p.stride() == strides


def test_channels_last_is_read_in_place(device):
    p = torch.nn.Parameter(
        parameter((4, 3, 2, 5), device).detach().to(memory_format=torch.channels_last)
    )
    p.grad = torch.ones_like(p)
    lists = [[p.detach()], [p.grad], [torch.zeros_like(p)], [torch.zeros_like(p)]]
    assert op._to_rows(lists) == []
    assert lists[0][0].data_ptr() == p.data_ptr()


@pytest.mark.parametrize("kind", ["expanded", "negative", "strided"])
def test_gradients_that_share_memory_are_unscaled_right(kind, device):
    p = parameter((6, 4), device)
    values = normal(5, (6, 4), device=device)
    if kind == "expanded":
        p.grad = values[:, :1].expand(6, 4)
    elif kind == "negative":
        p.grad = torch._neg_view(values)  # as conj().imag is, but row-major
        assert p.grad.is_contiguous()
    else:
        p.grad = dict(other_layouts(values))["strided"]
    expected = p.grad.clone() / 4
    q = parameter((6, 4), device)
    q.grad = expected.clone()
    AdamW([q]).step()
    optimizer = AdamW([p])
    optimizer.grad_scale = torch.tensor(4.0, device=device)
    optimizer.found_inf = torch.zeros((), device=device)
    optimizer.step()
    assert torch.equal(p.grad.clone(), expected)
    assert torch.equal(p, q)


def test_closure_hooks_and_scheduler(device):
    p = parameter((3,), device)
    optimizer = AdamW([p], lr=0.1)
    seen = []
    optimizer.register_step_pre_hook(lambda *_: seen.append("pre"))
    optimizer.register_step_post_hook(lambda *_: seen.append("post"))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)

    def closure():
        assert torch.is_grad_enabled()
        optimizer.zero_grad()
        loss = (p * p).sum()
        loss.backward()
        return loss.detach()

    expected = float((p * p).sum().detach())
    assert float(optimizer.step(closure)) == expected
    scheduler.step()
    assert seen == ["pre", "post"]
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.01)


def test_a_step_counts_as_an_in_place_change(device):
    p = parameter((3,), device)
    optimizer = AdamW([p])
    p.grad = torch.ones_like(p)
    loss = (p * p).sum()
    optimizer.step()
    with pytest.raises(RuntimeError, match="inplace"):
        loss.backward()


@pytest.mark.parametrize("half", HALVES)
def test_kept_copies_are_refreshed(half, device):
    dtype = torch_dtype(half)
    p, q = parameter((65,), device), parameter((3,), device)
    optimizer = AdamW([p, q], weight_copies=True)
    kept = half_of(p, dtype)
    p.grad, q.grad = torch.ones_like(p), torch.ones_like(q)
    optimizer.step()
    assert half_of(p, dtype) is kept
    assert torch.equal(kept, p.detach().to(dtype))


def test_a_stale_copy_stays_stale_through_a_skipped_step(device):
    p = parameter((65,), device)
    optimizer = AdamW([p], weight_copies=True)
    half_of(p, torch.float16)
    with torch.no_grad():
        p.add_(1)
    p.grad = torch.ones_like(p)
    optimizer.found_inf = torch.ones((), device=device)
    optimizer.step()
    assert torch.equal(half_of(p, torch.float16), p.detach().half())


def test_copies_are_kept_only_when_asked_for_and_the_choice_survives_pickling(device):
    p = parameter((3,), device)
    AdamW([p])
    assert half_of(p, torch.float16) is not half_of(p, torch.float16)
    for optimizer in (pickle.loads(pickle.dumps(AdamW([p], weight_copies=True))),):
        (q,) = optimizer.param_groups[0]["params"]
        assert half_of(q, torch.float16) is half_of(q, torch.float16)


# ---- state ----
def test_state_has_torchs_keys_and_dtypes(device):
    p = parameter((3, 2), device)
    run(optimizer := AdamW([p]), p, gradients((3, 2), device, 1))
    state = optimizer.state[p]
    assert list(state) == ["step", "exp_avg", "exp_avg_sq"]
    assert {t.dtype for t in state.values()} == {torch.float32}
    assert {t.device.type for t in state.values()} == {device}
    theirs = torch.optim.AdamW([parameter((3, 2), device)]).state_dict()["param_groups"][0]
    assert optimizer.state_dict()["param_groups"][0].keys() == theirs.keys()


@pytest.mark.parametrize("first", [AdamW, torch.optim.AdamW])
@pytest.mark.parametrize("then", [AdamW, torch.optim.AdamW])
@pytest.mark.parametrize("theirs", [{"fused": False}, {"fused": True}, {"foreach": True}])
@pytest.mark.parametrize("via", ["memory", "file"])
def test_state_dict_goes_both_ways(first, then, theirs, via, device):
    shape = (9, 5)
    grads = gradients(shape, device)
    p = parameter(shape, device)
    optimizer = first([p], **OPTIONS, **theirs)
    run(optimizer, p, grads[:11])
    state = copy.deepcopy(optimizer.state_dict())
    if via == "file":  # O4: everything, the step too, comes back on the CPU
        buffer = io.BytesIO()
        torch.save(state, buffer)
        buffer.seek(0)
        state = torch.load(buffer, map_location="cpu", weights_only=True)
    p = torch.nn.Parameter(p.detach().clone())
    optimizer = then([p], lr=1.0)
    optimizer.load_state_dict(state)
    run(optimizer, p, grads[11:])
    expected, error = expected_and_torch_error(shape, device)
    check("p", p.detach(), expected, error)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))])
def test_copies_go_on_alike(duplicate, device):
    p = parameter((5,), device)
    optimizer = AdamW([p])
    run(optimizer, p, gradients((5,), device, 2))
    other = duplicate(optimizer)
    (q,) = other.param_groups[0]["params"]
    grads = gradients((5,), device, 3)
    assert torch.equal(run(other, q, grads), run(optimizer, p, grads))
    assert other._step_supports_amp_scaling


def test_empty_tensors_move_nothing_else(device):  # O1
    for shapes in ([(4,), (0,)], [(0,), (4,)], [(0, 3), (4,), (0,)], [(0,)]):
        params = [torch.nn.Parameter(torch.ones(s, device=device)) for s in shapes]
        others = copy.deepcopy(params)
        for tensors, make in ((params, AdamW), (others, torch.optim.AdamW)):
            optimizer = make(tensors)
            for p in tensors:
                p.grad = torch.full_like(p, 0.5)
            optimizer.step()
        for p, q in zip(params, others, strict=True):
            check("p", p.detach(), to64(q))


def test_parameters_without_a_gradient_are_untouched(device):  # O3
    p, unused = parameter((4,), device), parameter((5,), device)
    before = unused.detach().clone()
    optimizer = AdamW([unused, p])
    run(optimizer, p, gradients((4,), device, 2))
    assert torch.equal(unused, before)
    assert unused not in optimizer.state
    optimizer.zero_grad()
    before = _C.calls()["adamw"]
    optimizer.step()
    assert _C.calls()["adamw"] == before


# O2, more than 2^31 elements, has no test here: its lists take 32 GiB.


# ---- refusals ----
@pytest.mark.parametrize("option", ["amsgrad", "differentiable"])
def test_options_that_are_refused(option, device):
    p, q = parameter((3,), device), parameter((3,), device)
    match = f"adamw: {option} is True, expected False"
    with pytest.raises(ValueError, match=match):
        AdamW([p], **{option: True})
    optimizer = AdamW([p])
    with pytest.raises(ValueError, match=match):
        optimizer.add_param_group({"params": [q], option: True})
    state = optimizer.state_dict()
    state["param_groups"][0] |= {option: True, "lr": 5.0}
    with pytest.raises(ValueError, match=match):
        optimizer.load_state_dict(state)
    assert len(optimizer.param_groups) == 1
    assert optimizer.param_groups[0]["lr"] == 1e-3


@pytest.mark.parametrize("dtype", [*HALVES, "float64", "complex64"])
def test_parameters_that_are_not_float32_are_refused(dtype, device):
    bad = torch.nn.Parameter(torch.zeros(3, dtype=torch_dtype(dtype), device=device))
    good = parameter((3,), device)
    match = f"adamw: parameter 1 is torch.{dtype}, expected torch.float32"
    with pytest.raises(TypeError, match=match):
        AdamW([good, bad])
    optimizer = AdamW([good])
    with pytest.raises(TypeError, match=match.replace("1", "0", 1)):
        optimizer.add_param_group({"params": [bad]})
    assert len(optimizer.param_groups) == 1


def test_sparse_gradients_are_refused_before_anything_moves(device):
    p, sparse = parameter((4,), device), parameter((4, 2), device)
    before = p.detach().clone()
    p.grad, sparse.grad = torch.ones_like(p), torch.ones_like(sparse).to_sparse()
    optimizer = AdamW([{"params": [p]}, {"params": [sparse]}])
    with pytest.raises(TypeError, match=r"adamw: the gradient of parameter 0 is torch.sparse_coo"):
        optimizer.step()
    assert torch.equal(p, before)
    assert not optimizer.state
