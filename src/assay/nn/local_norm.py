"""LocalNorm: batch normalisation in groups that have a scale and a shift of their own, with statistics taken anew."""

from __future__ import annotations

import copy
import math
import warnings
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from assay.errors import AssayError, ShapeError
from assay.nn.in_place import InPlace
from assay.nn.members import AT_ONCE, AT_ONCE_GPU, Members, log_mean
from assay.nn.replaced import replaced
from assay.nn.variational import bare

Mode = Literal["single", "single-vote", "batch", "voting"]
ALONE: tuple[Mode, ...] = ("single", "single-vote")
"""The modes in which an answer does not depend on what else is in the batch."""
QUARTERS = 3  # turns of an image by a quarter that give another one


class LocalNorm(nn.Module):
    r"""Normalise each channel by the mean and deviation of its group of inputs, in training and in eval mode alike.

        y = gamma_kc (x - mu_kc) / sqrt(var_kc + eps) + beta_kc,     k = the group of the input, c = the channel

    mu_kc and var_kc are taken over the inputs of group k and all places of the map; there are no running averages. The
    rows of a batch are dealt to the K groups in turn, row p to group p mod K, so that the batch need not be moved in
    memory: (n, c, *d) is seen as (n/K, Kc, *d), whose batch normalisation is this one. Where K does not divide n, the
    first n mod K groups get one row more and come first: their rows in turn, then those of the others in turn.

    `alone` = s > 0 says that in eval mode an input is normalised by itself: of n = s b K rows those of one input stand
    b K apart, s of them (itself and what was made of it), and no others share its statistics. `only` names the first of
    the groups that rows are dealt to in eval mode, and the one after the last. `sent` holds how many rows the net was
    sent in the pass under way: where a layer sees others, as of a net that folds frames or patches into the batch, no
    row tells its group, and that is refused. What sets all three is `LocalNormed`.

    Source: Yin, Scholte and Bohte, ICANN 2021, doi:10.1007/978-3-030-86380-7_20, sec. 3. Departs from print: in print
        groups are blocks of neighbours; `LocalNormed` deals a batch so that they are.

    An input alone whose map is 1 x 1 has one value for each channel: its output is beta whatever it was. That warns.
    """

    weight: nn.Parameter  # k c
    bias: nn.Parameter  # k c

    def __init__(self, channels: int, groups: int, *, eps: float = 1e-5) -> None:
        super().__init__()
        if groups < 1 or channels < 1:
            raise AssayError(f"LocalNorm got channels={channels}, groups={groups}; it wants at least one of each.")
        self.channels, self.groups, self.eps = channels, groups, eps
        self.alone: int = 0
        self.only: tuple[int, int] | None = None
        self.sent: list[int] = []
        self.weight = nn.Parameter(torch.ones(groups, channels))
        self.bias = nn.Parameter(torch.zeros(groups, channels))

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:  # n c *d -> n c *d
        if x.ndim < 2 or x.shape[1] != self.channels:
            raise ShapeError(f"LocalNorm of {self.channels} channels got shape {tuple(x.shape)}; it wants (n, c, ...).")
        alone, only = (0, None) if self.training else (self.alone, self.only)
        first, last = only or (0, self.groups)
        if self.sent and x.shape[0] != self.sent[-1] and (last - first > 1 or alone > 1):
            raise ShapeError(
                f"LocalNorm got {x.shape[0]} rows of a batch of {self.sent[-1]}: the net folds more than its inputs "
                "into the batch, and no row tells its group; use groups=1 and rotations=0, or a row for each input."
            )
        if alone or only is not None:
            shared = alone or max(1, x.shape[0] // (last - first))
            if x.shape[0] % (shared * (last - first)):
                raise ShapeError(
                    f"LocalNorm got {x.shape[0]} rows where {shared} of an input go through {last - first} groups; "
                    "ask the net through LocalNormed."
                )
            return self._normalised(x, shared, first, last)
        if self.training and x.shape[0] < self.groups:
            raise AssayError(
                f"A batch of {x.shape[0]} inputs cannot be split into {self.groups} groups; use groups={x.shape[0]} "
                "or fewer, or larger batches."
            )
        size, longer = divmod(x.shape[0], self.groups)
        if not longer:
            return self._normalised(x, size, 0, self.groups)
        cut = longer * (size + 1)
        parts = [self._normalised(x[:cut], size + 1, 0, longer)]
        if size:
            parts.append(self._normalised(x[cut:], size, longer, self.groups))
        return torch.cat(parts)

    def _normalised(self, x: Tensor, shared: int, first: int, last: int) -> Tensor:  # n c *d -> n c *d
        """`shared` rows have their statistics in common; the groups from `first` to before `last` get rows in turn."""
        others = x.shape[0] // (shared * (last - first))
        weight: Tensor = self.weight
        bias: Tensor = self.bias
        if last - first < self.groups:
            weight, bias = weight[first:last], bias[first:last]
        if others > 1:
            weight, bias = weight.repeat(others, 1), bias.repeat(others, 1)
        weight, bias = weight.view(-1), bias.view(-1)
        if shared * math.prod(x.shape[2:]) == 1:
            warnings.warn(
                "LocalNorm has one value for each channel, an input alone on a map of 1 x 1: its output is the shift "
                "beta and says nothing of the input. Use more inputs to a group, rotations, or larger maps.",
                stacklevel=2,
            )
            return 0 * x + bias.to(x.dtype).reshape(x.shape)
        seen = x.reshape(shared, -1, *x.shape[2:])
        # what F.batch_norm calls, without its check of the size: that was just made, and a small batch waits for it
        out = torch.batch_norm(seen, weight, bias, None, None, True, 0.0, self.eps, torch.backends.cudnn.enabled)
        return out.view_as(x)

    def extra_repr(self) -> str:
        return f"{self.channels}, groups={self.groups}" + (f", alone={self.alone}" if self.alone else "")


class LocalNormed(Members):
    """A net of LocalNorm layers, in training split into groups of neighbours, in eval mode asked in one of four ways.

        single        each input by itself, through one group (`group`)
        single-vote   each input by itself, through all groups
        batch         the batch split into groups of neighbours, as in training
        voting        the batch as one group, through all groups

    The first two answer for an input whatever else is in the batch; the other two answer for the batch. `rotations` (0
    to 3) of an input alone, each a quarter further clockwise, stand beside it for the statistics only. A net that uses
    no more of a map than its mean needs them: that of a map which was normalised by itself is its shift, whatever the
    input. So global pooling may be why print's ResNet answers worse alone than its VGG, for which it has no reason.

    Source: Yin, Scholte and Bohte, ICANN 2021, sec. 3 and 5. Print draws the group of LN-Single at random; no group is
        like no other but by chance, so any one will do, and the answer is not random. Departs from print: opinions of
        several groups are averaged as probabilities, which has a gradient; `majority` is the printed vote. Print turns
        images "along the width- and channel-axis", which has no meaning for their shapes: here by height and width.
    """

    def __init__(
        self, net: nn.Module, groups: int, mode: Mode = "single-vote", *, rotations: int = 0, group: int = 0
    ) -> None:
        super().__init__()
        check(mode, rotations)
        if not 0 <= group < groups:
            raise AssayError(f"LocalNorm got group={group}, which is none of its {groups}; count them from 0.")
        self.net, self.groups, self.mode, self.rotations, self.group = net, groups, mode, rotations, group
        self.put_in = False  # whether the layers were added, in place of none
        self.sent: list[int] = []  # one list, that all layers look into
        for layer in net.modules():
            if isinstance(layer, LocalNorm | LocalNormed):
                layer.sent = self.sent
            if isinstance(layer, LocalNorm):
                layer.alone = 1 + rotations if mode in ALONE else 0
                layer.only = (group, group + 1) if mode == "single" else None

    @property
    def rows_inside(self) -> bool:
        """Whether the layers see the inputs themselves, in their order."""
        return not self.rotations and (self.mode == "single" or self.groups == 1)

    def asked(self, mode: Mode, *, rotations: int = 0, group: int = 0) -> LocalNormed:
        """A copy that is asked in another way."""
        other = LocalNormed(copy.deepcopy(self.net), self.groups, mode, rotations=rotations, group=group)
        return other.train(self.training)

    def members(self, x: Tensor) -> Tensor:  # n *d -> m n *o
        """What each group says; one opinion where each input goes through one group.

        The layers see as many rows at once as draws of a random net are asked for: inputs alone are asked about in
        parts, and a batch that is one group is shown to some of the groups after the others.
        """
        if self.mode == "batch":
            return self._in_blocks(x)[None]
        most = AT_ONCE_GPU if x.is_cuda else AT_ONCE
        if self.mode == "voting":
            count = self.groups if self.training else max(1, most // max(1, x.shape[0]))
            return torch.cat([self._voted(x, k, min(k + count, self.groups)) for k in range(0, self.groups, count)])
        through = 1 if self.mode == "single" else self.groups
        times = through * (1 + self.rotations)
        parts = torch.split(x, max(1, most // times)) if times > 1 else (x,)
        return torch.cat([self._alone(part, through) for part in parts], 1)

    def _alone(self, x: Tensor, through: int) -> Tensor:  # n *d -> m n *o
        rows = x
        if self.rotations:
            if x.ndim < 4 or x.shape[-1] != x.shape[-2]:
                raise ShapeError(
                    f"Inputs of shape {tuple(x.shape[1:])} cannot be turned by a quarter; use rotations=0, or square "
                    "images."
                )
            rows = torch.cat([torch.rot90(x, -quarters, (-2, -1)) for quarters in range(self.rotations + 1)])
        each = self._asked(rows.repeat_interleave(through, 0))[: through * x.shape[0]]
        return each.reshape(x.shape[0], through, *each.shape[1:]).transpose(0, 1)

    def _voted(self, x: Tensor, first: int, last: int) -> Tensor:  # n *d -> m n *o
        """The batch as one group, through the groups from `first` to before `last`."""
        layers = [layer for layer in self.net.modules() if isinstance(layer, LocalNorm)]
        for layer in layers:
            layer.only = (first, last)
        try:
            each = self._asked(x.repeat_interleave(last - first, 0))
        finally:
            for layer in layers:
                layer.only = None
        return each.reshape(x.shape[0], last - first, *each.shape[1:]).transpose(0, 1)

    def forward(self, x: Tensor) -> Tensor:  # n *d -> n *o
        if self.training:
            return self._in_blocks(x)
        each = self.members(x)
        return each[0] if len(each) == 1 else log_mean(each)

    def _in_blocks(self, x: Tensor) -> Tensor:  # n *d -> n *o
        """The net's answer where neighbours are a group: the layers deal rows out in turn, so they are put that way."""
        size, longer = divmod(x.shape[0], self.groups)
        if not longer:
            told = self._asked(x.view(self.groups, size, *x.shape[1:]).transpose(0, 1).flatten(0, 1))
            return told.view(size, self.groups, *told.shape[1:]).transpose(0, 1).flatten(0, 1)
        cut = longer * (size + 1)
        place = torch.arange(x.shape[0], device=x.device)
        blocks = place[:cut].view(longer, size + 1), place[cut:].view(self.groups - longer, size)
        order = torch.cat([block.T.flatten() for block in blocks])
        return self._asked(x[order])[order.argsort()]

    def _asked(self, rows: Tensor) -> Tensor:  # n *d -> n *o
        """What the net says of these rows, of which its layers are told how many there are."""
        self.sent.append(rows.shape[0])
        try:
            out: Tensor = self.net(rows)
        finally:
            self.sent.pop()
        return out

    def extra_repr(self) -> str:
        return f"groups={self.groups}, mode={self.mode}, rotations={self.rotations}"


def check(mode: Mode, rotations: int) -> None:
    """Refuse a way to be asked that there is not."""
    if mode not in get_args(Mode):
        raise AssayError(f"LocalNorm has no mode={mode!r}; it is one of {', '.join(get_args(Mode))}.")
    if not 0 <= rotations <= QUARTERS:
        raise AssayError(f"rotations={rotations} are no turns by a quarter; give 0 to {QUARTERS}.")
    if rotations and mode not in ALONE:
        raise AssayError(
            f"rotations={rotations} are for an input alone, and mode={mode!r} asks a batch; leave one out."
        )


def norms(net: nn.Module) -> int:
    """How many batch normalisations of a network are modules, which can be replaced."""
    return sum(isinstance(module, _BatchNorm) for module in net.modules())


def with_local_norm(net: nn.Module, groups: int, mode: Mode = "single-vote", *, rotations: int = 0) -> LocalNormed:
    """A copy of `net` with LocalNorm where it has batch normalisation, gamma_k = gamma and beta_k = beta in each group.

    Where it has none, LocalNorm is put behind every convolution, with a scale of 1 and a shift of 0. What is frozen
    stays frozen. With one group, mode "batch" is batch normalisation on the statistics of the batch at hand ("dynamic
    batch normalisation").

    Source: Yin, Scholte and Bohte, ICANN 2021, sec. 3, "Implementation".
    """

    seen = set[nn.Module]()

    def in_place_of(module: nn.Module) -> nn.Module | None:
        if not isinstance(module, _BatchNorm):
            return None
        # without a scale of its own it is as its running mean is, or as the net's weights are
        like = (t for t in (module.weight, module.running_mean, *net.parameters()) if isinstance(t, Tensor))
        local = LocalNorm(module.num_features, groups, eps=module.eps).to(next(like, torch.empty(0)))
        for ours, theirs in ((local.weight, module.weight), (local.bias, module.bias)):
            if isinstance(theirs, Tensor):  # else it has no scale
                ours.data = theirs.detach().clone().repeat(groups, 1)
                ours.requires_grad_(theirs.requires_grad)
        return local.train(module.training)

    def behind(module: nn.Module) -> nn.Module | None:
        layer = bare(module)
        if not isinstance(layer, _ConvNd) or module in seen:
            return None
        seen.add(layer)
        local = LocalNorm(layer.out_channels, groups).to(layer.weight)
        return InPlace(module, local, layer=module).train(module.training)

    own = norms(net) > 0
    made = replaced(net, in_place_of if own else behind, "batch normalisation and no convolution")
    local = LocalNormed(made, groups, mode, rotations=rotations).train(net.training)
    local.put_in = not own
    return local


def majority(each: Tensor, rng: torch.Generator) -> Tensor:  # m n c -> n
    """The class that most members say; of several that are said as often, one at random."""
    votes = F.one_hot(each.argmax(-1), each.shape[-1]).sum(0)  # n c
    tie = torch.rand(votes.shape, generator=rng, device=rng.device).to(votes.device)
    return (votes + tie / 2).argmax(-1)
