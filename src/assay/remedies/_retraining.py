"""What the remedies that train share: the subject's own data, the settings of a training, its progress, its control."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Literal, Self
from weakref import WeakKeyDictionary

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Generator, Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from assay.errors import AssayError
from assay.inputs.reach import Reach
from assay.methods.train.adversary import Adversary
from assay.methods.train.fit import (
    Augment,
    Diverged,
    Loss,
    Optimiser,
    Order,
    Rows,
    fit,
    into_training,
    reset,
    trainable,
)
from assay.methods.train.label_noise import plant
from assay.methods.uncertainty.alike import CLONES, alike
from assay.methods.uncertainty.pixel_spread import gain, together
from assay.nn.members import Average, Members
from assay.probe import undisturbed
from assay.remedy import Cost, Remedy

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Data, Subject

BATCH = 128  # fit's own
EPOCHS, STEPS = 10, 1000  # of a training whose length was left open: at least so many epochs, about so many steps
RATES: dict[Optimiser, float] = {"sgd": 0.1, "adam": 3e-3, "adamw": 3e-3}
GENTLER = 0.1  # times that rate where trained weights go on
LARGE = 1_000_000  # parameters: of a smaller net compiling takes longer than it saves (40 s of a ResNet-18 on an H200)
LOOKED_AT = 256  # training inputs, to tell how often the model is right as it trains
PLANTED = 20181805  # any number, added to the seed
MARK = 12345.0  # which no initialisation draws
Start = Literal["scratch", "weights"]
_DRAWN: WeakKeyDictionary[nn.Module, str | None] = WeakKeyDictionary()


def epochs_on(data: Data, chosen: int | None, batch: int = BATCH) -> int:
    """The epochs that were chosen, or as many as a plain training takes on these data."""
    check_batch(batch)
    return max(EPOCHS, math.ceil(STEPS / max(1, math.ceil(len(data) / batch)))) if chosen is None else chosen


def check_batch(batch: int) -> None:
    if batch < 1:
        raise AssayError(f"batch={batch} holds no input; give a whole number of at least 1, such as {BATCH}.")


def anew(model: nn.Module, rng: Generator) -> nn.Module:
    """A copy to train from scratch: what `trainable` trains is drawn anew, what is frozen stays, nothing else does.

    torch's attention calls its own `_reset_parameters`. What a `reset_parameters` leaves as it was is found by a mark.
    """
    begun = trainable(model)
    lent = [module for module in begun.modules() if _draws_by_another_name(module)]
    for module in lent:
        module.reset_parameters = module._reset_parameters
    with torch.no_grad():
        for p in begun.parameters():
            if p.requires_grad:
                p.fill_(MARK)
    fresh = reset(begun, rng, keep_frozen=True)
    for module in fresh.modules():
        if _draws_by_another_name(module):
            del module.__dict__["reset_parameters"]
    kept = [name for name, p in fresh.named_parameters() if p.requires_grad and p.numel() and bool((p == MARK).all())]
    if kept:
        raise AssayError(
            f"Cannot re-initialise {', '.join(kept)}: the reset_parameters() of its module leaves it as it was trained "
            "(old weight_norm, spectral_norm and pruning do); let it draw that too, or train from the present weights."
        )
    return fresh


def _draws_by_another_name(module: nn.Module) -> bool:
    """Whether only torch's underscored name says how its own parameters are drawn."""
    own = next(module.parameters(recurse=False), None) is not None
    return own and not hasattr(type(module), "reset_parameters") and hasattr(type(module), "_reset_parameters")


def why_scripted(model: nn.Module) -> str | None:
    """Why its layers cannot be worked on."""
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        return "its layers are those of TorchScript, which cannot be changed or drawn anew; give the module itself"
    return None


