"""Finds the folders of NVIDIA's pip wheels, without importing them, torch or CUDA."""

import os
from importlib.machinery import PathFinder

from halfstep import _C

# Where the wheels keep their libraries below site-packages/nvidia: CUDA 13 first, then CUDA 12.
WHEEL_FOLDERS = ("cu13/lib", "cublas/lib", "cudnn/lib")


def folders():
    """The existing folders that may hold vendor libraries, best first."""
    spec = PathFinder.find_spec("nvidia")
    roots = list(spec.submodule_search_locations or ()) if spec else []
    found = [os.path.join(root, name) for name in WHEEL_FOLDERS for root in roots]
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    found += [os.path.join(home, "lib64") for home in homes if home]
    return [folder for folder in dict.fromkeys(found) if os.path.isdir(folder)]


def announce():
    """Tells the core where to look; it opens a library only when an op first needs it."""
    _C.library_paths(folders())
