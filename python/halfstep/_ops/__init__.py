"""Allocate the outputs and call C: one module per op, no gradients.

Each pass is a plain function of arrays. Where torch is, it is registered with torch.library as well
(library.py), with the allocation alone as its fake.
"""

from halfstep import _libs

_libs.announce()
