"""The dynamic loss scale, kept and moved on the device."""

import inspect
import warnings
from functools import lru_cache, wraps
from numbers import Real

import torch
from torch.amp.grad_scaler import OptState

from halfstep._ops import scaler as op
from halfstep._ops.layout import may_overlap
from halfstep.amp import _checks

_INIT_SCALE = 2.0**16
# Between these a float32 scale and 1 / scale are both normal numbers.
_MIN_SCALE, _MAX_SCALE = 2.0**-126, 2.0**126


class StepResult:
    """What became of one GradScaler.step. Reading applied, skipped or reason waits for the device.

    value: what optimizer.step returned; None for a step that GradScaler itself left out.
    """

    def __init__(self, found_inf, value):
        self._found_inf = found_inf
        self.value = value

    @property
    def skipped(self):
        """Whether a gradient was inf or NaN, so that nothing was updated."""
        if isinstance(self._found_inf, torch.Tensor):
            self._found_inf = bool(self._found_inf.item())
        return self._found_inf

    @property
    def applied(self):
        """Whether the parameters were updated."""
        return not self.skipped

    @property
    def reason(self):
        """Why the step was skipped; None when it was applied."""
        return "a gradient is inf or NaN" if self.skipped else None

    def __repr__(self):
        if isinstance(self._found_inf, torch.Tensor):
            return "StepResult(.applied waits for the GPU)"
        return f"StepResult(applied={self.applied}, reason={self.reason!r})"


def _takes_old_order(init):
    """torch.cuda.amp.GradScaler's arguments begin with init_scale: a number gets its device."""

    @wraps(init)
    def wrapper(self, *args, **kwargs):
        if args and isinstance(args[0], Real):
            args = ("cuda", *args)
        init(self, *args, **kwargs)

    return wrapper


