"""torch.compile and torch.library: no graph break, the eager results, opcheck."""

import shutil

import pytest
import torch

import halfstep as hs
from halfstep._ops import act, linear, norm, xent  # noqa: F401  (defines the ops)
from tests.helpers import normal

hsf = hs.functional
TARGET = torch.tensor([0, 3, -100, 5, 7, 1])
W = normal(9, (8, 8))


def leaves(*shapes, dtype="float32"):
    return [normal(i, s, dtype).requires_grad_() for i, s in enumerate(shapes)]


CASES = {
    "layer_norm": (lambda x, w, b: hsf.layer_norm(x, (8,), w, b), ((6, 8), (8,), (8,))),
    "layer_norm alone": (lambda x: hsf.layer_norm(x, (8,)), ((6, 8),)),
    "layer_norm residual": (
        lambda x, r, w: sum(hsf.layer_norm(x, (8,), w, residual=r)),
        ((6, 8), (6, 8), (8,)),
    ),
    "bias_act": (lambda x, b: hsf.bias_act(x, b, "silu"), ((6, 8), (8,))),
    "gelu": (lambda x: hsf.gelu(x.t(), "tanh"), ((6, 8),)),
    "linear": (lambda x, w, b: hsf.linear(x, w, b), ((6, 8), (5, 8), (5,))),
    "linear gelu": (lambda x, w, b: hsf.linear(x, w, b, "gelu"), ((6, 8), (5, 8), (5,))),
    "linear relu": (lambda x, w: hsf.linear(x, w, None, "relu"), ((6, 8), (5, 8))),
    "linear of one tensor": (lambda a: hsf.linear(a, a, None, "gelu"), ((8, 8),)),
    "linear of one axis": (lambda x, w: hsf.linear(x, w, None, "relu"), ((6, 8), (8,))),
    "linear of a frozen weight": (lambda x: hsf.linear(x, W, W[0], "gelu"), ((6, 8),)),
    "linear of a frozen input": (lambda w, b: hsf.linear(W, w, b, "silu"), ((5, 8), (5,))),
    "linear's bias": (lambda b: hsf.linear(W, W, b), ((8,),)),
    "cross_entropy of probabilities": (
        lambda x, t, w: hsf.cross_entropy(x, t.softmax(1), w, label_smoothing=0.1),
        ((6, 8), (6, 8), (8,)),
    ),
    "cross_entropy of one tensor": (lambda a: hsf.cross_entropy(a, a), ((6, 8),)),
    "cross_entropy": (lambda x: hsf.cross_entropy(x, TARGET, label_smoothing=0.1), ((6, 8),)),
    "cross_entropy none": (lambda x: hsf.cross_entropy(x, TARGET, reduction="none"), ((6, 8),)),
}


def gradients(f, tensors):
    for t in tensors:
        t.grad = None
    y = f(*tensors)
    (y * torch.arange(1.0, y.numel() + 1).reshape(y.shape)).sum().backward()
    return [y.detach(), *[t.grad for t in tensors]]


@pytest.mark.parametrize("name", CASES)
def test_compiled_equals_eager(name):
    f, shapes = CASES[name]
    tensors = leaves(*shapes)
    torch._dynamo.reset()
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    for got, expected in zip(gradients(compiled, tensors), gradients(f, tensors), strict=True):
        assert torch.equal(got, expected)


def test_compiled_dropout_draws_one_mask_forward_and_backward():
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: hsf.dropout(x, 0.5) * 1, fullgraph=True, backend="aot_eager")
    x = torch.ones(40, 50, requires_grad=True)
    y = compiled(x)
    y.sum().backward()
    assert torch.equal(y.detach(), x.grad)
    assert set(x.grad.unique().tolist()) == {0.0, 2.0}
    assert not torch.equal(compiled(x), y)


def model():
    return torch.nn.Sequential(
        hs.nn.Linear(8, 16, activation="gelu"), hs.nn.LayerNorm(16), hs.nn.Linear(16, 8)
    )


LOSS = hs.nn.CrossEntropyLoss()


def step(net, x):
    return LOSS(net(x), TARGET)


def module_gradients(f, net, x):
    net.zero_grad()
    loss = f(net, x)
    loss.backward()
    return [loss.detach(), *[p.grad.clone() for p in net.parameters()]]


@pytest.mark.parametrize("autocast", [False, True])
def test_compiled_modules_equal_eager(autocast):
    torch.manual_seed(0)
    net, x = model(), normal(0, (6, 8))

    def run(net, x):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return step(net, x)

    torch._dynamo.reset()
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    got, expected = module_gradients(compiled, net, x), module_gradients(run, net, x)
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


@pytest.mark.slow
def test_inductor_equals_eager():
    if not shutil.which("g++"):
        pytest.skip("inductor needs a C++ compiler")
    torch.manual_seed(0)
    net, x = model(), normal(0, (6, 8))
    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True)
    got, expected = module_gradients(compiled, net, x), module_gradients(step, net, x)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def opcheck_arguments():
    x, w, b, dy = (normal(i, s) for i, s in enumerate([(6, 8), (8,), (8,), (6, 8)]))
    weight, bias = normal(4, (5, 8)), normal(5, (5,))
    z, dz = normal(6, (6, 5)), normal(7, (6, 5))
    options = (-100, 1, 0.1, 0.0, False)
    lse, denominator = torch.zeros(6, 2), torch.tensor([5.0, 5.0])
    lse[:, 1] = torch.logsumexp(x, 1)
    state = torch.tensor([3, 4])
    return {
        "layer_norm": [(x, None, w, b, 8, 1e-5), (x, x + 1, None, None, 8, 1e-5)],
        "layer_norm_backward": [
            (dy, x, w, b, None, 8, 1e-5, True, False, True, True),
            (dy, x, None, None, dy, 8, 1e-5, True, False, False, False),
        ],
        "bias_act": [(x, b, 8, 2), (x, None, 1, 4)],
        "bias_act_backward": [(dy, x, b, 8, 2, True, True), (dy, x, None, 1, 1, True, False)],
        "linear": [(x, weight, bias, 2, True), (x, weight, None, 0, False)],
        "linear_backward": [
            (dz, x, weight, z, torch.float32, torch.float32, 2),
            (dz, None, weight, None, torch.float32, None, 0),
            (dz, x, None, z, torch.float32, torch.float32, 1),
        ],
        "cross_entropy": [(x, TARGET, None, *options), (x, TARGET, w.abs(), *options)],
        "cross_entropy_backward": [
            (torch.ones(()), x, TARGET, None, lse, denominator, *options),
        ],
        "dropout": [(x, 0.5, state)],
    }


@pytest.mark.parametrize("name", opcheck_arguments())
def test_opcheck(name):
    for arguments in opcheck_arguments()[name]:
        torch.library.opcheck(getattr(torch.ops.halfstep, name).default, arguments)


def test_every_op_is_opchecked():
    defined = {
        schema.name.partition("::")[2]
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith("halfstep::")
    }
    assert defined == set(opcheck_arguments())
