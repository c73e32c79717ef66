"""torch.autocast that also takes the arguments of torch.cuda.amp.autocast."""

import torch


def autocast(device_type=None, dtype=None, enabled=True, cache_enabled=None):
    """torch.autocast with an optional device_type: "cuda" where CUDA is available, else "cpu".

    device_type, dtype, enabled, cache_enabled: as torch.autocast's. A bool in first place is
    `enabled`, as in torch.cuda.amp.autocast. Without a dtype it is float16 on CUDA and bfloat16 on
    the CPU.

    Returns a torch.autocast, a context manager and a decorator. This is a function because
    torch.compile knows that type, and before torch 2.10 no subclass of it.
    """
    if isinstance(device_type, bool):
        device_type, enabled = None, device_type
    if device_type is None:
        device_type = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.autocast(device_type, dtype, enabled, cache_enabled)