def why_not_anew(model: nn.Module) -> str | None:
    """Why its weights cannot be drawn anew; found out on a copy, once for a model."""
    if model not in _DRAWN:
        try:
            anew(model, Generator())
            _DRAWN[model] = None
        except AssayError as e:
            _DRAWN[model] = str(e).removesuffix(".")
        except Exception as e:  # somebody else's code copies it and draws its weights
            told = (str(e).splitlines() or ["no message"])[0]
            _DRAWN[model] = f"its weights cannot be drawn anew: {type(e).__name__}: {told}"
    return _DRAWN[model]


def why_no_attack(subject: Subject) -> str | None:
    """Why nobody can climb from its inputs by small steps."""
    if subject.tokens:
        return "it changes inputs by a little, and an input here is a row of words by number"
    reach = subject.reach()
    if isinstance(reach, Reach) and not bool(reach.movable().any()):
        return "it changes numbers, and of an input here none may change; take `fixed` off a column of numbers"
    if not subject.leads():
        return "it climbs along gradients, and none leads from the model's answers to its inputs"
    return None


def why_no_noise(subject: Subject) -> str | None:
    """Why noise on its inputs makes no inputs."""
    return "it adds noise to inputs, and an input here is a row of words by number" if subject.tokens else None


@contextmanager
def kept_as(model: nn.Module) -> Iterator[None]:
    """Where something around `model` is trained: after a divergence the model is kept, which fits the subject, and not
    what was around it."""
    try:
        yield
    except Diverged as e:
        e.model = model
        raise


