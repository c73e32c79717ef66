"""LayerNorm as a module."""

from torch import nn

from halfstep.functional.norm import layer_norm
from halfstep.nn._weights import weight_and_bias


class LayerNorm(nn.LayerNorm):
    """torch.nn.LayerNorm with the same arguments, parameters and state_dict.

    forward(input) returns the normalised input. forward(input, residual) returns the pair
    (layer_norm(input + residual), input + residual) in one pass; the sum keeps residual's dtype.
    Shapes, dtypes and errors: halfstep.functional.layer_norm.
    """

    def forward(self, input, residual=None):
        w, b = weight_and_bias(self)
        return layer_norm(input, self.normalized_shape, w, b, self.eps, residual=residual)
