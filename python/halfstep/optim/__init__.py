"""Optimizers: torch.optim's classes with one fused pass over all parameters of a group."""

from halfstep.optim.adamw import AdamW

__all__ = ["AdamW"]
