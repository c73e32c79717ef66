"""hs.nn layers whose weight is no longer a parameter, and containers without layers."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune, spectral_norm, weight_norm

import halfstep as hs
from halfstep import _C


class Doubled(nn.Module):
    def forward(self, w):
        return 2 * w


def as_attribute(layer):
    values = layer.weight.detach() * 2
    del layer.weight
    layer.weight = values


def as_buffer(layer):
    values = layer.weight.detach() * 2
    del layer.weight
    layer.register_buffer("weight", values)


def without_bias(layer):
    del layer.bias
    layer.bias = None


WAYS = {
    "pruned": lambda layer: prune.l1_unstructured(layer, "weight", 0.5),
    "old weight_norm": weight_norm,
    "old spectral_norm": spectral_norm,
    "weight_norm": parametrizations.weight_norm,
    "spectral_norm": parametrizations.spectral_norm,
    "orthogonal": parametrizations.orthogonal,
    "property": lambda layer: parametrize.register_parametrization(layer, "weight", Doubled()),
    "attribute": as_attribute,
    "buffer": as_buffer,
    "bias is None": without_bias,
}
FOR_VECTORS = ("pruned", "property", "attribute", "buffer", "bias is None")


def change(way, model, layer):
    """Changes model[0], or model itself; with a seed, because some ways draw vectors."""
    torch.manual_seed(2)
    WAYS[way](layer(model))
    return model


def compare(make, way, layer, device):
    """Values and gradients are those of torch's layers after the same change."""
    torch.manual_seed(1)
    plain = make().to(device)
    ours = hs.accelerate(make().to(device))
    ours.load_state_dict(plain.state_dict())
    change(way, plain, layer)
    change(way, ours, layer)
    x = torch.randn(5, 6, device=device)
    y, expected = ours(x), plain(x)
    torch.testing.assert_close(y, expected)
    y.square().sum().backward()
    expected.square().sum().backward()
    gradients = [p.grad for p in plain.parameters()]
    assert gradients
    torch.testing.assert_close([p.grad for p in ours.parameters()], gradients)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("way", WAYS)
def test_linear_whose_weight_is_not_a_parameter(way, device):
    compare(lambda: nn.Linear(6, 4), way, lambda model: model, device)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("way", WAYS)
def test_a_pair_whose_weight_is_not_a_parameter(way, device):
    def make():
        return nn.Sequential(nn.Linear(6, 4), nn.GELU())

    compare(make, way, lambda model: model[0], device)


@pytest.mark.parametrize("way", FOR_VECTORS)
def test_layer_norm_whose_weight_is_not_a_parameter(way, device):
    compare(lambda: nn.LayerNorm(6), way, lambda model: model, device)


def test_a_pair_without_hooks_is_still_one_operation(device):
    model = hs.accelerate(nn.Sequential(nn.Linear(6, 4), nn.GELU()).to(device))
    as_attribute(model[0])
    before = _C.calls()["act_forward" if device == "cpu" else "linear_forward"]
    model(torch.randn(5, 6, device=device))
    assert _C.calls()["act_forward" if device == "cpu" else "linear_forward"] == before + 1


def test_sequential_of_any_length(device):
    x = torch.randn(3, 4, device=device)
    model = hs.nn.Sequential(hs.nn.Linear(4, 4), nn.ReLU(), nn.Sigmoid()).to(device)
    assert hs.nn.Sequential()(x) is x
    assert model[0:0](x) is x
    expected = torch.relu(torch.nn.functional.linear(x, model[0].weight, model[0].bias))
    torch.testing.assert_close(model[:1](x).relu(), expected)
    torch.testing.assert_close(model[:2](x), expected)
    torch.testing.assert_close(model(x), expected.sigmoid())
