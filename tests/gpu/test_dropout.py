"""Dropout on a GPU."""

import pytest
import torch

import halfstep as hs
from tests.gpu import on_gpu
from tests.helpers import DTYPES, normal
from tests.unit.test_dropout import STATES

globals().update(on_gpu("tests.unit.test_dropout"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 5, 1023, 1 << 20])
def test_the_cpu_draws_the_same_bits(dtype, count):
    x = normal(0, (count,), dtype)
    for state in STATES:
        on_cpu = hs.functional.dropout(x, 0.3, state=state)
        assert torch.equal(hs.functional.dropout(x.cuda(), 0.3, state=state).cpu(), on_cpu)
