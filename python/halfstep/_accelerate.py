"""accelerate, restore and report: plain torch modules become halfstep's, in place, and back.

A replacement subclasses the class that it replaces, so a swap is an assignment to `__class__`: the
parameters stay the same objects, and with them optimizers made before, tied weights, hooks, dtype,
device and state_dict.
"""

import copy
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from halfstep import nn
from halfstep.nn.sequential import ACTIVATIONS, follow_on, has_hooks

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_DEVICES = ("cpu", "cuda", "meta")


class Row(NamedTuple):
    """One replacement: modules of exactly the class pattern, unless condition names a reason."""

    pattern: type
    replacement: type
    condition: Any  # module -> the reason to leave it alone, or None
    options: tuple = ()  # what only the replacement has; at its class's value it adds nothing


class Swapped(NamedTuple):
    name: str
    source: str
    target: str


class Left(NamedTuple):
    name: str
    source: str
    reason: str


@dataclass(frozen=True)
class Report:
    """What accelerate made of a model. str() gives a table.

    swapped: list of Swapped(name, source, target). left: list of Left(name, source, reason).
    counts: how many modules of each source class were swapped, by class name.
    """

    swapped: list
    left: list

    @property
    def counts(self):
        return dict(Counter(row.source for row in self.swapped))

    def __str__(self):
        lines = [f"{len(self.swapped)} modules run as halfstep's, {len(self.left)} as before"]
        lines += _grouped("swapped", self.swapped, "->")
        lines += _grouped("left", self.left, ":")
        return "\n".join(lines)

    __repr__ = __str__


def accelerate(model, *, verify=False, sparse_mlm=False):
    """Replaces what halfstep knows inside model, in place; a second call changes nothing.

    model: a torch.nn.Module. The loss function is a module too and is accelerated by its own call.
    verify: True compares every module of halfstep's with the plain one on random rows, output and
        gradients, also those replaced before; where one is off, what this call replaced is undone
        and RuntimeError names the module.
    sparse_mlm: reserved for masked language models, of which none is known yet; True is refused.

    Returns model. `report(model)` says what was replaced, what was not, and why.
    Raises TypeError (not a module), ValueError (sparse_mlm, a model already in torch.compile,
    verify of a model on the meta device) and RuntimeError (verify).
    """
    _check_model("accelerate", model)
    if not isinstance(verify, bool):
        raise TypeError(f"accelerate: verify is {verify!r}, expected True or False")
    if sparse_mlm:
        raise ValueError("accelerate: sparse_mlm=True needs a masked-LM model; none found")
    if verify:
        _check_values(model)
    swapped = []
    for module in reversed(list(model.modules())):
        row = _by_pattern.get(type(module))
        if row is not None and _reason(module) is None:
            module.__class__ = row.replacement
            swapped.append(module)
    if verify:
        try:
            _compare(model)
        except Exception:
            for module in swapped:
                _swap_back(module)
            raise
    return model


def restore(model):
    """Makes plain torch modules of halfstep's again, in place, and returns model.

    A layer that torch cannot express (an activation inside Linear, a z-loss) stays as it is.
    """
    _check_model("restore", model)
    for module in model.modules():
        _swap_back(module)
    return model


def report(model):
    """Which modules of model are halfstep's, which are not, and why: a Report."""
    _check_model("report", model)
    swapped, left = [], []
    fused = {id(after) for m in model.modules() if type(m) is nn.Sequential for after in _fused(m)}
    for name, module in model.named_modules():
        row = _by_replacement.get(type(module))
        if row is not None:
            target = f"halfstep.nn.{row.replacement.__name__}"
            swapped.append(Swapped(name, row.pattern.__name__, target))
        elif id(module) not in fused and _is_named(module):
            reason = _reason(module) or "accelerate has not seen it"
            left.append(Left(name, type(module).__name__, reason))
    return Report(swapped, left)


def _check_model(function, model):
    if not isinstance(model, torch.nn.Module):
        raise TypeError(
            f"{function}: model is a {type(model).__name__}, expected a torch.nn.Module"
        )
    if function == "report":
        return
    for name, module in model.named_modules():
        compiled = type(module).__name__ == "OptimizedModule" or module._compiled_call_impl
        if compiled:
            raise ValueError(
                f"{function}: {name or 'the model'} is already compiled; "
                f"call {function} first and torch.compile after it"
            )


