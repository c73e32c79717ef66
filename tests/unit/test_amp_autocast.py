"""autocast: torch's, with an optional device type."""

import pickle

import pytest
import torch

from halfstep.amp import autocast


def test_is_torchs_own():
    assert type(autocast()) is torch.autocast
    assert autocast().device == ("cuda" if torch.cuda.is_available() else "cpu")


def test_arguments():
    a = autocast("cpu", torch.bfloat16, False, False)
    assert (a.device, a.fast_dtype, a._enabled, a._cache_enabled) == (
        "cpu",
        torch.bfloat16,
        False,
        False,
    )
    assert not autocast(False)._enabled  # as torch.cuda.amp.autocast(False)
    assert autocast(True)._enabled
    with pytest.raises(ValueError, match="device_type"):
        autocast(3)


def test_nested_and_as_a_decorator(device):
    x = torch.ones(2, 2, device=device)

    @autocast(device, torch.bfloat16)
    def product():
        return x @ x

    assert product().dtype == torch.bfloat16
    with autocast(device, torch.bfloat16):
        assert (x @ x).dtype == torch.bfloat16
        with autocast(device, enabled=False):
            assert (x @ x).dtype == torch.float32
        assert (x @ x).dtype == torch.bfloat16
    assert (x @ x).dtype == torch.float32


def test_pickles(device):
    a = pickle.loads(pickle.dumps(autocast(device, torch.bfloat16)))
    with a:
        assert torch.get_autocast_dtype(device) == torch.bfloat16
        assert torch.is_autocast_enabled(device)


def test_compiles_without_a_graph_break(device):
    @torch.compile(backend="eager", fullgraph=True)
    def product(x):
        with autocast(device, torch.bfloat16):
            return x @ x

    assert product(torch.ones(2, 2, device=device)).dtype == torch.bfloat16
