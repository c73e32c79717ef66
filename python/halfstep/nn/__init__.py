"""Drop-in layers: each subclasses the torch module that it replaces and keeps its state_dict."""

from halfstep.nn.linear import Linear
from halfstep.nn.norm import LayerNorm
from halfstep.nn.sequential import Sequential
from halfstep.nn.xent import CrossEntropyLoss

__all__ = ["CrossEntropyLoss", "LayerNorm", "Linear", "Sequential"]