@dataclass(frozen=True)
class Retraining(Remedy):
    """A remedy with a training in it.

    `epochs` left out are ten, or as many as make 1,000 steps: ten epochs of 1,300 inputs are 110 steps, which
    undertrain. `lr` left out is 0.1 for SGD and 0.003 for Adam and AdamW, of which `momentum` is beta_1.
    """

    epochs: int | None = None
    lr: float | None = None
    weight_decay: float = 5e-4
    optimiser: Optimiser = "sgd"
    momentum: float = field(default=0.9, kw_only=True)
    batch: int = field(default=BATCH, kw_only=True)

    needs_train: ClassVar[bool] = True
    of_layers: ClassVar[bool] = False
    """Whether it watches, changes or replaces single layers."""

    def __post_init__(self) -> None:
        check_batch(self.batch)
        if self.epochs is not None and self.epochs < 1:
            raise AssayError(f"epochs={self.epochs} train nothing; give at least 1, such as {EPOCHS}.")
        if self.lr is not None and not 0 < self.lr < math.inf:
            raise AssayError(f"lr={self.lr} is no length of a step; give a number above 0, such as 0.1.")
        if not 0 <= self.momentum < 1:
            raise AssayError(f"momentum={self.momentum} never forgets or turns back; give 0 to below 1, such as 0.9.")
        if not 0 <= self.weight_decay < math.inf:
            raise AssayError(f"weight_decay={self.weight_decay} lets weights grow; give 0 or more, such as 5e-4.")

    def cost(self) -> Cost | None:
        return Cost(1, 1)

    def network(self, subject: Subject) -> nn.Module | None:
        """The subject's own network, where that is what is trained."""
        return subject.model

    @property
    def from_scratch(self) -> bool:
        return True

    def why_not(self, subject: Subject) -> str | None:
        if (lacks := super().why_not(subject)) is not None:
            return lacks
        if (model := self.network(subject)) is None:
            return None
        if next(model.parameters(), None) is None:
            return f"it trains weights, and {type(model).__name__} has none"
        if (self.from_scratch or self.of_layers) and (why := why_scripted(model)) is not None:
            return why
        least = self.fewest(subject)
        if least < 2 and any(isinstance(module, _BatchNorm) for module in model.modules()) and _wants_two(subject):
            n = len(subject.data["train"])
            told = f"with batch={self.batch} of {n:,} training inputs a batch holds one; set another batch"
            return (
                "its batch normalisation cannot train on one input, and "
                f"{told if n > 1 else 'there is one training input; give it more'}"
            )
        return why_not_anew(model) if self.from_scratch else None

    def fewest(self, subject: Subject) -> int:
        """The inputs in its smallest batch."""
        n = len(subject.data["train"])
        return n // max(1, math.ceil(n / self.batch))

    def settled(self, subject: Subject) -> Self:
        return replace(self, epochs=self.epochs_on(subject), lr=self.learning_rate)

    def control(self) -> Remedy | None:
        return PlainRetraining(
            self.epochs, self.lr, self.weight_decay, self.optimiser, momentum=self.momentum, batch=self.batch
        )

    def epochs_on(self, subject: Subject) -> int:
        return epochs_on(subject.data["train"], self.epochs, self.batch)

    @property
    def learning_rate(self) -> float:
        return RATES[self.optimiser] if self.lr is None else self.lr

    def train(
        self,
        model: nn.Module,
        subject: Subject,
        run: Run,
        rng: Generator,
        *,
        about: str = "training",
        loss: Loss | None = None,
        augment: Augment | None = None,
        order: Order | None = None,
        after_backward: Callable[[], None] | None = None,
        after_step: Callable[[], None] | None = None,
        swift: bool = False,
        resumes: bool = False,
        rows: Rows | None = None,
    ) -> nn.Module:
        """Train `model` in place on the subject's training data; return it in eval mode.

        `resumes`: after a kill it goes on at its last epoch, where the run has a place to keep it; only for a training
        whose `augment`, `order` and hooks hold nothing from step to step. `rows` are the same inputs with more in their
        targets than a label, for a loss that reads more. `loss` left out is the task's own.
        """
        epochs, data = self.epochs_on(subject), subject.data["train"]
        keep = run.keep if resumes else None
        begun_as = f"{self.name()} {self!r} {about} {subject.inputs!r} {data.fingerprint()}" if keep is not None else ""
        batches = math.ceil(len(data) / self.batch) if order is None else len(order(torch.Generator()))
        few = np.linspace(0, len(data) - 1, min(LOOKED_AT, len(data))).round().astype(np.int64)
        of_classes = subject.task.lacks(("classes",)) is None
        with ExitStack() as bars:
            tick = bars.enter_context(run.progress(f"{about} for {epochs} epochs", batches))

            def stepped() -> None:
                if after_step is not None:
                    after_step()
                tick(1)

            def told(epoch: int, mean: float) -> None:
                nonlocal tick
                if epoch < epochs:
                    right = f", clean accuracy {100 * _right(model, data, few, run.device):.0f} %" if of_classes else ""
                    bars.close()
                    words = f"{about}: epoch {epoch} of {epochs}, loss {mean:.3g}{right}"
                    tick = bars.enter_context(run.progress(words, batches))

            fit(
                model,
                data if rows is None else rows,
                epochs=epochs,
                lr=self.learning_rate,
                batch=self.batch,
                momentum=self.momentum,
                weight_decay=self.weight_decay,
                optimiser=self.optimiser,
                rng=rng,
                loss=loss or loss_of(subject),
                augment=augment,
                order=order,
                after_backward=after_backward,
                after_step=stepped,
                on_epoch=told,
                device=run.device,
                swift=swift,
                keep=keep,
                keep_key=begun_as,
            )
        return model.eval()


def averaged(subject: Subject, chosen: Average = "probabilities") -> Average:
    """Of what members of this subject give the mean: of a classifier as it was chosen, else of their answers."""
    return chosen if "classes" in subject.task.gives else "answers"


def loss_of(subject: Subject) -> Loss:
    """What a plain training lowers: the cross-entropy of classes, the mean of the task's own loss else."""
    if subject.task.lacks(("classes",)) is None:
        return F.cross_entropy
    return lambda out, y: subject.task.loss(out, y).mean()


def _wants_two(subject: Subject) -> bool:
    """Whether its network refuses to train on one input, as batch normalisation of rows does."""
    x = subject.data["train"].take(np.arange(1))[0]
    try:
        trial = into_training(copy.deepcopy(subject.model))
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            trial(x.to(next(trial.parameters()).device))
    except ValueError:
        return True
    except Exception:  # what else ails it is not told here
        return False
    return False


