"""Thirty steps beside plain torch, and a run that is saved, loaded and goes on as before."""

import io

import pytest
import torch
from torch import nn

import halfstep as hs
from halfstep import _C

STEPS = 30


class Net(nn.Module):
    """A residual network of every layer that accelerate replaces."""

    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(12, 32)
        self.norms = nn.ModuleList([nn.LayerNorm(32) for _ in range(2)])
        self.mlps = nn.ModuleList(
            [
                nn.Sequential(nn.Linear(32, 48), activation, nn.Linear(48, 32))
                for activation in (nn.GELU(), nn.SiLU())
            ]
        )
        self.leave = nn.Linear(32, 5)

    def forward(self, x):
        x = self.enter(x)
        for norm, mlp in zip(self.norms, self.mlps, strict=True):
            x = x + mlp(norm(x))
        return self.leave(x)


class Loop:
    """The loop of a training script; ours: with halfstep's parts."""

    def __init__(self, ours):
        torch.manual_seed(0)
        self.model, self.loss_fn = Net(), nn.CrossEntropyLoss(label_smoothing=0.1)
        if ours:
            hs.accelerate(self.model)
            hs.accelerate(self.loss_fn)
        optim, amp = (hs.optim, hs.amp) if ours else (torch.optim, torch.amp)
        self.optimizer = optim.AdamW(self.model.parameters(), lr=3e-3, weight_decay=0.1)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, STEPS)
        self.scaler = amp.GradScaler("cpu", growth_interval=7)

    def parts(self):
        return {
            "model": self.model,
            "optimizer": self.optimizer,
            "schedule": self.schedule,
            "scaler": self.scaler,
        }

    def save(self):
        file = io.BytesIO()
        torch.save({name: part.state_dict() for name, part in self.parts().items()}, file)
        file.seek(0)
        return file

    def load(self, file):
        states = torch.load(file, weights_only=True)
        for name, part in self.parts().items():
            part.load_state_dict(states[name])

    def run(self, first, last):
        losses = []
        for step in range(first, last):
            generator = torch.Generator().manual_seed(step)
            x = torch.randn(24, 12, generator=generator)
            y = x[:, :5].argmax(1)
            loss = self.loss_fn(self.model(x), y)
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()
            self.schedule.step()
            losses.append(loss.item())
        return losses


def test_thirty_steps_beside_torch():
    plain, ours = Loop(ours=False), Loop(ours=True)
    assert hs.report(ours.model).counts == {"Linear": 6, "LayerNorm": 2, "Sequential": 2}
    expected = plain.run(0, STEPS)
    before = _C.calls()
    actual = ours.run(0, STEPS)
    calls = {name: count - before[name] for name, count in _C.calls().items()}
    for name, per_step in {
        "norm_forward": 2,
        "norm_backward": 2,
        "act_forward": 2,
        "act_backward": 6,
        "xent_forward": 1,
        "xent_backward": 1,
        "scaler_check": 1,
        "adamw": 1,
        "scaler_update": 1,
    }.items():
        assert calls[name] == STEPS * per_step, name
    assert expected[-1] < 0.8 * expected[0]
    assert actual == pytest.approx(expected, rel=1e-4)
    assert ours.scaler.get_scale() == plain.scaler.get_scale() == 2.0**20


@pytest.mark.parametrize("middle", [1, 13])
def test_saved_and_loaded_it_goes_on_as_before(middle):
    whole = Loop(ours=True)
    expected = whole.run(0, STEPS)
    first = Loop(ours=True)
    first.run(0, middle)
    second = Loop(ours=True)
    second.load(first.save())
    assert second.run(middle, STEPS) == expected[middle:]
    for p, q in zip(second.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("ours_first", [True, False])
def test_a_checkpoint_goes_on_in_the_other_library(ours_first):
    first, second = Loop(ours_first), Loop(not ours_first)
    expected = Loop(ours=False).run(0, STEPS)
    first.run(0, 13)
    second.load(first.save())
    assert second.run(13, STEPS) == pytest.approx(expected[13:], rel=1e-4)


def test_restored_in_the_middle():
    loop, expected = Loop(ours=True), Loop(ours=False).run(0, STEPS)
    loop.run(0, 13)
    hs.restore(loop.model)
    assert hs.report(loop.model).counts == {}
    assert loop.run(13, STEPS) == pytest.approx(expected[13:], rel=1e-4)
