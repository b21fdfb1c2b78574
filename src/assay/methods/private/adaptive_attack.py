"""An attacker that adapts: retrained from scratch on the images as they are and on all manipulated ones it has seen.

A defence that fools an attacker who does not know of it hides nothing. So each round is measured twice: what the
attackers of the round before make of the newly manipulated test images, and what attackers make of them who were
trained anew on manipulated training images. A defence is judged by the second alone, and by the best of them: those
with a memory play the game, and beside them some are taught the latest manipulation alone, for as long as their loss on
images kept back falls. A lesson too short, or spread over all that was ever seen, would look like privacy.

Source: Fuhl, Bozkir and Kasneci, ICANN 2021, sec. 2, fig. 2 and table 2.
Departs from print: of each batch a share (`newest`) is of the latest manipulation, however large the memory has grown;
    drawn evenly, a memory of twenty rounds would hold the attacker off by being large, and look like privacy.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Generator, Tensor, nn

from assay.errors import AssayError
from assay.methods.train.fit import fit

Make = Callable[[Generator], nn.Module]  # a network with new random weights
Labels = tuple[Tensor, Tensor]  # what is to be kept and what is to be hidden: n, n
AT_ONCE = 512
KEPT_BACK = 5  # one of so many images


class Memory:
    """What the attackers have seen: training images as they are (n *d), and each manipulation of them.

    A row is a place in the training set and nothing else can be seen, so that no test image comes in.
    """

    def __init__(self, images: Tensor, labels: Labels) -> None:
        if any(len(each) != len(images) for each in labels):
            raise AssayError(f"{len(images)} images have {[len(each) for each in labels]} labels; give one of each.")
        self.labels = labels
        self.seen = [images]

    def see(self, manipulated: Tensor) -> None:  # n *d
        """The same training images after a manipulation, in the same order."""
        if manipulated.shape != self.seen[0].shape:
            raise AssayError(
                f"The memory holds {len(self.seen[0])} training images of shape {tuple(self.seen[0].shape[1:])}, and "
                f"got {tuple(manipulated.shape)}; only manipulations of those are seen."
            )
        self.seen.append(manipulated.detach())


@dataclass(frozen=True)
class Lesson:
    """How an attacker is trained: `steps` of Adam with the rate falling to 0, on batches of `batch` images."""

    steps: int = 300
    batch: int = 64
    lr: float = 2e-3
    weight_decay: float = 5e-4
    newest: float = 0.5
    most: int = 8  # lessons in a row of an attacker who learns for as long as it helps
    swift: bool = False  # compiled, in bf16: for a GPU

    def __post_init__(self) -> None:
        if min(self.steps, self.batch, self.most) < 1 or not self.lr > 0 or not 0 <= self.newest <= 1:
            raise AssayError(
                f"{self} needs at least 1 lesson of 1 step of 1 image, lr above 0, and newest from 0 to 1."
            )


class _Batches:
    """Rows for `fit`: place k of the memory is image k mod n in its k // n-th form."""

    def __init__(self, memory: Memory, which: int) -> None:
        self.memory, self.labels = memory, memory.labels[which]

    def __len__(self) -> int:
        return len(self.memory.seen) * len(self.labels)

    def take(self, index: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        n = len(self.labels)
        at = torch.from_numpy(index).to(self.labels.device)
        x = torch.empty(len(at), *self.memory.seen[0].shape[1:], device=self.labels.device)
        for form in np.unique(index // n).tolist():
            mine = at // n == form
            x[mine] = self.memory.seen[form][at[mine] % n]
        return x, self.labels[at % n]


def retrained(make: Make, memory: Memory, which: int, lesson: Lesson, rng: Generator) -> nn.Module:
    """A new attacker of label `which` (0: the kept one, 1: the hidden one), from new weights, in eval mode."""
    net = make(rng)
    _teach(net, memory, which, torch.arange(len(memory.labels[which])), lesson, rng)
    return net


def thorough(make: Make, memory: Memory, which: int, lesson: Lesson, rng: Generator) -> nn.Module:
    """A new attacker on all forms alike, taught until its loss on a fifth of the images, kept back, stops falling.

    Lessons follow each other, `lesson.most` of them at the most, and the weights of the least loss are kept.
    """
    truth = memory.labels[which]
    order = torch.randperm(len(truth), generator=rng, device=rng.device).cpu()
    kept, rows = order[: len(order) // KEPT_BACK], order[len(order) // KEPT_BACK :]
    if not len(kept):
        raise AssayError(f"An attacker keeps one of {KEPT_BACK} images back, and there are {len(truth)}; give more.")
    kept = kept.to(truth.device)
    net, least, best = make(rng), math.inf, None
    for _ in range(lesson.most):
        _teach(net, memory, which, rows, replace(lesson, newest=0.0), rng)
        said = torch.cat([answers(net, form[kept]) for form in memory.seen])
        loss = float(F.cross_entropy(said, truth[kept].repeat(len(memory.seen))))
        if best is not None and not loss < least:
            break
        least, best = loss, copy.deepcopy(net.state_dict())
    assert best is not None
    net.load_state_dict(best)
    return net


def _teach(net: nn.Module, memory: Memory, which: int, rows: Tensor, lesson: Lesson, rng: Generator) -> None:
    """One lesson on these images, in whatever form; after it the network is in eval mode."""
    n, forms = len(memory.labels[which]), len(memory.seen)

    def order(draw: Generator) -> list[Tensor]:
        form = torch.randint(forms, (lesson.steps, lesson.batch), generator=draw)
        form[torch.rand(form.shape, generator=draw) < lesson.newest] = forms - 1
        return list((form * n + rows[torch.randint(len(rows), form.shape, generator=draw)]).unbind(0))

    fit(
        net, _Batches(memory, which), epochs=1, lr=lesson.lr, batch=lesson.batch, weight_decay=lesson.weight_decay,
        optimiser="adam", rng=rng, order=order, device=memory.labels[which].device, swift=lesson.swift,
    )  # fmt: skip
    net.eval()


def answers(net: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:  # n *d -> n k
    """Logits, a few at a time and without gradients."""
    with torch.no_grad():
        return torch.cat([net(part) for part in torch.split(x, AT_ONCE)])


def hits(net: nn.Module, x: Tensor, truth: Tensor) -> Tensor:  # n *d, n -> n, true or false
    return answers(net, x).argmax(1) == truth


def reported(
    make: tuple[Make, Make],
    shown: Sequence[Tensor],  # each n *d
    labels: Labels,
    hide: nn.Module,
    read: Callable[[nn.Module, int], Tensor],
    lesson: Lesson,
    rng: Generator,
) -> tuple[nn.Module, Tensor, Tensor]:
    """A reader of the kept label, what it reads, and what the best attacker reads of the hidden one.

    Both are taught `shown` alone, the newest manipulation of the training images in as many draws as there are; of the
    hidden label that counts which is read more often, by this one or by `hide`, who has a memory. `read` tells of a
    network which test images it reads rightly, by label.
    """
    newest = Memory(shown[0], labels)
    for form in shown[1:]:
        newest.see(form)
    keep, other = (thorough(each, newest, which, lesson, rng) for which, each in enumerate(make))
    return keep, read(keep, 0), max(read(hide, 1), read(other, 1), key=lambda h: int(h.sum()))


class Round(NamedTuple):
    """Whether each test image was read rightly, kept and hidden label, before the attackers adapted and after: n."""

    keep_before: Tensor
    hide_before: Tensor
    keep_after: Tensor
    hide_after: Tensor


class Played(NamedTuple):
    """The first round is that of the images as they are, where before and after are the same.

    `keep` reads the last manipulation and was taught it alone; `hide` is the last attacker with a memory.
    """

    rounds: tuple[Round, ...]
    keep: nn.Module
    hide: nn.Module
    memory: Memory


def play(
    make: tuple[Make, Make],
    train: Tensor,  # n *d
    labels: Labels,
    test: Tensor,  # m *d
    truth: Labels,
    rounds: int,
    improve: Callable[[nn.Module, nn.Module], Callable[[Tensor], Tensor]],
    lesson: Lesson,
    rng: Generator,
    tick: Callable[[int], None] = lambda n: None,
) -> Played:
    """The game: `improve` answers the attackers of a round with a manipulation, and they are trained anew against it.

    `improve` is handed the two attackers, of the kept and of the hidden label, and never a test image; those are
    manipulated here and looked at, nothing else.
    """
    memory = Memory(train, labels)

    def adapted() -> tuple[nn.Module, nn.Module]:
        made = tuple(retrained(each, memory, which, lesson, rng) for which, each in enumerate(make))
        return made[0], made[1]

    def by(shown: Tensor) -> Callable[[nn.Module, int], Tensor]:
        return lambda net, which: hits(net, shown, truth[which])

    nets = adapted()
    keep, *first = reported(make, [train], labels, nets[1], by(test), lesson, rng)
    tick(1)
    told = [Round(*first, *first)]
    for _ in range(rounds):
        manipulation = improve(*nets)
        newest, shown = answers(manipulation, train), answers(manipulation, test)
        memory.see(newest)
        before = [hits(net, shown, true) for net, true in zip(nets, truth, strict=True)]
        nets = adapted()
        keep, *after = reported(make, [newest], labels, nets[1], by(shown), lesson, rng)
        told.append(Round(*before, *after))
        tick(1)
    return Played(tuple(told), keep, nets[1], memory)
