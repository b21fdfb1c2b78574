"""Let a semi-hard machine on the model's own features decide who is let in."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from assay.errors import AssayError
from assay.methods.uncertainty.activations import features
from assay.methods.verify.fit import MACHINES, MachineName, fit_verifier
from assay.nn.kernel import Kernel, KernelName, usual_gamma
from assay.nn.verifier import GenuineHead, Verifier
from assay.probe import undisturbed
from assay.remedy import Cost, Remedy
from assay.tasks import admitted

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Subject

MOST = 3000  # training vectors to begin with: all are compared with each other
MORE = 1000  # impostors who got in although they are in training, added to those
ROUNDS = 5  # in which they are
LAM = 100.0
AT_ONCE = 1000


@dataclass(frozen=True)
class SemiHardVerification(Remedy):
    """Accepts one class by a machine on the model's features that lets none of the training impostors in.

    `person` names the class that is let in (genuine or accept, where there is one). Genuine training inputs may be
    rejected, at the price `lam` (lambda, 100 unless given); impostors may not be accepted, at any. `machine` is sh-svm,
    sh-twsvm (which has no lambda, and the `threshold` -0.5 unless given, not 0), sh-svdd (whose `margin` is 1, or 0 as
    its printed dual has it), or l2-svm, the control that forgives both. `gamma` of the RBF kernel is one over the
    median squared distance unless given. It is fitted to some thousand inputs; impostors who then get in are added
    round by round, and a remark says if some still do. That no training impostor gets in says nothing of others. Other
    classes keep their logits, so that the answer among them stays.
    """

    machine: MachineName = "sh-svm"
    kernel: KernelName = "rbf"
    gamma: float | None = None
    degree: int | None = None
    lam: float | None = None
    threshold: float | None = None
    margin: int | None = None
    person: str | None = None

    needs_train: ClassVar[bool] = True
    source: ClassVar[str] = "Yoshida & Kitamura, ICANN 2021, sec. 2"
    mends: ClassVar[tuple[str, ...]] = ("who-gets-in",)

    def __post_init__(self) -> None:
        if self.machine not in MACHINES:
            raise AssayError(f"There is no machine {self.machine!r}; it is one of {', '.join(MACHINES)}.")
        if self.lam is not None and not self.lam > 0:
            raise AssayError(f"The setting lam={self.lam:g} of {self.name()!r} must be above 0; 100 is usual.")
        if self.margin not in (None, 0, 1):
            raise AssayError(f"The setting margin={self.margin} of {self.name()!r} must be 0 or 1.")
        if self.threshold is not None and not math.isfinite(self.threshold):
            raise AssayError(f"The setting threshold={self.threshold:g} of {self.name()!r} must be a finite number.")
        _ = self._kernel(self.gamma)  # which refuses what is none
        for name, read, by in (
            ("lam", self.machine != "sh-twsvm", f"machine {self.machine}"),
            ("margin", self.machine == "sh-svdd", f"machine {self.machine}"),
            ("gamma", self.kernel == "rbf", f"kernel {self.kernel}"),
            ("degree", self.kernel == "poly", f"kernel {self.kernel}"),
        ):
            if getattr(self, name) is not None and not read:
                raise AssayError(f"The setting {name}={getattr(self, name)} is not read by the {by}; leave it out.")

    def _kernel(self, gamma: float | None) -> Kernel:
        return Kernel(self.kernel, 1.0 if gamma is None else gamma, 3 if self.degree is None else self.degree)

    @property
    def _threshold(self) -> float:
        """Half way between where a twin fits genuine ones to and where it keeps impostors below; else 0."""
        if self.threshold is not None:
            return self.threshold
        return -0.5 if self.machine == "sh-twsvm" else 0.0

    def cost(self) -> Cost | None:
        return Cost(1 / 30, 1)  # one pass over the training inputs; ten epochs are about thirty

    def why_not(self, subject: Subject) -> str | None:
        if (reason := super().why_not(subject)) is not None:
            return reason
        if "head" not in subject.layers:
            return "it decides by what enters a last layer, and the model has none that is a module"
        if isinstance(why := admitted(subject.task.classes, self.person, "person"), str):
            return why
        return None

    def apply(self, subject: Subject, run: Run) -> Subject:
        genuine = admitted(subject.task.classes, self.person, "person")
        assert isinstance(genuine, int)  # why_not
        data, head = subject.data["train"], subject.layers["head"]
        model = copy.deepcopy(subject.model).to(run.device).eval()
        parts = []
        with run.progress("looking at the training inputs", len(data)) as tick:
            for rows in np.array_split(np.arange(len(data)), max(1, len(data) // AT_ONCE)):
                x, y = data.take(rows)
                parts.append((features(model, x.to(run.device), head, entering=True).flatten(1), y.to(run.device)))
                tick(len(rows))
        seen, labels = (torch.cat(column) for column in zip(*parts, strict=True))
        side = torch.where(labels == genuine, 1.0, -1.0)
        held = torch.zeros(len(data), dtype=torch.bool, device=run.device)
        held[torch.from_numpy(run.pick(data, min(len(data), MOST), bounded=False)).to(run.device)] = True
        kernel = self._kernel(usual_gamma(seen[held]) if self.gamma is None and self.kernel == "rbf" else self.gamma)
        verifier, left = self._fitted(seen, side, held, kernel), ROUNDS if self.machine != "l2-svm" else 0
        while left and (room := self._size(subject) - int(held.sum())):
            with torch.no_grad():
                d = torch.cat([verifier(part) for part in torch.split(seen, AT_ONCE)])
            wrong = (d > 0) & (side < 0) & ~held
            if not bool(wrong.any()):
                break
            held[d.masked_fill(~wrong, -torch.inf).topk(min(room, int(wrong.sum()))).indices] = True
            verifier, left = self._fitted(seen, side, held, kernel), left - 1
        spare = self._size(subject) - len(verifier.points)  # points of weight 0, so that a frame is as large
        verifier.points, verifier.weight = F.pad(verifier.points, (0, 0, 0, spare)), F.pad(verifier.weight, (0, spare))
        return self._with(subject, verifier, genuine)

    def _fitted(self, seen: Tensor, side: Tensor, held: Tensor, kernel: Kernel) -> Verifier:  # n d, n, n
        return fit_verifier(
            seen[held], side[held], machine=self.machine, kernel=kernel, lam=LAM if self.lam is None else self.lam,
            threshold=self._threshold, margin=0 if self.margin == 0 else 1,
        )  # fmt: skip

    def remarks(self, cured: Subject, run: Run) -> tuple[str, ...]:
        genuine = admitted(cured.task.classes, self.person, "person")
        assert isinstance(genuine, int)  # why_not
        data = cured.data["train"]
        let = n = 0
        with undisturbed(cured.model, run), torch.no_grad():
            impostors = np.flatnonzero(np.asarray(data.labels) != genuine)
            for rows in np.array_split(impostors, max(1, len(impostors) // AT_ONCE)):
                let += int((cured.predict(data.take(rows)[0].to(run.device)).argmax(1) == genuine).sum())
                n += len(rows)
        if not let:
            return (f"None of {n:,} training impostors gets in. Nothing follows for others.",)
        return (
            f"Of {n:,} training impostors {let:,} get in: the machine is fitted to at most {self._size(cured):,} "
            f"training inputs, with impostors who got in added in {ROUNDS} rounds at most.",
        )

    def _size(self, subject: Subject) -> int:
        return min(len(subject.data["train"]), MOST + MORE)

    def frame(self, subject: Subject) -> Subject:
        genuine = admitted(subject.task.classes, self.person, "person")
        assert isinstance(genuine, int)  # why_not
        data = subject.data["train"]
        model = copy.deepcopy(subject.model).cpu().eval()
        wide = features(model, data.take(np.arange(1))[0], subject.layers["head"], entering=True).flatten(1).shape[1]
        points, own = torch.zeros(self._size(subject), wide), self.machine == "sh-svdd"
        empty = Verifier(points, points[:, 0], 0.0, self._kernel(self.gamma), own=own, threshold=self._threshold)
        return self._with(subject, empty, genuine)

    def _with(self, subject: Subject, verifier: Verifier, genuine: int) -> Subject:
        model, name = copy.deepcopy(subject.model), subject.layers["head"]
        model.set_submodule(name, GenuineHead(model.get_submodule(name), verifier, genuine))
        return subject.cured(model.eval(), self.name())


SHELVED = SemiHardVerification