def _right(model: nn.Module, data: Data, few: NDArray[np.int64], device: str) -> float:
    """The share of these training inputs, as they are, that the model gets right now."""
    x, y = data.take(few)
    model.eval()  # fit puts it back before the next epoch
    cuda = [torch.device(device)] if torch.device(device).type == "cuda" else []
    with torch.no_grad(), torch.random.fork_rng(devices=cuda):  # a net that draws when it answers trains on as before
        said = model(torch.as_tensor(x, device=device)).argmax(-1).cpu()
    return float((said == torch.as_tensor(y)).float().mean())


@dataclass(frozen=True)
class Hardening(Retraining):
    """A training that makes a network hold, begun anew or from the weights that it has.

    `start="weights"` goes on from the subject's own weights, at a tenth of the usual rate; its control does so too.
    What is frozen in the subject is neither drawn anew nor trained, unless all of it is.
    """

    start: Start = "scratch"

    @property
    def from_scratch(self) -> bool:
        return self.start == "scratch"

    @property
    def learning_rate(self) -> float:
        return super().learning_rate * (GENTLER if self.lr is None and self.start == "weights" else 1)

    def control(self) -> Remedy | None:
        return PlainRetraining(
            self.epochs,
            self.learning_rate,
            self.weight_decay,
            self.optimiser,
            self.start,
            may_be_swift=True,
            momentum=self.momentum,
            batch=self.batch,
        )

    def begun(self, model: nn.Module, rng: Generator) -> nn.Module:
        """The network that is trained: a copy, with fresh weights or with its own."""
        return anew(model, rng) if self.start == "scratch" else trainable(model)

    def hardened(
        self,
        model: nn.Module,
        subject: Subject,
        run: Run,
        rng: Generator,
        *,
        about: str,
        loss: Loss | None = None,
        augment: Augment | None = None,
        order: Order | None = None,
        rows: Rows | None = None,
    ) -> nn.Module:
        """`train`, which goes on after a kill and, of a large net on a GPU, is swift."""
        fast = _is_swift(subject.model, run)
        return self.train(
            model, subject, run, rng, about=about, loss=loss, augment=augment, order=order, rows=rows, swift=fast,
            resumes=True,
        )  # fmt: skip

    @staticmethod
    def adversary(
        model: nn.Module, subject: Subject, run: Run, radius: float, steps: int = 1, step: float | None = None
    ) -> Adversary:
        """The attacker of a training, in shares of the subject's range and within what may change of its inputs."""
        low, span = subject.inputs.edges()
        fast = _is_swift(subject.model, run)
        return Adversary(model, radius, steps=steps, step=step, low=low, span=span, reach=subject.reach, swift=fast)


def _is_swift(model: nn.Module, run: Run) -> bool:
    """By the subject's own model, so that a remedy that adds parameters and its control decide alike."""
    return torch.device(run.device).type == "cuda" and sum(p.numel() for p in model.parameters()) >= LARGE


@dataclass(frozen=True)
class PlainRetraining(Hardening):
    """Trains it again and does nothing else: what the other retrainings are compared with.

    `may_be_swift`: a large net on a GPU is trained in compiled bf16 passes, as the remedy is that it is compared with.
    """

    may_be_swift: bool = False

    source: ClassVar[str] = "the control of an experiment; the training is that of methods/train/fit.py"

    @classmethod
    def name(cls) -> str:
        return "plain-retraining"

    def control(self) -> Remedy | None:
        return None

    def apply(self, subject: Subject, run: Run) -> Subject:
        rng = run.rng()
        begun = self.begun(subject.model, rng)
        fast = self.may_be_swift and _is_swift(subject.model, run)
        model = self.train(begun, subject, run, rng, about="training plainly, to compare", swift=fast, resumes=True)
        return subject.cured(model, self.name())


