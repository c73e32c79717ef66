"""A layer's weight and bias, whatever they are."""


def weight_and_bias(layer):
    """Parameters are read past Module.__getattr__, which costs as much as a small kernel's launch.

    A pruned, parametrized or reassigned weight is an attribute, a property or a buffer instead.
    """
    p = layer._parameters
    try:
        return p["weight"], p["bias"]
    except KeyError:
        return layer.weight, layer.bias
