"""What crosses into C and what is refused: kinds of tensors, devices, transforms, derivatives."""

import itertools

import numpy as np
import pytest
import torch

import halfstep as hs
from halfstep import _C
from tests.helpers import Foreign, normal

hsf = hs.functional
TARGET = torch.tensor([0, 1, 2, 1])
# name in errors -> a call on a float tensor of shape (4, 4).
OPS = {
    "layer_norm": lambda x: hsf.layer_norm(x, (4,)),
    "bias_act": lambda x: hsf.gelu(x),
    "linear": lambda x: hsf.linear(x, x, None, "gelu"),
    "cross_entropy": lambda x: hsf.cross_entropy(x, TARGET),
    "dropout": lambda x: hsf.dropout(x, 0.5, state=(1, 2)),
}
FUNCTIONS = {
    "layer_norm": ("norm_forward", "norm_backward"),
    "bias_act": ("act_forward", "act_backward"),
    "linear": ("act_forward", "act_backward"),
    "cross_entropy": ("xent_forward", "xent_backward"),
    "dropout": ("dropout", "dropout"),
}
every_op = pytest.mark.parametrize("op", OPS)


def square():
    return normal(0, (4, 4))


class Subclass(torch.Tensor):
    pass


def quantised():
    if not hasattr(torch, "quantize_per_tensor"):
        pytest.skip("this torch has no quantised tensors")
    return torch.quantize_per_tensor(square(), 0.1, 0, torch.qint8)


def fake():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.empty(4, 4)


def freed():
    x = square()
    x.untyped_storage().resize_(0)
    return x


def distributed(tmp_path):
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    try:
        from torch.distributed.tensor import Replicate, distribute_tensor
    except ImportError:  # torch below 2.5
        from torch.distributed._tensor import Replicate, distribute_tensor

    if not dist.is_initialized():
        store = f"file://{tmp_path}/store"
        dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    return distribute_tensor(square(), init_device_mesh("cpu", (1,)), [Replicate()])


class Bare:
    """A producer of DLPack without the array namespace, by which results would become like it."""

    def __dlpack__(self, **options):
        return square().__dlpack__()

    def __dlpack_device__(self):
        return (1, 0)


REFUSED = {
    "fake": fake,
    "meta": lambda: torch.empty(4, 4, device="meta"),
    "sparse": lambda: square().to_sparse(),
    "quantised": quantised,
    "functional": lambda: torch._to_functional_tensor(square()),
    "freed storage": freed,
    "subclass": lambda: square().as_subclass(Subclass),
    "complex": lambda: torch.complex(square(), square()),
    "float64": lambda: square().double(),
    "int64": lambda: square().long(),
    "bool": lambda: square() > 0,
    "list": lambda: square().tolist(),
    "str": lambda: "tensor",
    "None": lambda: None,
    "complex array": lambda: np.ones((4, 4), np.complex64),
    "float64 array": lambda: np.ones((4, 4)),
    "object array": lambda: np.full((4, 4), None),
    "big-endian array": lambda: np.ones((4, 4), ">f4"),
    "foreign float64": lambda: Foreign(np.ones((4, 4))),
    "masked array": lambda: np.ma.array(square().numpy(), mask=square() > 0),
    "bare DLPack": Bare,
}


@every_op
@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_refused_with_a_type_error_that_names_the_op(op, kind):
    before = _C.calls()
    with pytest.raises(TypeError, match=op):
        OPS[op](REFUSED[kind]())
    assert _C.calls() == before


@every_op
def test_dtensor_is_refused(op, tmp_path):
    if not torch.distributed.is_available():
        pytest.skip("this torch has no torch.distributed")
    with pytest.raises(TypeError, match=op):
        OPS[op](distributed(tmp_path))


@every_op
def test_a_parameter_is_read(op):
    assert torch.equal(OPS[op](torch.nn.Parameter(square())), OPS[op](square()))


@every_op
def test_a_negative_view_gives_the_values_that_it_shows(op):
    x = torch.complex(square(), square()).conj().imag
    assert x.is_neg()
    assert torch.equal(OPS[op](x), OPS[op](x.resolve_neg()))
    weight = -square()[0]
    shown = torch.complex(weight, -weight).conj().imag
    assert torch.equal(shown, weight)
    assert torch.equal(
        hsf.layer_norm(square(), (4,), shown, shown), hsf.layer_norm(square(), (4,), weight, weight)
    )
    assert torch.equal(hsf.bias_act(square(), shown), hsf.bias_act(square(), weight))
    assert torch.equal(hsf.linear(square(), x, shown), hsf.linear(square(), x + 0, weight))


@every_op
def test_strided_parameters_are_read(op):
    if op not in ("layer_norm", "bias_act", "linear"):
        pytest.skip("the op has no weight or bias")
    x, wide = square(), normal(1, (8,))
    w, same = wide[::2], wide[::2].clone()
    calls = {
        "layer_norm": lambda w: hsf.layer_norm(x, (4,), w, w),
        "bias_act": lambda w: hsf.bias_act(x, w),
        "linear": lambda w: hsf.linear(x, x, w, "gelu"),
    }
    for leaf in (w.detach().requires_grad_(), w):
        assert torch.equal(calls[op](leaf), calls[op](same))


