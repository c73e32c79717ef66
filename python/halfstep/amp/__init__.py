"""Mixed precision: autocast, and the dynamic loss scale.

`from torch.cuda.amp import autocast, GradScaler` becomes `from halfstep.amp import ...`; nothing
else in an old script changes.
"""

from halfstep.amp._autocast import autocast
from halfstep.amp.scaler import GradScaler, StepResult

__all__ = ["GradScaler", "StepResult", "autocast"]
