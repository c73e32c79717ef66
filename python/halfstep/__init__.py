"""halfstep: faster and smaller PyTorch training on one NVIDIA GPU.

Submodules are imported when they are first used: `import halfstep` loads neither torch nor CUDA.
"""

import importlib

from halfstep import _C

__version__ = "0.1.0"

_SUBMODULES = {"amp", "functional", "nn", "optim"}
_CALLABLES = {"accelerate": "_accelerate", "restore": "_accelerate", "report": "_accelerate"}

__all__ = ["accelerate", "amp", "build_info", "functional", "nn", "optim", "report", "restore"]


def build_info():
    """How this copy of halfstep was built and what it can use here.

    Returns a dict: version; cuda (built with CUDA kernels); cuda_architectures (list of compute
    capabilities such as "90"); cpu_instruction_set (chosen at run time: "base", "avx2" or
    "avx512"); compiler; gpus (how many GPUs the driver shows; asking starts the CUDA driver).
    """
    info = {"version": __version__, **_C.build()}
    info["cuda_architectures"] = [a for a in info["cuda_architectures"].split(";") if a]
    info["gpus"] = _C.gpu_count()
    return info


def __getattr__(name):
    if name in _SUBMODULES:
        return importlib.import_module(f"halfstep.{name}")
    if name in _CALLABLES:
        return getattr(importlib.import_module(f"halfstep.{_CALLABLES[name]}"), name)
    raise AttributeError(f"module 'halfstep' has no attribute '{name}'")


def __dir__():
    return sorted({*globals(), *__all__} - {"importlib"})
