"""A zero is no eight because its middle bar is empty: an explanation should be able to say so.

    python examples/pertinent_negatives.py docs/pertinent-negatives.png

A small network learns seven-segment digits. Greedy-AS picks the pixels that decide whether a zero stays a zero, and the
dark middle bar is among them. Leave-one-out with a reference of 0 sets one pixel to 0 at a time: for a pixel that is 0
already nothing changes, so it can never say that an absence matters.
"""

from __future__ import annotations

import sys

import matplotlib as mpl
import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

from assay.data.arrays import Arrays
from assay.methods.explain.greedy import robust_features
from assay.methods.explain.groups import pixels
from assay.methods.train.fit import fit

BARS = (  # rows and columns of a 9 x 5 picture: top, upper left and right, middle, lower left and right, bottom
    (slice(0, 1), slice(1, 4)), (slice(1, 4), slice(0, 1)), (slice(1, 4), slice(4, 5)), (slice(4, 5), slice(1, 4)),
    (slice(5, 8), slice(0, 1)), (slice(5, 8), slice(4, 5)), (slice(8, 9), slice(1, 4)),
)  # fmt: skip
LIT = ("1110111", "0010010", "1011101", "1011011", "0111010", "1101011", "1101111", "1010010", "1111111", "1111011")
MIDDLE = BARS[3]


def digit(k: int) -> Tensor:  # -> 1 9 5
    plane = torch.zeros(1, 9, 5)
    for bar, lit in zip(BARS, LIT[k], strict=True):
        plane[0][bar] = float(lit)
    return plane


def reader() -> nn.Module:
    """Reads seven-segment digits, learnt from noisy ones."""
    rng = torch.Generator().manual_seed(0)
    clean = torch.stack([digit(k) for k in range(10)])
    y = torch.randint(10, (2000,), generator=rng)
    x = (clean[y] + 0.4 * torch.randn(2000, 1, 9, 5, generator=rng)).clamp(0, 1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(45, 32), nn.ReLU(), nn.Linear(32, 10))
    fit(model, Arrays(x, y), epochs=8, lr=0.01, optimiser="adam", rng=rng)
    return model.eval().requires_grad_(False)


def leave_one_out(model: nn.Module, x: Tensor, y: int) -> Tensor:  # 1 9 5 -> 9 5
    """By how much the logit of y falls where one pixel is set to 0."""
    rows = torch.cat([x.flatten()[None], x.flatten() * (1 - torch.eye(x.numel()))])  # in one batch: rounded alike
    logit = model(rows.view(-1, 1, 9, 5))[:, y]
    return (logit[0] - logit[1:]).view(9, 5)


def main(out: str) -> None:
    model, x = reader(), digit(0)
    decides = robust_features(model, x, criterion="s_r_bar", groups=pixels((1, 9, 5)), size=6, samples=300)
    maps = {
        "a zero": (x[0], "gray"),
        "Greedy-AS: the pixels that decide": (decides.map[0], "viridis"),
        "leave-one-out, reference 0": (leave_one_out(model, x, 0).abs(), "viridis"),
    }
    mpl.use("Agg")
    figure, places = plt.subplots(1, 3, figsize=(8, 4.2))
    for place, (title, (values, colours)) in zip(places, maps.items(), strict=True):
        drawn = place.imshow(values, cmap=colours, vmin=0)
        place.set_title(title, fontsize=10)
        place.set_xticks([])
        place.set_yticks([])
        place.add_patch(plt.Rectangle((0.5, 3.5), 3, 1, fill=False, edgecolor="#d55e00", linewidth=2))
        if colours != "gray":
            figure.colorbar(drawn, ax=place, shrink=0.7)
    figure.suptitle("The empty middle bar (framed) is why it is a zero and not an eight")
    figure.tight_layout()
    figure.savefig(out, dpi=110)
    for title, (values, _) in list(maps.items())[1:]:
        ranks = (values.flatten() > values[MIDDLE].min()).sum()
        print(f"{title}: the middle bar gets {values[MIDDLE].flatten().tolist()}; {int(ranks)} pixels rank above it")
    print(f"wrote {out}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "pertinent-negatives.png")
