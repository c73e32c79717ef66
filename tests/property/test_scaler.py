"""Any sequence of calls ends as with torch.amp.GradScaler: values, scale and kind of error."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from halfstep.amp import GradScaler

NEW_SCALES = [1.0, 2.0**20, 24.0]
CALLS = st.one_of(
    st.tuples(st.just("backward"), st.sampled_from([0, 1]), st.sampled_from([0.25, 3.0, 1e30])),
    st.tuples(st.just("backward"), st.sampled_from([0, 1]), st.sampled_from(["inf", "nan"])),
    st.tuples(st.sampled_from(["unscale_", "step", "clip", "zero_grad"]), st.sampled_from([0, 1])),
    st.tuples(st.just("update")),
    st.tuples(st.just("update_to"), st.sampled_from(NEW_SCALES)),
    st.tuples(st.just("reload")),
)
# One iteration of the plain loop, so that long clean runs are common too.
ITERATION = st.tuples(st.sampled_from([0.25, 3.0, "inf"])).map(
    lambda v: [("backward", 0, v[0]), ("backward", 1, 0.5), ("step", 0), ("step", 1), ("update",)]
)
SEQUENCES = st.lists(st.one_of(CALLS.map(lambda c: [c]), ITERATION), max_size=12)


class Run:
    """Two parameters, an optimizer each, and one scaler."""

    def __init__(self, make_scaler, make_optimizers):
        self.make_scaler = lambda: make_scaler(
            "cpu", init_scale=16.0, growth_factor=4.0, backoff_factor=0.125, growth_interval=2
        )
        self.scaler = self.make_scaler()
        self.params = [torch.nn.Parameter(torch.tensor([1.0, -2.0, 0.5])) for _ in range(2)]
        self.optimizers = [make([p]) for make, p in zip(make_optimizers, self.params, strict=True)]

    def call(self, name, *arguments):
        """The kind of error, or None."""
        try:
            getattr(self, name)(*arguments)
        except Exception as error:
            return type(error)

    def backward(self, i, value):
        self.scaler.scale((self.params[i] * float(value)).sum()).backward()

    def unscale_(self, i):
        self.scaler.unscale_(self.optimizers[i])

    def step(self, i):
        self.scaler.step(self.optimizers[i])

    def clip(self, i):
        torch.nn.utils.clip_grad_norm_([self.params[i]], 1.0)

    def zero_grad(self, i):
        self.optimizers[i].zero_grad()

    def update(self):
        self.scaler.update()

    def update_to(self, value):
        self.scaler.update(value)

    def reload(self):
        state, self.scaler = self.scaler.state_dict(), self.make_scaler()
        self.scaler.load_state_dict(state)

    def outcome(self):
        tensors = [t for p in self.params for t in (p.detach(), p.grad)]
        return self.scaler.state_dict(), tensors


def same(a, b):
    return (a is None and b is None) or torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))


def fused(params):
    return torch.optim.AdamW(params, lr=0.1, fused=True)


def plain(params):
    return torch.optim.SGD(params, lr=0.1)


@pytest.mark.parametrize("optimizers", [(plain, plain), (fused, plain), (fused, fused)])
@settings(max_examples=150, deadline=None)
@given(calls=SEQUENCES)
def test_sequences_end_as_torchs(optimizers, calls):
    ours, theirs = Run(GradScaler, optimizers), Run(torch.amp.GradScaler, optimizers)
    for call in (c for group in calls for c in group):
        our_error, their_error = ours.call(*call), theirs.call(*call)
        if their_error is AttributeError:
            return  # torch's own fault: unscale_ without gradients leaves its step a plain 0
        assert our_error == their_error, call
        (our_state, our_tensors), (their_state, their_tensors) = ours.outcome(), theirs.outcome()
        assert our_state == their_state, call
        assert all(map(same, our_tensors, their_tensors)), call
