"""What the gradients of all ops share: the fast way into autograd, and the two refusals."""

from halfstep._compat import functorch_active, is_compiling, is_grad_enabled, torch


def bind_apply(function):
    """function.apply without its Python frame: the C++ apply, bound to the class.

    It must not be used while Dynamo traces, nor under torch.func, where it asserts. Autograd's way
    back gets shorter too: its node calls function.backward, not the frame that looks it up.
    """
    if torch is None:
        return None
    try:
        apply = torch._C._FunctionBase.__dict__["apply"].__get__(None, function)
        function._backward_cls.apply = function.backward
    except (AttributeError, KeyError):
        return function.apply
    return apply


def refuse_functorch(op):
    if functorch_active():
        raise RuntimeError(
            f"{op}: torch.func transforms (vmap, grad, jvp) are not supported; "
            "use torch.autograd, or torch.nn.functional inside the transform"
        )


def refuse_second_derivative(op):
    """A backward calls this first: a silent zero would be worse than an error."""
    if is_grad_enabled() and not is_compiling():
        raise RuntimeError(
            f"{op}: the second derivative is not implemented (create_graph=True asks for it); "
            "use torch.nn.functional for this layer"
        )


def keep_needed(gradients, needed):
    """None for what was not wanted, in place of the empty tensor that a library op returns."""
    return tuple(g if need else None for g, need in zip(gradients, needed, strict=True))


def distinct(first, *others):
    """The same tensors, of which none is first: Dynamo refuses one tensor in two places."""
    return first, *(t.view_as(t) if t is first else t for t in others)
