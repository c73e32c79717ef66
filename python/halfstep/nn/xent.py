"""Cross entropy as a module."""

from torch import nn

from halfstep.functional.xent import cross_entropy


class CrossEntropyLoss(nn.CrossEntropyLoss):
    """torch.nn.CrossEntropyLoss with the same arguments, plus z_loss and all_ignored.

    The loss is float32, also for 16-bit logits. Shapes, dtypes, options and errors:
    halfstep.functional.cross_entropy.
    """

    z_loss = 0.0
    all_ignored = "nan"

    def __init__(
        self,
        weight=None,
        size_average=None,
        ignore_index=-100,
        reduce=None,
        reduction="mean",
        label_smoothing=0.0,
        *,
        z_loss=0.0,
        all_ignored="nan",
    ):
        super().__init__(weight, size_average, ignore_index, reduce, reduction, label_smoothing)
        self.z_loss = z_loss
        self.all_ignored = all_ignored

    def forward(self, input, target):
        return cross_entropy(
            input,
            target,
            self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
            z_loss=self.z_loss,
            all_ignored=self.all_ignored,
        )