@every_op
def test_mixed_devices_are_refused(op):
    x, meta = square(), torch.empty(4, device="meta")
    calls = {
        "layer_norm": lambda: hsf.layer_norm(x, (4,), meta, meta),
        "bias_act": lambda: hsf.bias_act(x, meta),
        "linear": lambda: hsf.linear(x, x, meta),
        "cross_entropy": lambda: hsf.cross_entropy(x, TARGET, meta),
        "dropout": lambda: hsf.dropout(x, 0.5, state=torch.empty(2, device="meta").long()),
    }
    with pytest.raises((TypeError, ValueError), match=op):
        calls[op]()


@every_op
def test_counters_move(op):
    forward, backward = FUNCTIONS[op]
    before = _C.calls()
    y = OPS[op](square().requires_grad_())
    between = _C.calls()
    assert between[forward] == before[forward] + 1
    y.sum().backward()
    assert _C.calls()[backward] == between[backward] + 1


@every_op
@pytest.mark.parametrize("transform", ["vmap", "grad", "jvp"])
def test_functorch_is_refused_clearly(op, transform):
    x = square()
    calls = {
        "vmap": lambda: torch.vmap(OPS[op])(torch.stack([x, x])),
        "grad": lambda: torch.func.grad(lambda x: OPS[op](x).sum())(x),
        "jvp": lambda: torch.func.jvp(OPS[op], (x,), (x,)),
    }
    with pytest.raises(RuntimeError, match=rf"{op}.*(torch\.func|vmap)"):
        calls[transform]()


@every_op
def test_a_second_derivative_is_refused_clearly(op):
    if op == "dropout":
        pytest.skip("linear in its input: the case below holds it to a right value")
    x = square().requires_grad_()
    with pytest.raises(RuntimeError, match=rf"{op}.*second derivative"):
        torch.autograd.grad(OPS[op](x).sum(), x, create_graph=True)


@every_op
def test_gradients_follow_requires_grad(op):
    x = square()
    assert not OPS[op](x).requires_grad
    x.requires_grad_()
    assert OPS[op](x).requires_grad
    with torch.no_grad():
        assert not OPS[op](x).requires_grad
    with torch.inference_mode():
        assert OPS[op](x).is_inference()


@pytest.mark.parametrize("op", ["layer_norm", "bias_act", "linear", "cross_entropy"])
def test_a_saved_tensor_changed_in_place_is_noticed(op):
    x = square().requires_grad_() * 1
    y = OPS[op](x)
    x.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@every_op
def test_a_graph_is_used_once_or_retained(op):
    x = square().requires_grad_()
    y = OPS[op](x).sum()
    (first,) = torch.autograd.grad(y, x, retain_graph=True)
    (second,) = torch.autograd.grad(y, x)
    assert torch.equal(first, second)


@every_op
def test_hooks_on_saved_tensors_are_called(op):
    if op == "dropout":
        pytest.skip("dropout saves no tensor")
    packed = []

    def pack(t):
        packed.append(t.shape)
        return t.clone()

    x = square().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = OPS[op](x)
    y.sum().backward()
    assert packed


def test_a_read_only_array_is_read_and_not_written():
    x = np.ones((4, 4), np.float32)
    x.flags.writeable = False
    assert hsf.gelu(x).flags.writeable
    with pytest.raises(ValueError, match=r"bias_act: y is read-only"):
        _C.act_forward(x, None, x, 1, 2)


def test_an_array_off_its_alignment_is_refused():
    raw = np.zeros(17, np.uint8)[1:].view(np.float32)
    with pytest.raises(ValueError, match=r"bias_act: x is not aligned"):
        hsf.gelu(raw)


def test_arrays_in_odd_layouts():
    base = normal(0, (6, 8)).numpy()
    expected = hsf.gelu(base.copy())
    record = np.zeros((6, 8), [("x", np.float32), ("flag", np.uint8)])
    record["x"] = base
    fields = np.ascontiguousarray(record["x"])
    for view in (base[::-1][::-1], np.asfortranarray(base), fields):
        assert np.array_equal(hsf.gelu(view), expected)
    assert np.array_equal(hsf.gelu(base[:, ::-1]), expected[:, ::-1])
    assert hsf.gelu(np.ones((), np.float32)).shape == ()


@pytest.mark.parametrize("axes", [0, 1, 8, 9])
def test_ranks(axes):
    x = normal(0, (2,) * axes)
    if axes <= 8:
        assert torch.equal(hsf.relu(x), torch.relu(x))
        return
    with pytest.raises(ValueError, match=r"bias_act: x has 9 axes"):
        hsf.relu(x)


@pytest.mark.parametrize("function", sorted(_C.calls()))
def test_c_functions_count_their_arguments(function):
    for arguments in itertools.accumulate([()] + [(None,)] * 3):
        with pytest.raises(TypeError):
            getattr(_C, function)(*arguments)


@pytest.mark.parametrize("kind", [np.array, Foreign])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64"])
def test_a_target_array_of_any_integer_width_is_read(kind, dtype):
    x = square().numpy()
    target = kind(np.array([1, 3, 0, 2], dtype))
    expected = hsf.cross_entropy(x, np.array([1, 3, 0, 2], np.int64))
    assert np.array_equal(hsf.cross_entropy(x, target), expected)


def test_a_producer_that_fails_becomes_a_type_error():
    class Broken(Foreign):
        def __dlpack__(self, **options):
            raise BufferError("on purpose")

    with pytest.raises(TypeError, match=r"bias_act: x .*on purpose"):
        hsf.gelu(Broken(np.ones(4, np.float32)))


def test_a_tuple_of_shapes_and_torch_size():
    x = square()
    expected = hsf.layer_norm(x, 4)
    for shape in ((4,), [4], torch.Size([4])):
        assert torch.equal(hsf.layer_norm(x, shape), expected)