class _Flipped:
    """Training data with some labels changed."""

    def __init__(self, data: Data, labels: Tensor) -> None:
        self.data, self.labels = data, labels

    def __len__(self) -> int:
        return len(self.data)

    def take(self, index: NDArray[np.int64], /) -> tuple[Tensor, Tensor]:
        return self.data.take(index)[0], self.labels[torch.as_tensor(index)]


@dataclass(frozen=True)
class OnPlanted(Retraining):
    """A training on labels of which a share is flipped at random before; its control trains on the same."""

    planted: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.planted <= 0.5:
            raise AssayError(f"planted={self.planted:g} is no share of labels to flip; give one from 0 to 0.5.")

    def why_not(self, subject: Subject) -> str | None:
        reason = super().why_not(subject)
        if reason is None and len(np.unique(np.asarray(subject.data["train"].labels))) < 2:
            return "all training labels are of one class, and there is no other that one could be"
        return reason

    def control(self) -> Remedy | None:
        return PlainOnPlanted(
            self.epochs, self.lr, self.weight_decay, self.optimiser, momentum=self.momentum, batch=self.batch,
            planted=self.planted,
        )  # fmt: skip

    def rows(self, subject: Subject, run: Run) -> Rows | None:
        """The training data with what is planted, by the run's seed; None where nothing is."""
        data = subject.data["train"]
        if not self.planted:
            return None
        # a stream of its own: a finder that flips labels to set its limit by would draw the very same ones
        rng = torch.Generator().manual_seed(run.seed + PLANTED)
        return _Flipped(data, plant(torch.as_tensor(np.asarray(data.labels)), 1, self.planted, rng).labels[0])


@dataclass(frozen=True)
class PlainOnPlanted(OnPlanted):
    """Trains it again and does nothing else, on the labels that its remedy has."""

    source: ClassVar[str] = PlainRetraining.source

    @classmethod
    def name(cls) -> str:
        return "plain-retraining"

    def control(self) -> Remedy | None:
        return None

    def apply(self, subject: Subject, run: Run) -> Subject:
        rng, rows = run.rng(), self.rows(subject, run)
        begun = anew(subject.model, rng)
        model = self.train(begun, subject, run, rng, about="training plainly, to compare", rows=rows)
        return subject.cured(model, self.name())


def how_alike(cured: Subject, run: Run) -> tuple[str, ...]:
    """How far the members of a cured subject differ, in a sentence, measured on the inputs that it is asked about."""
    model = cured.model
    assert isinstance(model, Members)
    test = cured.data["test"]
    with undisturbed(model, run), torch.no_grad():
        rows = run.map(
            lambda shard: {"said": model.members(shard.x).float().transpose(0, 1), "y": shard.y},
            cured,
            "test",
            run.pick(test),
            "answers of the members",
        )
    if "classes" not in cured.task.gives:
        return _alike_images(torch.from_numpy(rows["said"]).transpose(0, 1), torch.from_numpy(rows["y"]))
    seen = alike(torch.from_numpy(rows["said"]).transpose(0, 1), torch.from_numpy(rows["y"]))
    if seen.members < 2:
        return ("It has one member, so that there is no mean to speak of.",)
    told = (
        f"On {len(rows['y']):,} inputs two of its {seen.members} members answer differently in "
        f"{100 * seen.disagreement:.1f} % of cases, and their mean is {100 * seen.gain:.1f} % less surprised by the "
        "truth than one of them."
    )
    return (f"{told} They are near-clones: what one gets wrong they all get wrong." if seen.are_clones else told,)


def _alike_images(said: Tensor, y: Tensor) -> tuple[str, ...]:  # m n c h w, n c h w
    """The same of members whose answers are images."""
    seen = gain(said, y)
    if seen.members < 2:
        return ("It has one member: no uncertainty available.",)
    told = (
        f"On {len(y):,} inputs its {seen.members} members are {float(together(said).spread.mean()):.3g} apart at a "
        f"pixel (standard deviation), and the squared error of their mean is {100 * seen.share:.1f} % below theirs."
    )
    clones = seen.share < CLONES
    return (f"{told} They are near-clones: where one is wrong they all are." if clones else told,)
