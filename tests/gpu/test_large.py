"""More than 2^31 elements: the tail must be right, and indices must not wrap."""

import pytest
import torch

import halfstep as hs
from halfstep._ops import adamw
from tests import reference
from tests.helpers import normal, to64
from tests.tolerances import check

COUNT = 2**31 + 64
TAIL = 4096
pytestmark = pytest.mark.slow


def need(gigabytes):
    free, _ = torch.cuda.mem_get_info()
    if free < gigabytes * 2**30:
        pytest.skip(f"needs {gigabytes} GiB of GPU memory, {free / 2**30:.0f} are free")


@pytest.fixture
def x():
    need(14)
    x = torch.zeros(COUNT, dtype=torch.bfloat16, device="cuda")
    x[:TAIL] = normal(0, (TAIL,), "bfloat16", "cuda")
    x[-TAIL:] = normal(1, (TAIL,), "bfloat16", "cuda")
    yield x
    torch.cuda.empty_cache()


def test_act(x):
    y = hs.functional.gelu(x)
    for part in (slice(0, TAIL), slice(COUNT - TAIL, COUNT)):
        check("y", y[part], reference.act(to64(x[part]), "gelu"), 2.0**-9)
    assert not y[TAIL:-TAIL].any()


def test_dropout(x):
    y = hs.functional.dropout(x.fill_(1), 0.5, state=(3, 4))
    words = reference.philox(3, 4, torch.arange(TAIL // 4).numpy() + (COUNT - TAIL) // 4)
    kept = words.reshape(-1) >= 2**31
    assert torch.equal(y[-TAIL:].cpu() != 0, torch.from_numpy(kept))
    first = reference.dropout_kept(TAIL, 0.5, 3, 4)
    assert torch.equal(y[:TAIL].cpu() != 0, torch.from_numpy(first))


def test_layer_norm(x):
    cols = 64
    y = hs.functional.layer_norm(x.view(-1, cols), (cols,))
    expected = reference.layer_norm(to64(x[-TAIL:]).reshape(-1, cols))
    check("y", y[-(TAIL // cols) :], expected, 2.0**-8)


def test_cross_entropy(x):
    classes = 2**15 + 1
    rows = COUNT // classes
    logits, t = x[: rows * classes].view(rows, classes), torch.arange(rows, device="cuda") % classes
    with torch.no_grad():
        loss = hs.functional.cross_entropy(logits, t, reduction="none")
    expected = reference.cross_entropy(to64(logits[-2:]), to64(t[-2:]), reduction="none")
    check("loss", loss[-2:], expected, 1e-5)


def test_adamw():
    need(36)
    count = 2**31 + 64
    p, m, v = (torch.zeros(count, device="cuda") for _ in range(3))
    g = torch.ones(count, dtype=torch.bfloat16, device="cuda")
    step = torch.zeros((), device="cuda")
    adamw.step([p], [g], [m], [v], [step], None, None, None, None, 0.5, 0.9, 0.99, 1e-8, 0.0, False)
    assert step.item() == 1
    for part in (p[:TAIL], p[-TAIL:]):
        check("p", part, torch.full((TAIL,), -0.5).numpy(), 1e-6)
    del p, m, v, g
    torch.cuda.empty_cache()
