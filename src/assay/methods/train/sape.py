r"""Train the three branches of SAPE at once, on one loss each, under weights that are given or learned.

    L_s = CE of the whole,   L_h = sum over stripes of CE,   L_p = CE of what lies at the key points
    L   = sum_i w_i L_i      or, where no weights are given, that of `TaskWeights`

Half of each batch is erased in a block of one grey; a key point under it is not seen, so that its confidence is SHY.

Source: Yang et al., ICANN 2021, sec. 3.2 to 3.4; random erasing after Zhong et al., AAAI 2020, arXiv:1708.04896. Print
    also mirrors, and names neither optimiser nor rate: Adam here, whose rate falls to 0 along a cosine.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.errors import ShapeError
from assay.methods.retrieve.parts import covered
from assay.methods.train.balanced import balanced
from assay.methods.train.task_weights import TaskWeights
from assay.nn.heat_maps import heat_maps
from assay.nn.sape import Branches, Sape

SURE, SHY = 0.9, 0.1
"""The confidence of a key point that is seen, and of one that is not."""
AT_LEAST = 0.2  # lambda


def behind(
    x: Tensor, points: Tensor, visible: float, where: Tensor, grey: float
) -> tuple[Tensor, Tensor]:  # n c h w, n q 2, n 2 -> n c h w, n q
    """Images behind a block, and the confidences of their key points: SHY under it and beyond the edge, else SURE."""
    if points.ndim != 3 or len(points) != len(x):
        raise ShapeError(f"{len(x)} images with key points of shape {tuple(points.shape)}; give n q 2.")
    h, w = x.shape[2:]
    clear = covered(torch.ones_like(x[:, :1]), visible, where, 0.0)[:, 0]  # n h w
    row, column = points.floor().long().unbind(-1)
    inside = (row >= 0) & (row < h) & (column >= 0) & (column < w)
    at = clear.flatten(1).gather(1, row.clamp(0, h - 1) * w + column.clamp(0, w - 1))
    return covered(x, visible, where, grey), torch.where(inside & (at > 0), SURE, SHY)


def look(net: Sape, x: Tensor, points: Tensor, sure: Tensor, at_least: float = AT_LEAST) -> Branches:
    """What the branches see of images with their key points."""
    image = (x.shape[2], x.shape[3])
    seen: Branches = net(x, heat_maps(points, sure, image, net.attention.size, at_least=at_least))
    return seen


def losses_of(seen: Branches, heads: Sequence[nn.Linear], y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """L_s, L_h and L_p; heads in the order of the whole, the stripes, the pose."""
    spatial, *parts, pose = (
        F.cross_entropy(head(f), y) for head, f in zip(heads, (seen.spatial, *seen.stripes, seen.pose), strict=True)
    )
    return spatial, torch.stack(parts).sum(), pose


def teach(
    net: Sape,
    x: Tensor,
    y: Tensor,
    points: Tensor,
    *,
    weights: Sequence[float] | None,
    steps: int,
    each: int,
    lr: float,
    rng: torch.Generator,
    visible: float = 0.8,
) -> Tensor:  # n c h w, n, n q 2 -> 3
    """Train on persons y, `each` of every person in a batch; what each loss counts in the end. None: learned weights.

    x, y, points and the net lie on one device; the net is left in evaluation mode, and its classifiers are thrown away.
    """
    persons, y = torch.unique(y, return_inverse=True)
    order = balanced(torch.zeros_like(y), y, each=each)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(torch.randint(2**31, (), generator=rng)))
        sizes = [net.channels] * (net.count + 2)
        heads = nn.ModuleList(nn.Linear(size, len(persons)) for size in sizes).to(x.device)
    weighed = TaskWeights(3).to(x.device)
    fixed = None if weights is None else torch.tensor(list(weights), device=x.device)
    optimiser = torch.optim.Adam([*net.parameters(), *heads.parameters(), *weighed.parameters()], lr=lr)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    net.train()
    done = 0
    while done < steps:
        for index in order(rng)[: steps - done]:
            at = index.to(x.device)
            where = torch.rand(len(at), 2, generator=rng).to(x.device)
            grey = float(torch.rand((), generator=rng))
            erased, sure = behind(x[at], points[at], visible, where, grey)
            whole = (torch.rand(len(at), generator=rng) < 0.5).to(x.device)
            shown = torch.where(whole[:, None, None, None], x[at], erased)
            seen = look(net, shown, points[at], torch.where(whole[:, None], SURE, sure))
            losses = losses_of(seen, list(heads), y[at])  # type: ignore[arg-type]
            total = weighed(losses) if fixed is None else (fixed * torch.stack(losses)).sum()
            optimiser.zero_grad()
            torch.autograd.backward(total)
            optimiser.step()
            falling.step()
            done += 1
    net.eval()
    return weighed.weights if fixed is None else fixed
