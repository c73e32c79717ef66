"""What the op benchmarks share."""

import importlib

import torch


def compiled(function):
    """torch.compile that has seen nothing before, so that no shape counts as dynamic."""
    torch._dynamo.reset()
    return torch.compile(function, dynamic=False)


def liger(module, name):
    """A function of Liger-Kernel, or None where it is not installed."""
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        return None


def dtype_name(dtype):
    return str(dtype).removeprefix("torch.")


def both_directions(
    table,
    op,
    dtype,
    shape,
    variants,
    sets,
    forward_bytes,
    backward_bytes,
    operations=0,
    uncapturable=(),
):
    """Rows for forward, and for forward + backward, of every variant on rotated input sets.

    sets: list of (inputs, gradient or tuple of gradients). operations: of the forward; backward
    does twice as many.
    """

    def forward(function, inputs):
        with torch.no_grad():
            function(*inputs)

    def step(function, inputs, grads):
        outputs = function(*inputs)
        wanted = [t for t in inputs if torch.is_tensor(t) and t.requires_grad]
        torch.autograd.grad(outputs, wanted, grads)

    runs = {
        name: [lambda f=f, i=inputs: forward(f, i) for inputs, _ in sets]
        for name, f in variants.items()
    }
    name = dtype_name(dtype)
    table.compare(op, "forward", name, shape, runs, forward_bytes, operations, uncapturable)
    runs = {
        name: [lambda f=f, i=inputs, g=grads: step(f, i, g) for inputs, grads in sets]
        for name, f in variants.items()
    }
    total = forward_bytes + backward_bytes
    direction = "forward+backward"
    table.compare(op, direction, name, shape, runs, total, 3 * operations, uncapturable)