def _check_values(model):
    for name, t in [*model.named_parameters(), *model.named_buffers()]:
        if t.device.type == "meta":
            raise ValueError(
                f"accelerate: verify is True and {name} is on the meta device, expected values"
            )


def _pattern_of(module):
    """The row by which module goes back to torch's class, or None."""
    row = _by_replacement.get(type(module))
    if row is None or any(getattr(module, o) != getattr(type(module), o) for o in row.options):
        return None
    return row


def _swap_back(module):
    row = _pattern_of(module)
    if row is not None:
        module.__class__ = row.pattern


def _reason(module):
    """Why a module that is not halfstep's stays as it is; None where it can be replaced."""
    row = _by_pattern.get(type(module))
    if row is not None:
        if "forward" in vars(module):
            return "its forward was replaced on the instance"
        return row.condition(module)
    if isinstance(module, torch.jit.ScriptModule):
        return "TorchScript runs its own code"
    if torch.nn.utils.parametrize.is_parametrized(module):
        return "it has parametrizations"
    for row in TABLE:
        if isinstance(module, row.pattern):
            return f"it is a subclass of {row.pattern.__name__}"
    if type(module) in ACTIVATIONS:
        return "an activation is fused where it follows a Linear in an nn.Sequential"
    return "halfstep has no replacement for this class"


def _is_named(module):
    """Whether a report lists the module among those left: containers and user classes are not."""
    if isinstance(module, torch.nn.Sequential):
        return type(module) is torch.nn.Sequential and _reason(module) != _NO_PAIR
    if isinstance(module, (torch.nn.ModuleList, torch.nn.ModuleDict)):
        return False
    from_torch = type(module).__module__.startswith("torch.") and module._parameters
    return from_torch or next(module.children(), None) is None


def _parameters_fit(module):
    """The kernels read dense float32, float16 or bfloat16, on a CPU or an NVIDIA GPU."""
    dtypes = set()
    for name in ("weight", "bias"):
        if name not in module._parameters:
            return f"its {name} is computed by a hook or an attribute, not a parameter"
        p = module._parameters[name]
        if p is None:
            continue
        if type(p) is not torch.nn.Parameter:
            return f"its {name} is a {type(p).__name__}; accelerate comes before sharding"
        if p.dtype not in _DTYPES or p.layout != torch.strided or p.device.type not in _DEVICES:
            return f"its {name} is {_plain(p.dtype)}, {_plain(p.layout)}, on {p.device.type}"
        dtypes.add(p.dtype)
    return "its weight and its bias differ in dtype" if len(dtypes) > 1 else None


def _class_weights_fit(module):
    weight = module.weight
    if weight is not None and weight.dtype not in _DTYPES:
        return f"its weight is {_plain(weight.dtype)}"
    return None


_NO_PAIR = "it holds no Linear with an activation after it"


def _has_pair(module):
    """Children were visited before, so a Linear that can be replaced already is."""
    layers = list(module)
    reason = _NO_PAIR
    for layer, after in pairwise(layers):
        if type(layer) is not nn.Linear or type(after) not in ACTIVATIONS:
            continue
        if follow_on(layer, after) is not None:
            return None
        if has_hooks(layer) or has_hooks(after):
            reason = "hooks on its Linear or activation would not see their values"
    return reason


def _fused(sequential):
    layers = list(sequential)
    return [b for a, b in pairwise(layers) if follow_on(a, b) is not None]


def _plain(value):
    return str(value).removeprefix("torch.")


def _grouped(title, rows, sign):
    """A line for each (source, target or reason): how many, and the first names."""
    names = {}
    for name, source, other in rows:
        names.setdefault((source, other), []).append(name or "(the model)")
    lines = []
    for (source, other), group in names.items():
        shown = ", ".join(group[:3]) + (", ..." if len(group) > 3 else "")
        lines.append(f"  {title:<8}{len(group):>4}  {source} {sign} {other}  [{shown}]")
    return lines


