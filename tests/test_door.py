"""What is found out about a subject before any question is put: each kind of model that is not what it seems."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import assay
from assay import shelf
from assay.data.arrays import Arrays
from assay.door import admit
from assay.errors import AssayError
from assay.finding import EVERYTHING
from assay.nn.read_as import LogProbabilities, OneScore, Rescaled
from assay.probe import configure
from assay.standard import Standard, Standards
from assay.subject import InputSpace, Subject
from assay.tasks import Classification

RNG = np.random.default_rng(0)
X = RNG.random((60, 1, 6, 6), dtype=np.float32)
Y = (X.mean((1, 2, 3)) > 0.5).astype(np.int64)


class Bright(nn.Module):
    """Two classes by the mean brightness, between `low` and `low + span`."""

    def __init__(self, low: float = 0.0, span: float = 1.0) -> None:
        super().__init__()
        self.low, self.span = low, span

    def forward(self, x: Tensor) -> Tensor:
        z = 40 * ((x.flatten(1).mean(1) - self.low) / self.span - 0.5)
        return torch.stack([-z, z], 1)


class Around(nn.Module):
    """Any function of what `Bright` says."""

    def __init__(self, how) -> None:
        super().__init__()
        self.inner, self.how = Bright(), how

    def forward(self, x: Tensor) -> Tensor:
        return self.how(self.inner, x)


def on_batch_statistics(inner: nn.Module, x: Tensor) -> Tensor:
    z = inner(x)
    return z - z.mean(0, keepdim=True)


def in_place(inner: nn.Module, x: Tensor) -> Tensor:
    out = inner(x)
    x.mul_(0)
    return out


def test_a_plain_model_passes_the_door_as_it_is() -> None:
    subject = Subject.classifier(Bright(), (X, Y))
    admitted = admit(subject)
    assert admitted.subject is subject
    assert admitted.alarms == ()


def test_a_model_that_answers_for_its_batch_doubts_every_number_and_passes_nothing() -> None:
    subject = Subject.classifier(Around(on_batch_statistics), (X, Y))
    (alarm,) = admit(subject).alarms
    assert "depends on what else is in the batch" in alarm.says
    assert alarm.doubts == EVERYTHING
    done = assay.audit(subject, probes=["accuracy"], standards=Standards({"accuracy": (Standard(at_least=0.6),)}))
    assert done.rows[0].answer.finding.measures[0].low > 0.6  # it would pass
    assert {j.verdict for j in done.rows[0].judgements} == {"cannot tell"}
    assert "batch" in done.rows[0].judgements[0].why


@pytest.mark.parametrize("form", ["logits", "probabilities", "noisy"])
@pytest.mark.parametrize("least", [17, 32])
def test_one_that_answers_for_its_batch_only_where_that_is_large_is_seen(least: int, form: str) -> None:
    """Questions show it more than the sixteen that were compared with each alone."""

    def adapts(inner: nn.Module, x: Tensor) -> Tensor:
        z = inner(x + 0.01 * torch.randn_like(x) if form == "noisy" else x)
        z = z - z.mean(0, keepdim=True) if len(x) >= least else z
        return z.softmax(1) if form == "probabilities" else z

    torch.manual_seed(0)
    alarms = admit(Subject.classifier(Around(adapts), (X, Y), draws=8 if form == "noisy" else 1)).alarms
    (told,) = [alarm for alarm in alarms if "what else is in the batch" in alarm.says]
    assert told.doubts == EVERYTHING


@pytest.mark.parametrize("by_batch", [True, False])
@pytest.mark.parametrize("kind", ["logits", "numbers"])
def test_an_offset_that_all_answers_share_hides_no_batch_statistics(kind: str, by_batch: bool) -> None:
    """And what float32 rounds at such an offset is not taken for them."""

    def far_from_zero(inner: nn.Module, x: Tensor) -> Tensor:
        z = inner(x)[:, 1] / 40
        z = z - z.mean() if by_batch else z
        return 400 + 2 * torch.stack([-z, z], 1) if kind == "logits" else 288 + 1.2 * z

    subject = Subject.of(Around(far_from_zero), (X, Y if kind == "logits" else 288 + X.mean((1, 2, 3))))
    assert any("what else is in the batch" in a.says for a in admit(subject).alarms) == by_batch


def test_batch_statistics_are_found_under_noise_and_noise_alone_is_not_taken_for_them() -> None:
    def noisy(of):
        return Around(lambda inner, x: of(inner, x + 0.05 * torch.randn_like(x)))

    torch.manual_seed(0)
    for of, found in ((on_batch_statistics, True), (lambda inner, x: inner(x), False)):
        alarms = admit(Subject.classifier(noisy(of), (X, Y), draws=8)).alarms
        assert any("in the batch" in a.says for a in alarms) == found


def test_a_model_that_changes_its_input_gets_a_copy_and_is_told_as_that() -> None:
    subject = Subject.classifier(Around(in_place), (X, Y))
    mended, alarms = admit(subject)
    assert [a.says for a in alarms] == ["The model changes its input in place; it was given a copy each time."]
    x = torch.from_numpy(X)
    kept = x.clone()
    assert_close(mended.predict(x), Bright()(kept))
    assert torch.equal(x, kept)


class InOnePlace(Bright):
    """Answers lie where the next ones will, as those of a recorded graph do."""

    def __init__(self) -> None:
        super().__init__()
        self.place = torch.zeros(1024, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.place[: len(x)].copy_(super().forward(x))


def test_of_answers_that_the_next_ones_overwrite_copies_are_taken_and_it_is_told() -> None:
    subject = Subject.classifier(InOnePlace(), (X, Y))
    mended, alarms = admit(subject)
    assert [a.says for a in alarms] == ["The model's next answer overwrites its last one; a copy was taken of each."]
    x = torch.from_numpy(X)
    first, second = mended.predict(x[:30]), mended.predict(x[30:])
    assert_close(torch.cat([first, second]), Bright()(x))
    probes = ["does-it-depend-on-its-company", "does-it-know"]
    one, other = (assay.audit(s, probes=probes, inputs=40) for s in (subject, Subject.classifier(Bright(), (X, Y))))
    for ours, plain in zip(one.rows, other.rows, strict=True):
        assert ours.answer.finding is not None, ours.answer.why
        assert [m.value for m in ours.answer.finding.measures] == pytest.approx(
            [m.value for m in plain.answer.finding.measures], nan_ok=True
        )


class Gone(Tensor):
    """An answer that refuses to be looked at once there is a newer one."""

    newest = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if any(isinstance(a, Gone) and getattr(a, "number", cls.newest) < cls.newest for a in args):
            raise RuntimeError("accessing an output that has been overwritten by a subsequent run")
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


def test_so_it_is_of_answers_that_refuse_to_be_looked_at_then() -> None:
    def recorded(inner: nn.Module, x: Tensor) -> Tensor:
        Gone.newest += 1
        out = inner(x).as_subclass(Gone)
        out.number = Gone.newest
        return out

    mended, alarms = admit(Subject.classifier(Around(recorded), (X, Y)))
    assert ["overwrites its last one" in a.says for a in alarms] == [True]
    x = torch.from_numpy(X)
    first, second = mended.predict(x[:30]), mended.predict(x[30:])
    assert_close(torch.cat([first, second]), Bright()(x))


def test_an_answer_that_is_the_same_for_all_is_left_in_its_place() -> None:
    """Weights that are shown as they are, and never change, need no copy."""
    fixed = torch.tensor([[0.0, 2.0]])
    subject = Subject.classifier(Around(lambda inner, x: fixed.expand(len(x), 2)), (X, Y))
    assert admit(subject).subject is subject


@pytest.mark.parametrize("by_batch", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounding_in_halves_is_not_taken_for_batch_statistics_nor_hides_them(
    dtype: torch.dtype, by_batch: bool
) -> None:
    """The sums of a batch are added in another order than those of one input, and the answer is told in float32."""

    def rounded(inner: nn.Module, x: Tensor) -> Tensor:
        z = inner(x)
        z = z - z.mean(0, keepdim=True) if by_batch else z * (1 + 2**-8 * (len(x) > 1))
        return z.to(dtype).float()

    alarms = admit(Subject.classifier(Around(rounded), (X, Y))).alarms
    assert any("what else is in the batch" in a.says for a in alarms) == by_batch
    wide = admit(Subject.classifier(Around(lambda inner, x: inner(x) * (1 + 2**-8 * (len(x) > 1))), (X, Y))).alarms
    assert any("what else is in the batch" in a.says for a in wide)


@pytest.mark.parametrize("by", ["softmax", "numbers"])
def test_of_probabilities_the_logarithm_is_taken_and_said(by: str) -> None:
    def sums_to_one(inner: nn.Module, x: Tensor) -> Tensor:
        return inner(x).softmax(1) if by == "softmax" else inner(x).exp() / inner(x).exp().sum(1, keepdim=True)

    mended, alarms = admit(Subject.classifier(Around(sums_to_one), (X, Y)))
    assert isinstance(mended.model, LogProbabilities)
    assert "probabilities where logits are expected; their logarithm was taken" in alarms[0].says
    x = torch.from_numpy(X)
    assert_close(mended.predict(x).softmax(1), Bright()(x).softmax(1), rtol=1e-4, atol=1e-6)
    assert admit(mended).subject is mended  # once is enough


def test_behind_a_softmax_that_rounds_to_one_the_gradient_is_still_there() -> None:
    model = LogProbabilities(Around(lambda inner, x: (50 * inner(x)).softmax(1)))
    x = torch.zeros(1, 1, 6, 6, requires_grad=True)
    out = model(x)
    assert_close(out[0, 0] - out[0, 1], torch.tensor(2000.0), rtol=1e-4, atol=0)
    (slope,) = torch.autograd.grad(out[0, 1], x)
    assert slope.abs().max() > 1


@pytest.mark.parametrize("form", ["logit", "column of logits", "sigmoid", "probability by numbers"])
def test_one_score_is_read_as_two_classes(form: str) -> None:
    def score(inner: nn.Module, x: Tensor) -> Tensor:
        z = inner(x)[:, 1] - inner(x)[:, 0]
        return {
            "logit": z,
            "column of logits": z[:, None],
            "sigmoid": z[:, None].sigmoid(),
            "probability by numbers": 1 / (1 + (-z).exp()),
        }[form]

    subject = Subject.classifier(Around(score), (X, Y))
    assert isinstance(subject.model, OneScore)
    assert len(subject.task.classes) == 2
    assert ("probability" in subject.notes[0]) == ("sigmoid" in form or "probability" in form)
    x = torch.from_numpy(X)
    assert_close(subject.predict(x).softmax(1), Bright()(x).softmax(1), rtol=1e-3, atol=1e-6)
    assert assay.audit(subject, probes=["accuracy"]).alarms[0].says == subject.notes[0]


def test_one_score_for_three_classes_is_refused() -> None:
    with pytest.raises(AssayError, match="1 outputs for 3 classes"):
        Subject.classifier(Around(lambda inner, x: inner(x)[:, :1]), (X, Y), classes=["a", "b", "c"])


# Radii are shares of the range.


def worst(subject: Subject, probe: str = "worst-case-accuracy", **settings: object):
    row = assay.audit(subject, probes=[configure(shelf.load("probes", probe), settings)]).rows[0]
    assert row.answer.finding is not None, row.answer.why
    return row.answer.finding


@pytest.mark.parametrize(("low", "high"), [(0.0, 255.0), (-1.0, 1.0)])
def test_the_same_network_in_other_units_gets_the_same_numbers(low: float, high: float) -> None:
    plain = Subject.classifier(Bright(), (X, Y))
    other = Subject.classifier(Bright(low, high - low), (low + X * (high - low), Y), bounds=(low, high))
    for probe, settings in (("worst-case-accuracy", {"steps": 10}), ("distance-to-failure", {"steps": 30})):
        one, two = worst(plain, probe, **settings), worst(other, probe, **settings)
        assert [m.name for m in one.measures] == [m.name for m in two.measures]
        for a, b in zip(one.measures, two.measures, strict=True):
            assert a.value == pytest.approx(b.value, rel=0.05, abs=0.02), a.name
        assert two.witnesses is not None
        assert low - 1e-4 <= two.witnesses.changed.min() < two.witnesses.changed.max() <= high + 1e-4
        assert_close(torch.from_numpy(two.witnesses.clean), other.data["test"].take(two.witnesses.index)[0])


def test_a_radius_is_told_in_both_units() -> None:
    space = InputSpace((2,), natural=InputSpace((2,), 0, 255))
    assert space.size(8 / 255) == "0.0314 of the range (8 between 0 and 255)"
    columns = InputSpace.between((2,), (0, 10), (1, 1000))
    assert "from 0.1 to 99 in its own units" in InputSpace((2,), natural=columns).size(0.1)
    assert InputSpace((2,)).size(0.1) == "0.1"


class Columns(nn.Module):
    """A logistic regression on a table in raw units: half of the answer hangs on each column."""

    def forward(self, x: Tensor) -> Tensor:
        z = 10 * ((x[:, 0] / 1000 - 0.5) + (x[:, 1] - 0.5))
        return torch.stack([-z, z], 1)


def table(n: int = 200) -> tuple[np.ndarray, np.ndarray]:
    shares = RNG.random((n, 2), dtype=np.float32)
    return shares * np.array([1000, 1], dtype=np.float32), (shares.sum(1) > 1).astype(np.int64)


def test_columns_have_ranges_of_their_own_from_the_data_and_it_is_said() -> None:
    x, y = table()
    for bounds in (None, (0, 1000)):
        subject = Subject.classifier(Columns(), {"test": (x, y), "train": table()}, bounds=bounds)
        assert subject.inputs.ranges is not None
        assert "Nobody said what each column lies between" in subject.notes[0]
        found = worst(subject, steps=5, radius=0.05)
        # the truth by hand: the two shares together are within twice the radius of the boundary
        _, span = subject.inputs.edges()
        margin = np.abs(x[:, 0] / 1000 + x[:, 1] - 1)
        held = float((margin > 0.05 * (span[0] / 1000 + span[1]).item()).mean())
        assert found.measures[0].value == pytest.approx(held, abs=0.02)
    told = Subject.classifier(Columns(), (x, y), bounds=((0, 0), (1000, 1)))
    assert told.notes == ()
    assert told.inputs.ranges == ((0.0, 1000.0), (0.0, 1.0))


def test_a_column_that_never_changes_is_left_alone() -> None:
    x, y = table()
    x = np.concatenate([x, np.full((len(x), 1), 7.0, dtype=np.float32)], 1)
    subject = Subject.classifier(Columns(), (x, y))
    found = worst(subject, steps=5, radius=0.05)
    assert found.witnesses is not None
    assert (found.witnesses.changed[:, 2] == 7).all()


def test_rows_of_pixels_and_columns_alike_keep_the_bounds_given() -> None:
    x = (RNG.random((50, 20)) * 255).astype(np.float32)
    x[:, 0] = 3
    subject = Subject.classifier(nn.Linear(20, 2), (x, Y[:50]), bounds=(0, 255))
    assert subject.inputs == InputSpace((20,), 0.0, 255.0)
    assert subject.notes == ()


@pytest.mark.parametrize(
    ("bounds", "says"),
    [
        (((0, 0, 0), (1, 1, 1)), "Bounds for 3 features, and an input of shape .2,. has 2"),
        (((0, 5), (1, 1)), "low <= high, got 5 and 1 for feature 1"),
        (((0, 0), (1, 1, 1)), "2 lows and 3 highs"),
        (((0, 0), (1000, 0.5)), "has the value .* in feature 1 outside the bounds .0, 0.5."),
    ],
)
def test_bounds_that_do_not_fit_are_told(bounds: object, says: str) -> None:
    with pytest.raises(AssayError, match=says):
        Subject.classifier(Columns(), table(), bounds=bounds)


def test_pixels_are_brought_to_the_bounds() -> None:
    pixels = (X * 255).round().astype(np.uint8)
    for bounds in ((0, 255), (-1, 1), (0, 1)):
        low, high = bounds
        subject = Subject.classifier(Bright(low, high - low), (pixels, Y), bounds=bounds)
        x, _ = subject.data["test"].take(np.arange(60))
        assert_close(x, torch.from_numpy(low + pixels.astype(np.float32) / 255 * (high - low)), rtol=1e-6, atol=1e-6)
        assert assay.audit(subject, probes=["accuracy"]).rows[0].answer.finding.measures[0].value > 0.9


def test_rescaled_is_the_model_in_shares() -> None:
    subject = Subject.classifier(Bright(-1, 2), (2 * X - 1, Y), bounds=(-1, 1)).in_shares()
    assert isinstance(subject.model, Rescaled)
    assert (subject.inputs.low, subject.inputs.high) == (0, 1)
    assert_close(subject.data["test"].take(np.arange(60))[0], torch.from_numpy(X), rtol=0, atol=1e-6)
    assert_close(subject.predict(torch.from_numpy(X)), Bright()(torch.from_numpy(X)), rtol=1e-3, atol=1e-4)
    assert subject.in_shares() is subject


# Two models, two answers.


class Wrapper(nn.Module):
    def __init__(self, fitted) -> None:
        super().__init__()
        self.fitted = fitted

    def forward(self, x: Tensor) -> Tensor:
        return torch.from_numpy(self.fitted.predict_proba(x.flatten(1).numpy())).float()


@pytest.mark.usefixtures("undrawn")
def test_three_fitted_models_in_one_wrapper_do_not_share_an_answer(tmp_path: Path) -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.tree import DecisionTreeClassifier

    flat = X.reshape(60, -1)
    models = [
        LogisticRegression().fit(flat, Y),
        LogisticRegression().fit(flat, RNG.permutation(Y)),
        DecisionTreeClassifier(max_depth=2, random_state=0).fit(flat, Y),
    ]
    subjects = [Subject.classifier(Wrapper(m), (X, Y), name="one name", differentiable=False) for m in models]
    assert len({s.fingerprint() for s in subjects}) == 3
    assert (
        subjects[0].fingerprint() == Subject.classifier(Wrapper(models[0]), (X, Y), differentiable=False).fingerprint()
    )
    truth = [float((m.predict(flat) == Y).mean()) for m in models]
    said = [
        assay.audit(s, probes=["accuracy"], out=tmp_path).rows[0].answer.finding.measures[0].value for s in subjects
    ]
    assert said == pytest.approx(truth)


@pytest.mark.usefixtures("undrawn")
def test_answers_that_no_part_of_the_model_shows_are_part_of_the_key(tmp_path: Path) -> None:
    """The model reads a global: its parts are the same, its answers are not."""
    for sign in (1, -1):
        globals()["SIGN"] = sign
        subject = Subject.classifier(Around(lambda inner, x: SIGN * inner(x)), (X, Y))  # noqa: F821
        value = assay.audit(subject, probes=["accuracy"], out=tmp_path).rows[0].answer.finding.measures[0].value
        assert (value > 0.9) == (sign == 1)


def test_a_tensor_that_torch_does_not_register_and_a_private_attribute_are_seen() -> None:
    def marked(**marks: object) -> str:
        model = Bright()
        for name, value in marks.items():
            setattr(model, name, value)
        return Subject.classifier(model, (X, Y)).fingerprint()

    same = marked(shift=torch.ones(3), _flag=1, table={"a": np.arange(3)})
    assert same == marked(shift=torch.ones(3), _flag=1, table={"a": np.arange(3)})
    assert same != marked(shift=torch.ones(3) * 2, _flag=1, table={"a": np.arange(3)})
    assert same != marked(shift=torch.ones(3), _flag=2, table={"a": np.arange(3)})
    claimed = {marked(shift=torch.ones(3) * k, state_digest="the same") for k in (1, 2)}
    assert len(claimed) == 2  # what a model says of itself hides nothing
    assert same != marked(shift=torch.ones(3), _flag=1, table={"a": np.arange(3) + 1})


def test_what_cannot_be_hashed_is_not_remembered() -> None:
    import threading

    model = Bright()
    model.lock = threading.Lock()
    subject = Subject.classifier(model, (X, Y))
    assert subject.fingerprint() != subject.fingerprint()
    assert (
        dataclasses.replace(subject, model=Bright()).fingerprint() == Subject.classifier(Bright(), (X, Y)).fingerprint()
    )


def test_a_model_at_chance_on_test_inputs_alone_is_an_alarm() -> None:
    def alarms(test: np.ndarray) -> str:
        subject = Subject.classifier(Bright(), {"test": (test, Y), "train": (X, Y)})
        finding = assay.audit(subject, probes=["accuracy"]).rows[0].answer.finding
        assert finding is not None
        return " ".join(a.says for a in finding.alarms)

    assert "of the training inputs, and here no more often than always saying the commonest class" in alarms(X / 255)
    assert "commonest class" not in alarms(X)


class Photographs:
    """So many large images, each made when it is taken."""

    classes = ("dark", "bright")

    def __init__(self, count: int, side: int) -> None:
        self.labels, self.side = np.arange(count) % 2, side

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        y = torch.from_numpy(self.labels[rows])
        shade = 0.25 + 0.5 * y + torch.from_numpy(rows) / 1e4
        return shade.float()[:, None, None, None].expand(-1, 3, self.side, self.side), y


@pytest.mark.parametrize(("side", "together"), [(8, 256), (256, 42), (2048, 4)])
def test_a_large_model_is_not_shown_hundreds_of_photographs_at_once(side: int, together: int) -> None:
    seen: list[int] = []

    def counting(inner: nn.Module, x: Tensor) -> Tensor:
        seen.append(len(x))
        return inner(x[:, :1, :2, :2])

    model = Around(counting)
    data = {"test": Photographs(400, side)}
    admitted = admit(
        Subject(
            name="photographs",
            model=model,
            task=Classification(("dark", "bright")),
            inputs=InputSpace(shape=(3, side, side)),
            data=data,
        )
    ).subject
    few = min(16, together)
    assert max(seen) == together
    # form, which also tells what is answered among all; in place; whether that stays; torch; a gradient; twice for
    # chance; steady, twice; together and alone
    assert sum(seen) == together + 2 * few + 1 + 1 + 2 * min(8, together) + 2 * few + few + few
    seen.clear()
    admitted.behaviour()
    assert seen == [together]


def test_gradients_that_are_off_for_the_whole_process_are_on_for_a_question() -> None:
    """Many a script for inference says so in its first lines."""
    subject = Subject.classifier(Bright(), (X, Y))
    plain = assay.audit(subject, probes=["worst-case-accuracy"], inputs=20)
    torch.set_grad_enabled(False)
    try:
        off = assay.audit(Subject.classifier(Bright(), (X, Y)), probes=["worst-case-accuracy"], inputs=20)
        assert not torch.is_grad_enabled()
    finally:
        torch.set_grad_enabled(True)
    one, other = (done.rows[0].answer.finding for done in (plain, off))
    assert one is not None
    assert other is not None
    assert [m.value for m in other.measures] == [m.value for m in one.measures]


@pytest.mark.parametrize("inside", [True, False])
def test_a_model_in_double_by_default_is_asked_so_and_the_questions_are_not(inside: bool) -> None:
    """Its file said so, or it says so itself whenever it is asked."""

    class Doubled(Bright):
        def forward(self, x: Tensor) -> Tensor:
            if inside:
                torch.set_default_dtype(torch.float64)
            assert torch.zeros(1).dtype == torch.float64, "it was made for doubles"
            return super().forward(x.double())

    try:
        if not inside:
            torch.set_default_dtype(torch.float64)
        subject = Subject.classifier(Doubled(), (X, Y))
        mended, alarms = admit(subject)
        assert [a.says for a in alarms] == [
            "The model changes torch for the whole process (float64 by default); it was put back after each answer."
        ]
        assert admit(mended).alarms == alarms
        probes = ["worst-case-accuracy", "does-it-know", "is-it-sure-far-away"]
        one, other = (assay.audit(s, probes=probes, inputs=30) for s in (subject, Subject.classifier(Bright(), (X, Y))))
        torch.set_default_dtype(torch.float32)
        mended.predict(torch.from_numpy(X))
        assert torch.get_default_dtype() == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)
    for ours, plain in zip(one.rows, other.rows, strict=True):
        assert ours.answer.finding is not None, ours.answer.why
        assert ours.verdict == plain.verdict


def test_a_model_that_switches_gradients_off_is_told_and_leaves_them_to_others() -> None:
    def deaf(inner: nn.Module, x: Tensor) -> Tensor:
        torch.set_grad_enabled(False)
        return inner(x)

    try:
        mended, alarms = admit(Subject.classifier(Around(deaf), (X, Y)))
    finally:
        torch.set_grad_enabled(True)
    assert [a.says.split(":")[0].split(" (no_grad")[0] for a in alarms] == [
        "The model changes torch for the whole process (gradients off); it was put back after each answer.",
        "No gradient leads from the model's answers to its inputs",
    ]
    mended.predict(torch.from_numpy(X))
    assert torch.is_grad_enabled()


def at_most(count: int):
    def few(inner: nn.Module, x: Tensor) -> Tensor:
        if len(x) > count:
            raise RuntimeError(f"at most {count} at a time")
        return inner(x)

    return few


@pytest.mark.parametrize(("count", "shown"), [(20, 16), (5, 4), (59, 32), (200, None)])
def test_a_model_that_takes_few_at_a_time_is_asked_in_pieces(count: int, shown: int | None) -> None:
    """Most questions failed on it, each in a line, and nobody could say how many it takes."""
    data = {"train": (X, Y), "test": (X, Y)}
    admitted = admit(Subject.classifier(Around(at_most(count)), data, name="few"))
    told = [alarm.says for alarm in admitted.alarms if "at a time" in alarm.says]
    says = f"The model takes no large batches, and was shown at most {shown} inputs at a time."
    assert told == ([] if shown is None else [says])
    if shown is not None:
        out = admitted.subject.predict(torch.from_numpy(X))
        assert_close(out, Bright()(torch.from_numpy(X)))
        assert admitted.subject.leads()


def test_what_is_asked_in_pieces_is_answered_as_the_whole() -> None:
    def found(model: nn.Module) -> dict[tuple[str, str], float | None]:
        subject = Subject.classifier(model, (X, Y), name="one name")
        done = assay.audit(subject, probes=("accuracy", "certified-radius", "worst-case-accuracy"), inputs=16)
        told = {row.answer.probe: row.answer.finding for row in done.rows}
        assert all(told.values()), [row.answer.why for row in done.rows]
        return {(name, m.name): m.value for name, finding in told.items() if finding for m in finding.measures}

    few, whole = found(Around(at_most(20))), found(Bright())
    assert few.keys() == whole.keys()
    assert few == pytest.approx(whole)


class FewThroughLayers(nn.Module):
    """Layers that a question may watch, each once in a pass."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(36, 16), nn.ReLU(), nn.Linear(16, 2))
        self.most = most

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > self.most:
            raise RuntimeError(f"at most {self.most} at a time")
        out: Tensor = self.net(x)
        return out


