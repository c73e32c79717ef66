"""The demo's data and model: handwritten digits, a small vision transformer of plain modules."""

import torch
from torch import nn
from torch.nn import functional as F

SIDE, PATCH, CLASSES = 8, 2, 10
MEAN, DEVIATION = 4.884, 6.017  # of all pixels, which are 0 to 16
TOKENS = (SIDE // PATCH) ** 2
DEPTH, WIDTH, HEADS, HIDDEN = 3, 64, 4, 128

# What hs.accelerate must find: qkv, proj and two Linear of the MLP in each block, patches and head;
# two norms in each block and the last; the MLP of each block; the loss.
SWAPS = {"Linear": 14, "LayerNorm": 7, "Sequential": 3, "CrossEntropyLoss": 1}


def load_digits(device, test_share=0.2, seed=0):
    """scikit-learn's 1,797 digits of 8 x 8 pixels: (train x, y), (test x, y) on device."""
    from sklearn.datasets import load_digits as load

    digits = load()
    x = (torch.tensor(digits.images, dtype=torch.float32) - MEAN) / DEVIATION
    y = torch.tensor(digits.target, dtype=torch.int64)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    x, y = x[order].to(device), y[order].to(device)
    count = round(len(x) * test_share)
    return (x[count:], y[count:]), (x[:count], y[:count])


class Block(nn.Module):
    """Attention and an MLP, each behind a LayerNorm and beside a residual connection."""

    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH))

    def forward(self, x):
        n, tokens, _ = x.shape
        heads = self.qkv(self.norm1(x)).view(n, tokens, 3, HEADS, WIDTH // HEADS)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(attended.transpose(1, 2).reshape(n, tokens, WIDTH))
        return x + self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    """Dosovitskiy et al., "An image is worth 16x16 words" (2021), with the mean of all tokens."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Linear(PATCH * PATCH, WIDTH)
        self.positions = nn.Parameter(0.2 * torch.randn(TOKENS, WIDTH))
        self.blocks = nn.ModuleList([Block() for _ in range(DEPTH)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, images):
        n, grid = len(images), SIDE // PATCH
        cells = images.view(n, grid, PATCH, grid, PATCH).transpose(2, 3)
        x = self.patches(cells.reshape(n, TOKENS, PATCH * PATCH)) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))
