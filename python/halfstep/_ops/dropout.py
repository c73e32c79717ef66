"""Dropout: the contract is kernels/ops/dropout.h. The backward is the forward of the gradient.

The random state is a pair (seed, offset) of Python ints, or one tensor of two int64, which a kernel
reads when it runs: what CUDA-graph capture and torch.compile need.
"""

import numpy as np

from halfstep import _C
from halfstep._compat import Tensor, empty_like, is_compiling, torch
from halfstep._ops.library import register

# Makes these masks a stream of their own: torch's ops draw from the same seed and offsets.
_STREAM = 0x68616C6673746570


def draw_state(x):
    """The next random state, from torch's default generator of x's device; for arrays NumPy's."""
    if not isinstance(x, Tensor):
        return int(np.random.randint(0, 2**63 - 1, dtype=np.int64)), 0
    if is_compiling() or (x.is_cuda and torch.cuda.is_current_stream_capturing()):
        return torch.randint(0, 2**63 - 1, (2,), dtype=torch.int64, device=x.device)
    if not x.is_cuda:
        return int(torch.randint(0, 2**63 - 1, (), dtype=torch.int64)), 0
    generator = torch.cuda.default_generators[x.device.index]
    state = generator.get_state()
    seed, offset = state.view(torch.int64).tolist()
    state.view(torch.int64)[1] = offset + 4
    generator.set_state(state)
    return _signed(seed ^ _STREAM), offset


def _signed(value):
    return (value + 2**63) % 2**64 - 2**63


def forward(x, p, state):
    """x with each element zeroed with probability p and scaled by 1 / (1 - p) otherwise."""
    if isinstance(state, tuple):
        return _C.dropout(x, ..., None, p, *state)
    return _C.dropout(x, ..., state, p, 0, 0)


traced_forward = register(
    "dropout",
    "(Tensor x, float p, Tensor state) -> Tensor[]",
    lambda x, p, state: (forward(x, p, state),),
    lambda x, p, state: (empty_like(x),),
)
