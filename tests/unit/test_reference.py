"""The reference itself, against torch's autograd in float64."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from tests import reference
from tests.helpers import ACTIVATIONS
from tests.unit.test_act import TORCH
from tests.unit.test_xent import torch_loss

generator = torch.Generator().manual_seed(0)


def rand(*shape):
    values = torch.randn(*shape, dtype=torch.float64, generator=generator)
    return values.requires_grad_()


def agree(array, tensor):
    torch.testing.assert_close(torch.as_tensor(array), tensor.detach(), rtol=1e-10, atol=1e-12)


def numpy(*tensors):
    return [t.detach().numpy() for t in tensors]


def test_layer_norm():
    h, w, b, dy, dh = rand(4, 7), rand(7), rand(7), rand(4, 7), rand(4, 7)
    y = F.layer_norm(h, (7,), w, b)
    torch.autograd.backward([y, h * 1.0], [dy, dh])
    agree(reference.layer_norm(*numpy(h, w, b)), y)
    grads = reference.layer_norm_backward(*numpy(dy, h, w), dh=dh.detach().numpy())
    for got, t in zip(grads, (h, w, b), strict=True):
        agree(got, t.grad)


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_act_and_linear(kind):
    x, w, b, dy = rand(4, 7), rand(5, 7), rand(5), rand(4, 5)
    y = TORCH[kind](F.linear(x, w, b))
    y.backward(dy)
    agree(reference.linear(*numpy(x, w, b), kind), y)
    for got, t in zip(reference.linear_backward(*numpy(dy, x, w, b), kind), (x, w, b), strict=True):
        agree(got, t.grad)


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_cross_entropy(reduction, soft):
    for weighted, smoothing, z_loss in itertools.product((0, 1), (0.0, 0.2), (0.0, 0.1)):
        x = rand(6, 5)
        t = rand(6, 5).detach().softmax(1) if soft else torch.tensor([0, 4, -100, 2, 0, -100])
        w = rand(5).detach().abs() if weighted else None
        options = {"reduction": reduction, "label_smoothing": smoothing, "z_loss": z_loss}
        if soft:  # torch_loss casts soft targets to float32
            t = t.float().double().requires_grad_()
            w = None if w is None else w.requires_grad_()
            loss = F.cross_entropy(x, t, w, reduction=reduction, label_smoothing=smoothing)
            z = z_loss * torch.logsumexp(x, 1) ** 2
            loss = loss + (z if reduction == "none" else getattr(z, reduction)())
        else:
            loss = torch_loss(x, t, w, **options)
        dy = torch.randn(loss.shape, dtype=torch.float64, generator=generator)
        loss.backward(dy)
        options["weight"] = None if w is None else w.detach().numpy()
        agree(reference.cross_entropy(*numpy(x, t), **options), loss)
        agree(reference.cross_entropy_backward(*numpy(dy, x, t), **options), x.grad)
        if soft:
            dt, dw = reference.cross_entropy_soft_backward(*numpy(dy, x, t), **options)
            agree(dt, t.grad)
            if weighted:
                agree(dw, w.grad)


def test_adamw():
    p, start = rand(9), None
    start = p.detach().clone()
    optimizer = torch.optim.AdamW([p], lr=0.1, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.3)
    m, v = start * 0, start * 0
    for step in range(5):
        p.grad = rand(9).detach()
        state = (start.numpy(), p.grad.numpy() * 8, m.numpy(), v.numpy(), step)
        result = reference.adamw(*state, 0.1, 0.8, 0.9, 1e-6, 0.3, scale=8.0)
        start, m, v = (torch.from_numpy(a) for a in result)
        optimizer.step()
        agree(start, p)
