"""Sequential as a module: a Linear and the activation after it are one operation."""

from torch import nn
from torch.nn.modules import module as torch_module

from halfstep.functional.linear import linear
from halfstep.nn._weights import weight_and_bias
from halfstep.nn.linear import Linear

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

# The activation's name for halfstep.functional.linear, by the module's exact class.
ACTIVATIONS = {
    nn.GELU: lambda layer: "gelu_tanh" if layer.approximate == "tanh" else "gelu",
    nn.ReLU: lambda layer: "relu",
    nn.SiLU: lambda layer: "silu",
}


def has_hooks(layer):
    return any(getattr(layer, name) for name in _HOOKS)


def follow_on(layer, after):
    """The activation that runs inside layer's operation, or None where the two run one by one.

    Both must be of exactly a known class, so that a subclass keeps its own forward; a hook on
    either would not see its values, so it splits them.
    """
    name = ACTIVATIONS.get(type(after))
    if name is None or type(layer) is not Linear or layer.activation is not None:
        return None
    if "forward" in vars(layer) or "forward" in vars(after):
        return None
    return None if has_hooks(layer) or has_hooks(after) else name(after)


def _global_hooks():
    return any(getattr(torch_module, f"_global{name}") for name in _HOOKS)


class Sequential(nn.Sequential):
    """torch.nn.Sequential, in which halfstep's Linear and a GELU, ReLU or SiLU after it are fused.

    Each layer stays a module of its own, with its name, parameters and hooks, and can be called
    alone. Which pairs are fused is decided call by call: a hook on one of the two splits them.
    """

    def forward(self, input):
        layers = list(self._modules.values())
        split = _global_hooks()
        skip = False
        for layer, after in zip(layers, [*layers, None][1:], strict=True):
            if skip:
                skip = False
                continue
            activation = None if split else follow_on(layer, after)
            if activation is None:
                input = layer(input)
            else:
                input = linear(input, *weight_and_bias(layer), activation)
                skip = True
        return input
