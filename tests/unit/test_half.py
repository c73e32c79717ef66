"""The 16-bit copies that parameters keep: what drops them, and who may use them."""

import pytest
import torch

from halfstep._half import half_of, keep_copies
from halfstep.functional import linear
from halfstep.optim import AdamW
from tests.helpers import normal

OTHERS = [
    lambda params: torch.optim.AdamW(params, lr=1.0, fused=True),
    lambda params: torch.optim.Adam(params, lr=1.0, fused=True),
    lambda params: torch.optim.SGD(params, lr=1.0, fused=True),
    lambda params: torch.optim.SGD(params, lr=1.0),
]


def kept(device):
    """A parameter that keeps its copy, and that copy."""
    p = torch.nn.Parameter(normal(1, (4, 3), device=device))
    optimizer = AdamW([p], weight_copies=True)
    return p, half_of(p, torch.bfloat16), optimizer


@pytest.mark.parametrize("make", OTHERS)
def test_the_step_of_another_optimizer_is_noticed(make, device):
    p, copy, _ = kept(device)
    assert half_of(p, torch.bfloat16) is copy
    p.grad = torch.ones_like(p)
    make([p]).step()
    assert torch.equal(half_of(p, torch.bfloat16), p.detach().bfloat16())
    assert not torch.equal(half_of(p, torch.bfloat16), copy)


def test_our_optimizers_refresh_copies_that_another_asked_for(device):
    p, copy, optimizer = kept(device)
    p.grad = torch.ones_like(p)
    for ours in (optimizer, AdamW([p], lr=1.0)):
        ours.step()
        assert half_of(p, torch.bfloat16) is copy
        assert torch.equal(copy, p.detach().bfloat16())


@pytest.mark.parametrize("first", ["inference_mode", "no_grad"])
def test_evaluation_before_training(first, device):
    p = torch.nn.Parameter(normal(1, (4, 3), device=device))
    keep_copies([p])
    x = normal(2, (5, 3), device=device).requires_grad_()
    with getattr(torch, first)(), torch.autocast(device, torch.bfloat16):
        y = linear(x, p)
    with torch.autocast(device, torch.bfloat16):
        z = linear(x, p)
    assert torch.equal(y, z)
    z.sum().backward()
    assert p.grad.dtype is torch.float32
    with torch.inference_mode():
        assert half_of(p, torch.bfloat16) is half_of(p, torch.bfloat16)


def test_a_parameter_made_under_inference_mode_is_cast_at_each_use(device):
    with torch.inference_mode():
        p = torch.nn.Parameter(normal(1, (4, 3), device=device), requires_grad=False)
        keep_copies([p])
        p.mul_(2)
        before = half_of(p, torch.bfloat16)
        p.mul_(2)
        assert torch.equal(half_of(p, torch.bfloat16), before * 2)
