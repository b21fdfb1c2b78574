"""Let a semi-hard machine on the model's own features decide who is let in."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import torch

from assay.errors import AssayError
from assay.methods.uncertainty.activations import features
from assay.methods.verify.fit import MachineName, fit_verifier
from assay.nn.kernel import Kernel, KernelName, usual_gamma
from assay.nn.verifier import GenuineHead, Verifier
from assay.remedy import Cost, Remedy
from assay.tasks import admitted

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Subject

MOST = 3000  # training vectors: all are compared with each other


@dataclass(frozen=True)
class SemiHardVerification(Remedy):
    """Accepts one class by a machine on the model's features that lets none of the training impostors in.

    `person` names the class that is let in (genuine or accept, where there is one). Genuine training inputs may be
    rejected, at the price `lam` (lambda); impostors may not be accepted, at any. `machine` is sh-svm, sh-twsvm (whose
    threshold should be about -0.5, not 0), sh-svdd, or l2-svm, the control that forgives both. `gamma` of the RBF
    kernel is one over the median squared distance unless given. That no training impostor gets in says nothing of
    others. Other classes keep their logits, so that the answer among them stays.
    """

    machine: MachineName = "sh-svm"
    kernel: KernelName = "rbf"
    gamma: float | None = None
    degree: int = 3
    lam: float = 100.0
    threshold: float = 0.0
    margin: Literal[0, 1] = 1
    person: str | None = None

    needs_train: ClassVar[bool] = True
    source: ClassVar[str] = "Yoshida & Kitamura, ICANN 2021, sec. 2"
    mends: ClassVar[tuple[str, ...]] = ("who-gets-in",)

    def __post_init__(self) -> None:
        if not self.lam > 0:
            raise AssayError(f"The setting lam={self.lam:g} of {self.name()!r} must be above 0; 100 is usual.")
        Kernel(self.kernel, 1.0 if self.gamma is None else self.gamma, self.degree)  # which refuses what is none

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
        index = run.pick(data, min(len(data), MOST), bounded=False)
        model = copy.deepcopy(subject.model).to(run.device).eval()
        parts = []
        with run.progress("looking at the training inputs", len(index)) as tick:
            for rows in np.array_split(index, max(1, len(index) // 1000)):
                x, y = data.take(rows)
                parts.append((features(model, x.to(run.device), head, entering=True).flatten(1), y.to(run.device)))
                tick(len(rows))
        seen, labels = (torch.cat(column) for column in zip(*parts, strict=True))
        gamma = usual_gamma(seen) if self.gamma is None and self.kernel == "rbf" else self.gamma or 1.0
        verifier = fit_verifier(
            seen, torch.where(labels == genuine, 1.0, -1.0), machine=self.machine,
            kernel=Kernel(self.kernel, gamma, self.degree), lam=self.lam, threshold=self.threshold, margin=self.margin,
        )  # fmt: skip
        return self._with(subject, verifier, genuine)

    def frame(self, subject: Subject) -> Subject:
        genuine = admitted(subject.task.classes, self.person, "person")
        assert isinstance(genuine, int)  # why_not
        data = subject.data["train"]
        model = copy.deepcopy(subject.model).cpu().eval()
        wide = features(model, data.take(np.arange(1))[0], subject.layers["head"], entering=True).flatten(1).shape[1]
        points = torch.zeros(min(len(data), MOST), wide)
        kernel = Kernel(self.kernel, 1.0 if self.gamma is None else self.gamma, self.degree)
        own = self.machine == "sh-svdd"
        empty = Verifier(points, points[:, 0], 0.0, kernel, own=own, threshold=self.threshold)
        return self._with(subject, empty, genuine)

    def _with(self, subject: Subject, verifier: Verifier, genuine: int) -> Subject:
        model, name = copy.deepcopy(subject.model), subject.layers["head"]
        model.set_submodule(name, GenuineHead(model.get_submodule(name), verifier, genuine))
        return subject.cured(model.eval(), self.name())


SHELVED = SemiHardVerification
