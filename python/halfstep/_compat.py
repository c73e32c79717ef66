"""The kinds of arrays, and the few functions of torch that are bound once for speed.

Everything here works without torch too: then NumPy arrays and other DLPack producers are read.
"""

import sys

import numpy as np

from halfstep import _C

try:
    import torch
except ImportError:
    torch = None

_DLPACK_CPU = 1  # kDLCPU, a device type of DLPack's
ndarray = np.ndarray
Tensor = torch.Tensor if torch is not None else ()  # isinstance(x, ()) is always False
Function = torch.autograd.Function if torch is not None else object


def never():
    return False


def increment_version(tensors):
    """Tells autograd that C wrote to these tensors, as an in-place operation of torch does."""
    try:
        torch.autograd.graph.increment_version(tensors)
    except (TypeError, RuntimeError):  # torch below 2.6 takes one tensor at a time
        for t in tensors:
            torch.autograd.graph.increment_version(t)


is_grad_enabled = torch.is_grad_enabled if torch is not None else never
is_compiling = torch.compiler.is_compiling if torch is not None else never
functorch_active = torch._C._are_functorch_transforms_active if torch is not None else never


def empty_like(x):
    """An uninitialised row-major array of x's shape and dtype: torch's, CuPy's, else NumPy's."""
    if isinstance(x, Tensor):
        return torch.empty_like(x, memory_format=torch.contiguous_format)
    if isinstance(x, ndarray):
        return np.empty(x.shape, x.dtype)
    if _is_cupy(x):
        return sys.modules["cupy"].empty_like(x)
    if not hasattr(x, "__dlpack_device__"):
        raise TypeError(f"expected a tensor or an array, got {type(x).__name__}")
    if x.__dlpack_device__()[0] != _DLPACK_CPU:
        raise TypeError(
            f"results for a {type(x).__name__} on a GPU cannot be allocated; "
            "pass torch.from_dlpack(x) or cupy.from_dlpack(x)"
        )
    return np.empty(x.shape, _numpy_dtype(dtype_name(x.dtype)))


def empty(shape, dtype, like):
    """An uninitialised array on like's device. dtype: a name such as "float32"."""
    if isinstance(like, Tensor):
        return torch.empty(shape, dtype=getattr(torch, dtype), device=like.device)
    if _is_cupy(like):
        return sys.modules["cupy"].empty(shape, dtype)
    return np.empty(shape, _numpy_dtype(dtype))


def dtype_name(dtype):
    """Such as "float32", of any library's dtype."""
    return str(dtype).rpartition(".")[2]


def dense(x):
    """x where it is row-major and holds the values that it shows, else a copy that does."""
    if isinstance(x, Tensor):
        if x.layout is not torch.strided:
            return x  # C says that it has no plain memory
        return x.resolve_neg().contiguous()
    if isinstance(x, ndarray):
        return x if x.flags.c_contiguous else np.ascontiguousarray(x).reshape(x.shape)
    if _is_cupy(x):
        return sys.modules["cupy"].ascontiguousarray(x)
    return x


def require_array(op, name, x):
    """A TypeError that names op and argument, where x is neither a tensor nor an array.

    Of other libraries' arrays it takes those that say how results become arrays like them.
    """
    if type(x) is ndarray or isinstance(x, Tensor) or _is_cupy(x):
        return
    if isinstance(x, ndarray):
        if hasattr(x, "mask"):
            raise TypeError(
                f"{op}: {name} is a masked array, whose mask would be ignored; "
                f"pass {name}.filled(value)"
            )
        return
    wanted = ("__dlpack__", "__dlpack_device__", "__array_namespace__")
    if not all(hasattr(x, method) for method in wanted):
        traced = type(x).__module__.partition(".")[0] == "jax"
        advice = "; call it outside jax.jit, grad and vmap, or with jax.pure_callback"
        raise TypeError(
            f"{op}: {name} is a {type(x).__name__}, expected a tensor or an array"
            + (advice if traced else "")
        )


def require_dense(op, name, t):
    """A TypeError that says what t is, where it is a sparse, nested or mkldnn tensor."""
    if not isinstance(t, Tensor) or (t.layout is torch.strided and not t.is_nested):
        return
    kind = "nested" if t.is_nested else str(t.layout).removeprefix("torch.").lstrip("_")
    raise TypeError(f"{op}: {name} is a {kind} tensor, expected a dense one")


def as_array(op, name, x):
    """x where it is NumPy's or CuPy's array, else a NumPy array of its values."""
    require_array(op, name, x)
    if isinstance(x, ndarray) or _is_cupy(x):
        return x
    if isinstance(x, Tensor):
        raise TypeError(f"{op}: {name} is a tensor, the first argument is an array")
    if x.__dlpack_device__()[0] != _DLPACK_CPU:
        raise TypeError(
            f"{op}: {name} is a {type(x).__name__} on a GPU; "
            f"pass torch.from_dlpack({name}) or cupy.from_dlpack({name})"
        )
    try:
        return np.asarray(x) if hasattr(x, "__array__") else np.from_dlpack(x)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        kind = type(x).__name__
        raise TypeError(f"{op}: {name} is a {kind} that NumPy cannot read: {error}") from None


def same_kind(x, *results):
    """Results as x's kind of array: what was computed into NumPy for a JAX array is one again."""
    if isinstance(x, (Tensor, ndarray)) or _is_cupy(x):
        return results
    space = x.__array_namespace__()
    return tuple(None if r is None else space.asarray(r) for r in results)


def _is_cupy(x):
    return type(x).__module__.partition(".")[0] == "cupy"


def _numpy_dtype(name):
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def _gpu_workspace(size, device, like):
    """From the library that works on the call's stream: like's, torch's where it is None."""
    if like is None and torch is not None:
        return torch.empty(size, dtype=torch.uint8, device=f"cuda:{device}")
    cupy = sys.modules["cupy"]
    with cupy.cuda.Device(device):
        return cupy.empty(size, dtype="uint8")


def _stream_of(x):
    """The CUDA stream that x's library works on; 0, the legacy default stream, where unknown."""
    return sys.modules["cupy"].cuda.get_current_stream().ptr if _is_cupy(x) else 0


def register_torch(exchange):
    """exchange: the capsule of DLPack's C exchange API, by which tensors are borrowed (torch 2.10).

    With None they are read through to_dlpack.
    """
    _C.torch_register(
        torch.Tensor,
        torch.nn.Parameter,
        exchange if type(exchange).__name__ == "PyCapsule" else None,
        torch.utils.dlpack.to_dlpack,
        getattr(torch._C, "_cuda_getCurrentRawStream", None),
        getattr(torch, "OutOfMemoryError", None) or torch.cuda.OutOfMemoryError,
        torch.are_deterministic_algorithms_enabled,
        torch.Tensor.is_neg,
        torch.empty_like,
    )


if torch is not None:
    register_torch(getattr(torch.Tensor, "__dlpack_c_exchange_api__", None))
_C.arrays_register(dense, empty_like, _gpu_workspace, _stream_of)