def test_who_watches_a_layer_sees_it_once_in_a_pass() -> None:
    torch.manual_seed(0)
    few, whole = FewThroughLayers(20).eval(), FewThroughLayers(1000).eval()
    whole.load_state_dict(few.state_dict())
    asked = ("does-the-metric-hold", "does-an-error-grow")
    data = {"train": (X, Y), "test": (X, Y)}
    found = []
    for model in (few, whole):
        done = assay.audit(Subject.classifier(model, data, name="one name"), probes=asked, inputs=60)
        assert [row.answer.status for row in done.rows] == ["asked", "asked"], [row.answer.why for row in done.rows]
        finding = done.rows[0].answer.finding
        assert finding is not None
        found.append(finding.measures[0].value)
    assert found[0] == pytest.approx(found[1])


def test_an_input_that_breaks_the_model_is_no_question_of_size() -> None:
    def picky(inner: nn.Module, x: Tensor) -> Tensor:
        if bool((x > 2).any()):
            raise RuntimeError("too bright")
        return inner(x)

    x = X.copy()
    x[30] = 3.0
    admitted = admit(Subject.classifier(Around(picky), (x, Y), name="picky", bounds=(0.0, 3.0)))
    assert not [alarm for alarm in admitted.alarms if "at a time" in alarm.says]


