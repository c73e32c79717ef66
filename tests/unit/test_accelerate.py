"""accelerate, restore, report: what is swapped, what is left alone and why, and what is kept."""

import copy
import io
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import halfstep as hs
from halfstep import _C


class Perceptron(nn.Module):
    """Two fused pairs, a lone Linear, a norm, and a head tied to the embedding."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.norm = nn.LayerNorm(8)
        self.body = nn.Sequential(
            nn.Linear(8, 16),
            nn.GELU(),
            nn.Dropout(0.0),
            nn.Linear(16, 8),
            nn.ReLU(inplace=True),
            nn.Linear(8, 8),
        )
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.body(self.norm(self.embed(tokens))))


class OwnLinear(nn.Linear):
    def forward(self, input):
        return 2 * super().forward(input)


def scripted():
    with warnings.catch_warnings(action="ignore"):  # newer versions of torch deprecate it
        return torch.jit.script(nn.Linear(4, 4))


TOKENS = torch.arange(10).reshape(2, 5)


def make():
    torch.manual_seed(0)
    return Perceptron()


def reasons(model):
    return {row.name: row.reason for row in hs.report(model).left}


def gradients(model):
    model.zero_grad()
    y = model(TOKENS)
    y.square().mean().backward()
    return y.detach(), {n: p.grad.clone() for n, p in model.named_parameters()}


def test_swap_counts():
    report = hs.report(hs.accelerate(make()))
    assert report.counts == {"Linear": 4, "LayerNorm": 1, "Sequential": 1}
    assert [row.name for row in report.swapped if row.source == "Sequential"] == ["body"]
    assert [(row.name, row.source) for row in report.left] == [
        ("embed", "Embedding"),
        ("body.2", "Dropout"),
    ]


def test_swap_counts_of_torch_layers():
    torch.manual_seed(0)
    model = hs.accelerate(
        nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, batch_first=True), 3)
    )
    assert hs.report(model).counts == {"Linear": 6, "LayerNorm": 6}
    assert hs.report(hs.accelerate(nn.CrossEntropyLoss())).counts == {"CrossEntropyLoss": 1}
    assert "subclass of Linear" in reasons(model)["layers.0.self_attn.out_proj"]


def test_the_same_numbers_and_the_fused_path():
    plain, ours = make(), hs.accelerate(make())
    y, expected = gradients(plain)
    before = _C.calls()
    z, actual = gradients(ours)
    calls = {name: count - before[name] for name, count in _C.calls().items()}
    assert calls["norm_forward"] == 1 and calls["norm_backward"] == 1
    assert calls["act_forward"] == 2 and calls["act_backward"] == 3
    torch.testing.assert_close(z, y)
    assert actual.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(actual[name], expected[name])


def test_parameters_stay_the_same_objects():
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = dict(model.named_parameters())
    state = model.state_dict()
    hs.accelerate(model)
    after = dict(model.named_parameters())
    assert all(after[name] is before[name] for name in before) and after.keys() == before.keys()
    assert model.head.weight is model.embed.weight
    assert list(model.state_dict()) == list(state)
    start = {n: p.detach().clone() for n, p in before.items()}
    gradients(model)
    optimizer.step()
    assert all(not torch.equal(after[name], start[name]) for name in start)


def test_training_mode_and_frozen_parameters_are_kept():
    model = make().eval()
    model.body[0].weight.requires_grad_(False)
    hs.accelerate(model)
    assert not any(module.training for module in model.modules())
    assert not model.body[0].weight.requires_grad


def test_a_second_call_changes_nothing():
    model = hs.accelerate(make())
    classes, report = [type(m) for m in model.modules()], str(hs.report(model))
    assert hs.accelerate(model) is model
    assert [type(m) for m in model.modules()] == classes
    assert str(hs.report(model)) == report


def test_restore_is_exact():
    plain, model = make(), make()
    before = [(type(m), set(vars(m))) for m in model.modules()]
    assert hs.restore(hs.accelerate(model)) is model
    assert [(type(m), set(vars(m))) for m in model.modules()] == before
    y, expected = gradients(plain)
    z, actual = gradients(model)
    assert torch.equal(y, z)
    assert all(torch.equal(actual[name], expected[name]) for name in expected)


def test_restore_keeps_what_torch_cannot_express():
    model = nn.Sequential(hs.nn.Linear(4, 4, activation="gelu"), hs.nn.Linear(4, 4))
    hs.restore(model)
    assert [type(m) for m in model] == [hs.nn.Linear, nn.Linear]
    loss = hs.nn.CrossEntropyLoss(z_loss=1e-4)
    assert type(hs.restore(loss)) is hs.nn.CrossEntropyLoss


def test_hooks_fire_and_see_their_values():
    model, seen = make(), []
    model.body[0].register_forward_hook(lambda m, a, y: seen.append(("linear", y.detach())))
    model.body[1].register_forward_hook(lambda m, a, y: seen.append(("gelu", y.detach())))
    hs.accelerate(model)
    model(TOKENS)
    assert [name for name, _ in seen] == ["linear", "gelu"]
    torch.testing.assert_close(seen[1][1], nn.functional.gelu(seen[0][1]))


def test_a_hook_that_comes_later_splits_the_pair():
    model, seen = hs.accelerate(make()), []
    expected = model(TOKENS)
    handle = model.body[1].register_forward_hook(lambda *_: seen.append(1))
    torch.testing.assert_close(model(TOKENS), expected)
    assert seen == [1]
    handle.remove()
    every = nn.modules.module.register_module_forward_hook(lambda m, *_: seen.append(type(m)))
    try:
        model(TOKENS)
    finally:
        every.remove()
    assert nn.GELU in seen


def test_only_pair_with_a_hook_is_reported():
    model = nn.Sequential(nn.Linear(4, 4), nn.GELU())
    model[1].register_forward_hook(lambda *_: None)
    hs.accelerate(model)
    assert type(model) is nn.Sequential and type(model[0]) is hs.nn.Linear
    assert "hooks" in reasons(model)[""]


def test_layers_of_a_fused_sequential_work_alone():
    torch.manual_seed(0)
    model = hs.accelerate(nn.Sequential(nn.Linear(4, 4), nn.SiLU()))
    x = torch.randn(3, 4)
    z = nn.functional.linear(x, model[0].weight, model[0].bias)
    torch.testing.assert_close(model[0](x), z)
    torch.testing.assert_close(model(x), nn.functional.silu(z))
    torch.testing.assert_close(model[:1](x), z)


def test_one_activation_shared_by_two_places():
    torch.manual_seed(0)
    act = nn.ReLU()
    plain = nn.Sequential(nn.Linear(4, 4), act, nn.LayerNorm(4), act)
    ours = hs.accelerate(copy.deepcopy(plain))
    x = torch.randn(5, 4)
    torch.testing.assert_close(ours(x), plain(x))


@pytest.mark.parametrize(
    "layer, reason",
    [
        (OwnLinear(4, 4), "it is a subclass of Linear"),
        (nn.Linear(4, 4).double(), "its weight is float64, strided, on cpu"),
        (nn.Linear(4, 4, dtype=torch.complex64), "its weight is complex64, strided, on cpu"),
        (nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), "it has parametrizations"),
        (nn.LazyLinear(4), "it is a subclass of Linear"),
        (nn.Conv2d(1, 1, 1), "halfstep has no replacement for this class"),
        (nn.CrossEntropyLoss(torch.ones(4, dtype=torch.float64)), "its weight is float64"),
        (scripted(), "TorchScript runs its own code"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_left_alone_with_the_reason(layer, reason):
    model = nn.ModuleList([layer])
    kind = type(layer)
    hs.accelerate(model)
    assert type(model[0]) is kind
    assert reasons(model)["0"] == reason
    assert hs.report(model).counts == {}


def test_pruned_and_patched_layers_are_left_alone():
    pruned = prune.l1_unstructured(nn.Linear(4, 4), "weight", amount=2)
    patched = nn.Linear(4, 4)
    patched.forward = lambda x: x
    model = hs.accelerate(nn.ModuleList([pruned, patched]))
    assert type(pruned) is nn.Linear and type(patched) is nn.Linear
    assert "computed by a hook" in reasons(model)["0"]
    assert "forward was replaced" in reasons(model)["1"]


def test_mixed_dtypes_are_left_alone():
    norm = nn.LayerNorm(4)
    norm.bias.data = norm.bias.data.half()
    assert reasons(hs.accelerate(norm))[""] == "its weight and its bias differ in dtype"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_verify_passes(dtype):
    model = make().to(dtype)
    state = torch.get_rng_state()
    hs.accelerate(model, verify=True)
    assert hs.report(model).counts == {"Linear": 4, "LayerNorm": 1, "Sequential": 1}
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)
    hs.accelerate(nn.CrossEntropyLoss(torch.rand(7), label_smoothing=0.1), verify=True)
    hs.accelerate(nn.LayerNorm((2, 3), elementwise_affine=False), verify=True)


@pytest.mark.parametrize("name", ["Linear", "LayerNorm"])
def test_verify_catches_a_wrong_layer(monkeypatch, name):
    model, cls = make(), getattr(hs.nn, name)
    right = cls.forward
    monkeypatch.setattr(cls, "forward", lambda self, x: right(self, x) * 1.001)
    classes = [type(m) for m in model.modules()]
    with pytest.raises(RuntimeError, match=rf"accelerate: .*\({name}\): its output is off by"):
        hs.accelerate(model, verify=True)
    assert [type(m) for m in model.modules()] == classes


def test_verify_catches_a_wrong_pair(monkeypatch):
    monkeypatch.setitem(hs.nn.sequential.ACTIVATIONS, nn.GELU, lambda layer: "gelu_tanh")
    with pytest.raises(RuntimeError, match=r"accelerate: body \(Sequential\)"):
        hs.accelerate(make(), verify=True)


def test_verify_catches_a_wrong_gradient(monkeypatch):
    right = hs.nn.LayerNorm.forward

    def detached_bias(self, x):
        return right(self, x) + 0.01 * (self.bias - self.bias.detach())

    monkeypatch.setattr(hs.nn.LayerNorm, "forward", detached_bias)
    with pytest.raises(RuntimeError, match=r"norm \(LayerNorm\): its gradient of bias is off"):
        hs.accelerate(make(), verify=True)


def test_verify_looks_at_modules_replaced_before(monkeypatch):
    model = hs.accelerate(make())
    assert hs.accelerate(model, verify=True) is model
    right = hs.nn.LayerNorm.forward
    with monkeypatch.context() as patch:
        patch.setattr(hs.nn.LayerNorm, "forward", lambda self, x: right(self, x) * 1.001)
        with pytest.raises(RuntimeError, match=r"norm \(LayerNorm\): its output is off by"):
            hs.accelerate(model, verify=True)
    assert hs.report(model).counts == {"Linear": 4, "LayerNorm": 1, "Sequential": 1}
    with torch.no_grad():
        model.norm.weight[0] = float("nan")
    with pytest.raises(RuntimeError, match=r"norm \(LayerNorm\): its output is off by nan"):
        hs.accelerate(model, verify=True)


def test_verify_leaves_out_what_torch_cannot_express():
    model = nn.Sequential(hs.nn.Linear(4, 4, activation="relu"), hs.nn.Linear(4, 4))
    prune.l1_unstructured(model[1], "weight", 0.5)
    hs.accelerate(model, verify=True)
    assert model[0].activation == "relu"


@pytest.mark.parametrize("sizes", [(0, 4), (4, 0), (0, 0)])
@pytest.mark.filterwarnings("ignore:Initializing zero-element")
def test_verify_of_layers_without_elements(sizes):
    model = nn.Sequential(nn.Linear(*sizes), nn.GELU(), nn.LayerNorm(max(1, sizes[1])))
    assert hs.report(hs.accelerate(model, verify=True)).counts["Sequential"] == 1


def test_verify_under_inference_mode():
    model = make()
    with torch.inference_mode():
        made_inside = make()
        for m in (model, made_inside):
            hs.accelerate(m, verify=True)
            assert hs.report(m).counts == {"Linear": 4, "LayerNorm": 1, "Sequential": 1}
    with torch.no_grad():
        torch.testing.assert_close(made_inside(TOKENS), model(TOKENS))


def test_verify_needs_values():
    model = make().to("meta")
    with pytest.raises(ValueError, match=r"verify is True and embed.weight is on the meta device"):
        hs.accelerate(model, verify=True)
    assert hs.report(model).counts == {}
    assert hs.report(hs.accelerate(model)).counts["Linear"] == 4


@pytest.mark.parametrize("way", ["deepcopy", "pickle", "torch.save"])
def test_copies(way):
    model = hs.accelerate(make())
    if way == "deepcopy":
        other = copy.deepcopy(model)
    elif way == "pickle":
        other = pickle.loads(pickle.dumps(model))
    else:
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        other = torch.load(file, weights_only=False)
    assert hs.report(other).counts == hs.report(model).counts
    assert other.head.weight is other.embed.weight
    assert torch.equal(other(TOKENS), model(TOKENS))


def test_state_dict_both_ways():
    plain, ours = make(), hs.accelerate(Perceptron())
    ours.load_state_dict(plain.state_dict())
    torch.testing.assert_close(ours(TOKENS), plain(TOKENS))
    Perceptron().load_state_dict(ours.state_dict())


def test_report_prints_a_table():
    lines = str(hs.report(hs.accelerate(make()))).splitlines()
    assert lines[0] == "6 modules run as halfstep's, 2 as before"
    assert "  swapped    1  LayerNorm -> halfstep.nn.LayerNorm  [norm]" in lines
    assert "  left       1  Dropout : halfstep has no replacement for this class  [body.2]" in lines
    assert reasons(nn.Linear(2, 2)) == {"": "accelerate has not seen it"}


@pytest.mark.parametrize("function", [hs.accelerate, hs.restore, hs.report])
def test_not_a_module(function):
    with pytest.raises(TypeError, match=rf"{function.__name__}: model is a list, expected"):
        function([])


def test_unsupported_arguments():
    with pytest.raises(ValueError, match="sparse_mlm=True needs a masked-LM model; none found"):
        hs.accelerate(make(), sparse_mlm=True)
    with pytest.raises(TypeError, match="verify is 'yes', expected True or False"):
        hs.accelerate(make(), verify="yes")


def test_a_compiled_model_is_refused_before_anything_is_swapped():
    compiled = torch.compile(make())
    with pytest.raises(ValueError, match="accelerate: the model is already compiled"):
        hs.accelerate(compiled)
    model = make()
    model.norm.compile()
    with pytest.raises(ValueError, match="norm is already compiled"):
        hs.accelerate(model)
    assert hs.report(model).counts == {}