class GradScaler(torch.amp.GradScaler):
    """torch.amp.GradScaler without waits for the device, and with limits for the scale.

    Micikevicius et al., "Mixed precision training" (2018).

    device: "cuda" (default) or "cpu". Without CUDA, "cuda" becomes "cpu" with a warning, and the
        scaler stays active. With a number in its place the arguments are those of
        torch.cuda.amp.GradScaler, which has no device: init_scale, growth_factor and so on.
    init_scale, growth_factor, backoff_factor, growth_interval, enabled: as torch's.
    min_scale, max_scale: the scale stays between them; the defaults, 2**-126 and 2**126, keep
        scale and 1 / scale finite and are otherwise out of reach.

    Gradients may be of any floating dtype. A step does not wait with halfstep's optimizers
    and with torch's fused ones; with others it waits once, as torch's does.

    Raises ValueError and TypeError for arguments, RuntimeError for calls out of order, and
    AssertionError where torch's does: for a step or an update without scaled gradients.
    """

    @_takes_old_order
    def __init__(
        self,
        device="cuda",
        init_scale=_INIT_SCALE,
        growth_factor=2.0,
        backoff_factor=0.5,
        growth_interval=2000,
        enabled=True,
        *,
        min_scale=_MIN_SCALE,
        max_scale=_MAX_SCALE,
    ):
        kind = str(device).partition(":")[0]
        if kind not in ("cuda", "cpu"):
            raise ValueError(f"GradScaler: device is {device!r}, expected 'cuda' or 'cpu'")
        if enabled:
            _checks.check_limits(min_scale, max_scale)
            _checks.check_scale("init_scale", init_scale, min_scale, max_scale)
            _checks.check_rule("GradScaler", growth_factor, backoff_factor, growth_interval)
        if enabled and kind == "cuda" and not torch.cuda.is_available():
            warnings.warn(
                "GradScaler: CUDA is not available, the loss scale is kept on the CPU", stacklevel=3
            )
            kind = "cpu"
        super().__init__(kind, init_scale, growth_factor, backoff_factor, growth_interval, enabled)
        self._min_scale, self._max_scale = float(min_scale), float(max_scale)
        self._skipped_before = 0  # steps skipped before _skipped_count, e.g. before pickling
        self._skipped_count = None

    @property
    def skipped_steps(self):
        """How many optimizer steps were skipped so far. Reading it waits for the device."""
        if self._skipped_count is None:
            return self._skipped_before
        return self._skipped_before + int(self._skipped_count.item())

    def unscale_(self, optimizer):
        """Divides the gradients of optimizer by the scale, and looks for inf and NaN in them.

        Needed only before something reads the gradients, such as clipping; step() does it else.
        """
        if not self._enabled:
            return
        _checks.check_optimizer("unscale_", optimizer)
        scale, _ = self._check_scale_growth_tracker("unscale_")
        state = self._state_of(optimizer, "unscale_")
        if state["stage"] is OptState.UNSCALED:
            raise RuntimeError(
                f"GradScaler.unscale_: called twice for {_name(optimizer)} since the last update()"
            )
        state["found_inf_per_device"] = self._check(optimizer, scale)
        state["stage"] = OptState.UNSCALED

    def step(self, optimizer, *args, **kwargs):
        """Unscales, and steps the optimizer unless a gradient is inf or NaN.

        args, kwargs: for optimizer.step; a closure is not supported. Returns a StepResult.
        """
        if not self._enabled:
            return StepResult(False, optimizer.step(*args, **kwargs))
        _checks.check_optimizer("step", optimizer)
        if kwargs.get("closure") is not None or any(callable(a) for a in args):
            raise RuntimeError(
                "GradScaler.step: closure is given, which works only with enabled=False: "
                "it would make gradients that were not checked"
            )
        self._check_scale_growth_tracker("step")
        state = self._state_of(optimizer, "step")
        if getattr(optimizer, "_step_supports_amp_scaling", False):
            result = self._step_on_device(optimizer, state, args, kwargs)
        else:
            result = self._step_after_wait(optimizer, state, args, kwargs)
        state["stage"] = OptState.STEPPED
        return result

    def update(self, new_scale=None):
        """Moves the scale after the steps of one iteration; it does not wait for the device.

        new_scale: a number or a one-element tensor to use instead. A tensor is brought between
        min_scale and max_scale; where it is NaN, 0 or negative the scale stays as it is.
        """
        if not self._enabled:
            return
        scale, growth_tracker = self._check_scale_growth_tracker("update")
        if new_scale is not None:
            self._set_scale(scale, new_scale)
        else:
            found = self._combine(
                found_inf
                for state in self._per_optimizer_states.values()
                for found_inf in state["found_inf_per_device"].values()
            )
            if found is None:
                raise AssertionError("GradScaler.update: no gradients were checked before it")
            op.update(
                scale,
                growth_tracker,
                found,
                self._growth_factor,
                self._backoff_factor,
                self._growth_interval,
                self._min_scale,
                self._max_scale,
            )
        self._per_optimizer_states.clear()

    def load_state_dict(self, state_dict):
        """Takes a state_dict of torch.amp.GradScaler too.

        A scale outside min_scale and max_scale, such as an infinite one, is brought between them.
        Raises ValueError and TypeError for what the constructor would not take, and a NaN scale.
        """
        if self._enabled and state_dict:
            state_dict = _checks.check_state(state_dict, self._min_scale, self._max_scale)
        super().load_state_dict(state_dict)

    def __getstate__(self):
        return {
            **super().__getstate__(),
            "_skipped_before": self.skipped_steps,
            "_skipped_count": None,
        }

    def _state_of(self, optimizer, function):
        state = self._per_optimizer_states[id(optimizer)]
        if state["stage"] is OptState.STEPPED:
            raise RuntimeError(
                f"GradScaler.{function}: called after step() for {_name(optimizer)}, "
                "expected update() between"
            )
        return state

    def _step_on_device(self, optimizer, state, args, kwargs):
        """The optimizer reads scale and found_inf on the device and skips by itself."""
        if _takes_scaler(type(optimizer)):
            value = optimizer.step(*args, **kwargs, grad_scaler=self)
            return self._result(self._combine(state["found_inf_per_device"].values()), value)
        own = given = getattr(optimizer, "grad_scale", None)  # a scale of the user's own
        if state["stage"] is OptState.READY:
            self._check_inf_per_device(optimizer)
            given = self._scale if given is None else self._scale * given
        found_inf = self._combine(state["found_inf_per_device"].values())
        if found_inf is None:  # there are no gradients, so nothing to skip
            found_inf = torch.zeros_like(self._scale)
        if own is not None:  # by a scale that is of no use the optimizer skips too
            usable = (given > 0) & given.isfinite()
            found_inf = torch.maximum(found_inf, _on(found_inf.device, ~usable).float().squeeze())
        optimizer.grad_scale, optimizer.found_inf = given, found_inf
        try:
            value = optimizer.step(*args, **kwargs)
        finally:
            del optimizer.grad_scale, optimizer.found_inf
        return self._result(found_inf, value)

    def _step_after_wait(self, optimizer, state, args, kwargs):
        if state["stage"] is OptState.READY:
            self.unscale_(optimizer)
        found_inf = self._combine(state["found_inf_per_device"].values())
        if found_inf is None:
            raise AssertionError(f"GradScaler.step: {_name(optimizer)} has no gradients to check")
        value = None if found_inf.item() else optimizer.step(*args, **kwargs)
        return self._result(found_inf, value)

    def _check_inf_per_device(self, optimizer):
        """Looks for inf and NaN only. Optimizers that unscale by themselves call it in torch's."""
        self._check_scale_growth_tracker("_check_inf_per_device")
        found = self._per_optimizer_states[id(optimizer)]["found_inf_per_device"] = self._check(
            optimizer, None
        )
        return found

    def _check(self, optimizer, scale):
        """found_inf by device, with one call each; a scale is divided out of the gradients."""
        found = {}
        for device, grads in _gradients(optimizer).items():
            found[device] = torch.zeros((), dtype=torch.float32, device=device)
            op.check(grads, None if scale is None else _on(device, scale), found[device])
        return found

    def _result(self, found_inf, value):
        """Counts the step when it was skipped. found_inf is None when nothing was checked."""
        if found_inf is None:
            return StepResult(False, value)
        if self._skipped_count is None:
            self._skipped_count = torch.zeros_like(found_inf)
        self._skipped_count += found_inf
        return StepResult(found_inf, value)

    def _combine(self, found_infs):
        """One found_inf of 0 or 1 on the scale's device; None when there are none."""
        there = [_on(self._scale.device, f) for f in found_infs]
        if len(there) < 2:
            return there[0] if there else None
        return torch.stack(there).amax()

    def _set_scale(self, scale, new_scale):
        if not isinstance(new_scale, torch.Tensor):
            _checks.check_scale("new_scale", new_scale, self._min_scale, self._max_scale)
            scale.fill_(new_scale)
            return
        _checks.check_new_scale(new_scale)
        new = _on(scale.device, new_scale.reshape(())).float()
        kept = torch.where(new > 0, new.clamp(self._min_scale, self._max_scale), scale)
        scale.copy_(kept)


@lru_cache(maxsize=32)
def _takes_scaler(optimizer_type):
    """Whether step has the keyword by which apex's optimizers get the scaler itself."""
    return "grad_scaler" in inspect.signature(optimizer_type.step).parameters


def _gradients(optimizer):
    """The gradients of all parameters by device; of a sparse one, its values."""
    by_device = {}
    for group in optimizer.param_groups:
        for p in group["params"]:
            g = p.grad
            if g is None:
                continue
            if g.is_sparse:
                if not g.is_coalesced():  # the sum of duplicates may overflow
                    p.grad = g = g.coalesce()
                g = g._values()
            elif not g.is_contiguous() and may_overlap(g):
                p.grad = g = g.contiguous()
            by_device.setdefault(g.device, []).append(g)
    return by_device


def _on(device, scalar):
    return scalar.to(device, non_blocking=device.type != "cpu")


def _name(optimizer):
    return type(optimizer).__name__
