"""Skips this tier where it cannot run, and puts its tests on the GPU."""

from pathlib import Path

import pytest
import torch

from halfstep import _C


def reason_to_skip():
    if not torch.cuda.is_available():
        return "torch sees no GPU"
    if not _C.build()["cuda"]:
        return "this halfstep was built without CUDA kernels (HALFSTEP_CUDA=1 builds them)"
    return None


def pytest_collection_modifyitems(items):
    reason = reason_to_skip()
    if reason is None:
        return
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def device():
    return "cuda"