def _compare(model):
    """Raises RuntimeError where a module of halfstep's and the plain one disagree on random rows.

    Left out is what torch cannot express, and what accelerate would not replace as it is now.
    """
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast(device.type, enabled=False),
    ):
        for name, module in model.named_modules():
            row = _pattern_of(module)
            if row is None or row.condition(module) is not None:
                continue
            for part in _parts(module):
                _compare_one(name or "the model", part, device, generator)


def _parts(module):
    """What is run alone: the module, or of a Sequential each Linear with its activation."""
    if type(module) is not nn.Sequential:
        return [module]
    pairs = pairwise(list(module))
    return [nn.Sequential(a, b) for a, b in pairs if follow_on(a, b) is not None]


def _compare_one(name, module, device, generator):
    inputs = _sample(module, device, generator)
    mine, twin = _twin(module), _twin(module)
    for part in twin.modules():
        _swap_back(part)
    ours, plain = _results(mine, *inputs), _results(twin, *inputs)
    exact = _results(twin.double(), inputs[0].double(), *inputs[1:])
    for what, y in ours.items():
        error = _largest(y.double() - exact[what])
        torch_error = _largest(plain[what].double() - exact[what])
        ulp = torch.finfo(plain[what].dtype).eps * _largest(exact[what])
        if not error <= 2 * torch_error + 4 * ulp:
            raise RuntimeError(
                f"accelerate: {name} ({type(twin).__name__}): its {what} is off by {error:.3g}, "
                f"torch's by {torch_error:.3g}; the model is as it was before"
            )


def _largest(t):
    return t.abs().max() if t.numel() else t.new_zeros(())


def _twin(module):
    """A copy with parameters of its own, which are no inference tensors; hooks are not needed."""
    twin = copy.copy(module)
    twin._modules = {name: _twin(child) for name, child in module._modules.items()}
    for kind in ("_parameters", "_buffers"):
        setattr(twin, kind, {k: copy.deepcopy(t) for k, t in getattr(module, kind).items()})
    return twin


def _sample(module, device, generator):
    """16 random rows in the shape and the dtype that the module's own settings ask for."""
    if isinstance(module, torch.nn.CrossEntropyLoss):
        weight = module.weight
        classes = 10 if weight is None else len(weight)
        logits = torch.randn(16, classes, generator=generator)
        target = torch.randint(classes, (16,), generator=generator)
        if weight is None:
            return logits.to(device), target.to(device)
        return logits.to(weight.device, weight.dtype), target.to(weight.device)
    first = module[0] if isinstance(module, torch.nn.Sequential) else module
    shape = (first.in_features,) if isinstance(first, torch.nn.Linear) else first.normalized_shape
    x = torch.randn(16, *shape, generator=generator)
    return (
        x.to(device) if first.weight is None else x.to(first.weight.device, first.weight.dtype),
    )


def _results(module, x, *rest):
    """The output and every gradient, by name; neither .grad nor a hook notices."""
    x = x.clone().requires_grad_()
    y = type(module).forward(module, x, *rest)
    leaves = {"gradient of the input": x}
    leaves |= {f"gradient of {n}": p for n, p in module.named_parameters() if p.requires_grad}
    slope = torch.linspace(-1, 1, y.numel(), dtype=y.dtype, device=y.device).reshape(y.shape)
    gradients = torch.autograd.grad(y, list(leaves.values()), slope)
    return {"output": y.detach(), **dict(zip(leaves, gradients, strict=True))}


TABLE = (
    Row(torch.nn.Linear, nn.Linear, _parameters_fit, ("activation",)),
    Row(torch.nn.LayerNorm, nn.LayerNorm, _parameters_fit),
    Row(
        torch.nn.CrossEntropyLoss,
        nn.CrossEntropyLoss,
        _class_weights_fit,
        ("z_loss", "all_ignored"),
    ),
    Row(torch.nn.Sequential, nn.Sequential, _has_pair),
)
_by_pattern = {row.pattern: row for row in TABLE}
_by_replacement = {row.replacement: row for row in TABLE}
