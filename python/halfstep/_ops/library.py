"""The ops as torch.library sees them, for torch.compile: halfstep::<name>.

An op returns a fixed number of tensors; one that is not wanted is an empty tensor there and None in
the plain function. The fake is the allocation alone, so shapes, dtypes and strides cannot disagree.
"""

from halfstep._compat import torch

if torch is not None:
    _library = torch.library.Library("halfstep", "DEF")


def register(name, schema, run, outputs):
    """Defines halfstep::<name> and returns the callable to trace; None without torch.

    run(*args) and outputs(*args) return a tuple in which None marks what is not wanted; outputs
    allocates and does not compute.
    """
    if torch is None:
        return None

    def fixed(make):
        return lambda like, *rest: tuple(
            like.new_empty(0) if t is None else t for t in make(like, *rest)
        )

    _library.define(name + schema, tags=(torch.Tag.needs_fixed_stride_order,))
    _library.impl(name, fixed(run), "CompositeExplicitAutograd")
    torch.library.register_fake(f"halfstep::{name}", fixed(outputs), lib=_library)
    return getattr(torch.ops.halfstep, name).default