def cut_off(inner: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        out: Tensor = inner(x)
    return out


def by_numpy(inner: nn.Module, x: Tensor) -> Tensor:
    z = 40 * (x.numpy().reshape(len(x), -1).mean(1) - 0.5)
    return torch.from_numpy(np.stack([-z, z], 1))


def overwritten(inner: nn.Module, x: Tensor) -> Tensor:
    """As what was made faster for answers is: its way back needs what it wrote over."""
    kept = (x + 1).exp()
    out: Tensor = inner(kept.log() - 1)
    kept.zero_()
    return out


@pytest.mark.parametrize("how", [cut_off, by_numpy, overwritten])
def test_a_model_that_carries_no_gradient_is_asked_what_needs_none(how) -> None:
    """It was said to give gradients, and every question that follows them failed."""
    subject = Subject.classifier(Around(how), {"train": (X, Y), "test": (X, Y)}, name="cut")
    assert subject.differentiable
    assert not subject.leads()
    assert Subject.classifier(Bright(), (X, Y), name="whole").leads()
    admitted = admit(subject)
    assert any("No gradient leads" in alarm.says for alarm in admitted.alarms)
    assert not any("No gradient leads" in a.says for a in admit(Subject.classifier(Bright(), (X, Y), name="b")).alarms)
    named = ("distance-to-failure", "one-change-for-all", "is-the-map-faithful", "does-an-error-grow")
    found = assay.audit(subject, probes=(*named, "worst-case-accuracy", "is-the-number-real"), inputs=12)
    told = {row.answer.probe: row.answer for row in found.rows}
    assert not [name for name, answer in told.items() if answer.status == "failed"]
    assert told["is-the-map-faithful"].status == "does not apply"
    assert "needs gradients" in (told["is-the-map-faithful"].why or "")
    refused = any("fails where a gradient is asked for" in alarm.says for alarm in admitted.alarms)
    assert refused == (how is not cut_off)
    whole = assay.audit(Subject.classifier(Bright(), (X, Y), name="b"), probes=("is-the-number-real",), inputs=12)
    assert not found.subject.differentiable  # what the report's head says
    assert whole.subject.differentiable
    cut, plain = (answer.finding for answer in (told["is-the-number-real"], whole.rows[0].answer))
    assert cut is not None  # what goes through such a thing is asked, and gets through
    assert plain is not None
    number = "accuracy, all attacks"
    assert cut.measure(number).value == plain.measure(number).value < cut.measure("accuracy, the usual attack").value


def test_a_model_that_fails_with_and_without_gradients_is_taken_at_its_word() -> None:
    def in_pairs(inner: nn.Module, x: Tensor) -> Tensor:
        if len(x) % 2:
            raise ValueError("two at a time")
        out: Tensor = inner(x)
        return out

    model, task, inputs = Around(in_pairs), Classification(("dark", "bright")), InputSpace(shape=(1, 6, 6))
    assert Subject(name="pairs", model=model, task=task, inputs=inputs, data={"test": Arrays(X, Y)}).leads()


def test_what_is_changed_in_place_does_not_hide_a_gradient() -> None:
    assert Subject.classifier(Around(in_place), (X, Y), name="eats its input").leads()
