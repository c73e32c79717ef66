"""Every op as a function of leaves, for the tests of streams, graphs and determinism."""

import torch

import halfstep as hs
from tests.helpers import normal

hsf = hs.functional
ROWS, COLS, OUT = 96, 256, 128


def targets():
    return torch.arange(ROWS, device="cuda") % COLS


def leaves(*shapes, dtype="float16", device="cuda", seed=0):
    return [normal(seed + i, s, dtype, device).requires_grad_() for i, s in enumerate(shapes)]


def layer_norm(x, w, b):
    return hsf.layer_norm(x, (COLS,), w, b)


def add_layer_norm(x, r, w, b):
    y, h = hsf.layer_norm(x, (COLS,), w, b, residual=r)
    return y + h


def cross_entropy(x):
    return hsf.cross_entropy(x, (torch.arange(ROWS, device=x.device) * 7) % COLS)


# name -> (function, shapes of its leaves). All but dropout are functions of their leaves alone.
OPS = {
    "layer_norm": (layer_norm, [(ROWS, COLS), (COLS,), (COLS,)]),
    "add_layer_norm": (add_layer_norm, [(ROWS, COLS), (ROWS, COLS), (COLS,), (COLS,)]),
    "gelu": (hsf.bias_act, [(ROWS, COLS), (COLS,)]),
    "silu": (lambda x: hsf.silu(x), [(ROWS, COLS)]),
    "linear": (hsf.linear, [(ROWS, COLS), (OUT, COLS), (OUT,)]),
    "linear_relu": (
        lambda x, w, b: hsf.linear(x, w, b, "relu"),
        [(ROWS, COLS), (OUT, COLS), (OUT,)],
    ),
    "linear_gelu": (
        lambda x, w, b: hsf.linear(x, w, b, "gelu"),
        [(ROWS, COLS), (OUT, COLS), (OUT,)],
    ),
    "linear_gelu_tanh": (
        lambda x, w, b: hsf.linear(x, w, b, "gelu_tanh"),
        [(ROWS, COLS), (OUT, COLS), (OUT,)],
    ),
    "cross_entropy": (cross_entropy, [(ROWS, COLS)]),
    "dropout": (lambda x: hsf.dropout(x, 0.5, state=(3, 4)), [(ROWS, COLS)]),
}


def results(name, tensors):
    """The output and the gradients of its sum, as new tensors."""
    y = OPS[name][0](*tensors)
    return [y.detach(), *torch.autograd.grad(y, tensors, torch.ones_like(y))]


def same(got, expected):
    return all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
