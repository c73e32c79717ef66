"""Linear as a module."""

from torch import nn

from halfstep._ops.act import kind_of
from halfstep.functional.linear import linear
from halfstep.nn._weights import weight_and_bias


class Linear(nn.Linear):
    """torch.nn.Linear with the same parameters and state_dict, and an optional activation.

    activation: None, "relu", "gelu" (erf), "gelu_tanh" or "silu", applied to the output in the
    same pass where cuBLASLt can (relu, gelu_tanh), else in one more. Shapes, dtypes, autocast and
    errors: halfstep.functional.linear.
    """

    activation = None

    def __init__(
        self, in_features, out_features, bias=True, device=None, dtype=None, *, activation=None
    ):
        kind_of(activation, "linear")
        super().__init__(in_features, out_features, bias, device, dtype)
        self.activation = activation

    def forward(self, input):
        return linear(input, *weight_and_bias(self), self.activation)

    def extra_repr(self):
        text = super().extra_repr()
        return text if self.activation is None else f"{text}, activation={self.activation!r}"
