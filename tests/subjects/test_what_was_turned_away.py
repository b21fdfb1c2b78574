"""Twenty-six things that newcomers brought: each opens and is asked, or one line says what it is and which door opens.

The doors have their own tests beside this one; here is one small case for each thing, so that none is turned away.
"""

from __future__ import annotations

import csv
import importlib.util
import os
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from assay import AssayError, Subject
from assay.data.arrays import Arrays
from assay.data.pairs import Pairs
from assay.data.table import Table
from assay.door import admit
from assay.engine.local import ThisProcess
from assay.nn.siamese import Siamese
from assay.probe import put
from assay.probes.attacked.worst_case_accuracy import WorstCaseAccuracy
from assay.probes.right.accuracy import Accuracy
from assay.run import Budget, Run
from assay.subjects import Source, open_subject
from assay.tasks import (
    Classification,
    Control,
    Detection,
    Forecast,
    ImageToImage,
    Labels,
    Regression,
    Segmentation,
    Similarity,
    Tagging,
)

os.environ["HF_HUB_OFFLINE"] = "1"
RNG = np.random.default_rng(0)
ROWS = RNG.random((90, 4)).astype(np.float32)
KIND = ROWS[:, :3].argmax(1)
IMAGES = RNG.random((12, 1, 8, 8)).astype(np.float32)
BRIGHT = (IMAGES.mean((1, 2, 3)) > np.median(IMAGES.mean((1, 2, 3)))).astype(np.int64)


RUN = Run(engine=ThisProcess(), budget=Budget("tiny", samples=100, steps=5, restarts=1, shown=1))


def accuracy(subject: Subject, task: type = Classification) -> float:
    """What the first question answers, once the subject is admitted as for an audit; its task is the one meant."""
    assert type(subject.task) is task
    answer = put(Accuracy(), admit(subject).subject, RUN, key="none is kept")
    assert answer.finding is not None, answer.why
    value = answer.finding.measure("accuracy").value
    assert value is not None
    return value


def refused(says: str, *of: Any, **told: Any) -> None:
    """One line that says this, from a source or from what was brought."""
    with pytest.raises(AssayError, match=says) as error:
        open_subject(*of) if isinstance(of[0], Source) else Subject.of(*of, **told)
    assert "\n" not in str(error.value)


def saved(path: Path, x: Any, y: Any) -> str:
    np.savez(path, x=x, y=y)
    return str(path)


def shipped(package: str, *inside: str) -> str:
    """A file that a package carries; found, not imported: what it needs need not be here."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not here")
    return str(Path(spec.origin).parent.joinpath(*inside))


def script(folder: Path, body: str) -> Path:
    (folder / "net.py").write_text("import torch\nfrom torch import nn\n\n\n" + body)
    return folder / "net.py"


@pytest.fixture(scope="module")
def forest() -> RandomForestClassifier:
    return RandomForestClassifier(10, random_state=0).fit(ROWS, KIND)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved(tmp_path_factory.mktemp("rows") / "rows.npz", ROWS, KIND)


# Estimators.


def test_1_a_forest(forest: RandomForestClassifier, rows: str, tmp_path: Path) -> None:
    joblib, sio = pytest.importorskip("joblib"), pytest.importorskip("skops.io")
    assert accuracy(Subject.of(forest, (ROWS, KIND))) == pytest.approx(forest.score(ROWS, KIND))
    joblib.dump(forest, tmp_path / "forest.joblib")
    (tmp_path / "forest.pkl").write_bytes(pickle.dumps(forest))
    for name in ("forest.joblib", "forest.pkl"):
        way = rf"{name}' is a pickle, .* skops.io.dump\(model, 'forest.skops'\) for an estimator"
        refused(way, Source(str(tmp_path / name), rows))
    sio.dump(forest, tmp_path / "forest.skops")  # the way that it names
    assert accuracy(open_subject(Source(str(tmp_path / "forest.skops"), rows))) > 0.9


def test_2_a_logistic_pipeline() -> None:
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(ROWS, KIND)
    assert accuracy(Subject.of(model, (ROWS, KIND))) == pytest.approx(model.score(ROWS, KIND))


def test_3_a_multilayer_perceptron() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it need not converge
        model = MLPClassifier(8, max_iter=20, random_state=0).fit(ROWS, np.array(["a", "b", "c"])[KIND])
    names = np.array(["a", "b", "c"])[KIND]
    assert accuracy(Subject.of(model, (ROWS, names))) == pytest.approx(model.score(ROWS, names))


@pytest.mark.parametrize(("package", "kind"), [("lightgbm", "LGBMClassifier"), ("xgboost", "XGBClassifier")])
def test_4_and_5_trees(package: str, kind: str) -> None:
    trees = pytest.importorskip(package)
    told = {"verbosity": -1} if package == "lightgbm" else {}
    model = getattr(trees, kind)(n_estimators=5, **told).fit(ROWS, KIND)
    assert accuracy(Subject.of(model, (ROWS, KIND))) == pytest.approx((model.predict(ROWS) == KIND).mean())


def test_6_a_forest_as_onnx_with_a_label_and_probabilities(
    forest: RandomForestClassifier, rows: str, tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime")
    content = pytest.importorskip("skl2onnx").to_onnx(forest, ROWS[:1])
    (tmp_path / "forest.onnx").write_bytes(content.SerializeToString())
    subject = open_subject(Source(str(tmp_path / "forest.onnx"), rows))
    assert accuracy(subject) == pytest.approx(forest.score(ROWS, KIND), abs=0.02)
    assert "output_probability is read" in subject.notes[0]


def test_7_a_csv_with_categories(tmp_path: Path) -> None:
    sio = pytest.importorskip("skops.io")
    jobs = np.array(["cook", "nurse", "pilot"])[KIND]
    with (tmp_path / "people.csv").open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["age", "job", "paid"])
        out.writerows(
            [f"{a:.3f}", job, "yes" if job == "pilot" else "no"] for a, job in zip(ROWS[:, 3], jobs, strict=True)
        )
    x = np.stack([ROWS[:, 3], KIND], 1)
    forest = RandomForestClassifier(5, random_state=0).fit(x, np.where(KIND == 2, "yes", "no"))
    sio.dump(forest, tmp_path / "p.skops")
    subject = open_subject(Source(str(tmp_path / "p.skops"), str(tmp_path / "people.csv"), target="paid"))
    assert accuracy(subject) == 1.0
    assert subject.task.classes == ("no", "yes")
    assert subject.kind is not None
    in_python = Subject.of(forest, Table(tmp_path / "people.csv", "paid"))
    assert in_python.kind == subject.kind  # also where nobody names it
    refused(
        "is a table; name the column that a model should predict: --target",
        Source(str(tmp_path / "p.skops"), str(tmp_path / "people.csv")),
    )


# A Hugging Face folder, and texts as they were written.

WORDS = ("[PAD]", "[UNK]", "good", "bad", "film", "a")
REVIEWS = [("a good film", 2), ("bad", 0), ("a film", 1), ("good good", 2), ("bad bad film", 0), ("film", 1)]


class Told:
    """A folder of a model that tells good from bad films, and reviews with their stars."""

    def __init__(self, folder: Path, names: tuple[str, ...] | None = None, padding: int = 0) -> None:
        transformers, tokenizers = pytest.importorskip("transformers"), pytest.importorskip("tokenizers")
        order = [*WORDS[1:]]
        order.insert(padding, WORDS[0])
        made = tokenizers.Tokenizer(
            tokenizers.models.WordLevel({word: i for i, word in enumerate(order)}, unk_token="[UNK]")
        )
        made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_object=made, unk_token="[UNK]", pad_token="[PAD]", model_max_length=8
        )
        named = {} if names is None else {"id2label": dict(enumerate(names))}
        config = transformers.BertConfig(
            vocab_size=6, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
            max_position_embeddings=16, num_labels=3, initializer_range=0.5, **named,
        )  # fmt: skip
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.model = transformers.BertForSequenceClassification(config).eval()
        self.folder, self.csv = str(folder / "mood"), str(folder / "reviews.csv")
        self.model.save_pretrained(self.folder)
        tokenizer.save_pretrained(self.folder)
        with Path(self.csv).open("w", newline="") as file:
            csv.writer(file).writerows([("review", "stars"), *REVIEWS])
        alone = [torch.tensor([tokenizer(text)["input_ids"]]) for text, _ in REVIEWS]  # no padding anywhere
        with torch.no_grad():
            self.logits = torch.cat([self.model(input_ids=ids).logits for ids in alone])
        stars = torch.tensor([star for _, star in REVIEWS])
        self.right = float((self.logits.argmax(1) == stars).double().mean())

    def opened(self, **told: Any) -> Subject:
        return open_subject(Source(self.folder, self.csv, **({"text": "review", "target": "stars"} | told)))


@pytest.mark.parametrize("padding", [0, 5])
def test_8_a_hugging_face_folder_reads_the_reviews_of_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, padding: int
) -> None:
    monkeypatch.setattr("assay.data.texts.BATCH", 2)  # so that some batches are shorter than others
    told = Told(tmp_path, padding=padding)
    subject = told.opened()
    x, y = subject.data["test"].take(np.arange(len(REVIEWS)))
    assert y.tolist() == [star for _, star in REVIEWS]
    torch.testing.assert_close(subject.predict(x), told.logits, rtol=1e-4, atol=1e-5)
    assert accuracy(subject) == pytest.approx(told.right)
    assert subject.tokens
    assert not any("radius" in note for note in subject.notes)  # there is none between words
    assert "is a row of words by number" in str(WorstCaseAccuracy().why_not(subject))


def test_8_texts_in_python_and_what_is_wrong_with_them(tmp_path: Path) -> None:
    told = Told(tmp_path, ("0", "1", "2"))
    texts, stars = [text for text, _ in REVIEWS], [star for _, star in REVIEWS]
    subject = Subject.of(told.folder, {"test": (texts, stars), "train": (texts[:2], stars[:2])})
    assert accuracy(subject) == pytest.approx(told.right)
    assert subject.data["train"].take(np.arange(2))[0].shape == subject.data["test"].take(np.arange(2))[0].shape
    for words, says in (
        ({"text": None}, "reads texts, and .*reviews.csv is a table; name the column that holds them: --text COLUMN"),
        ({"target": None}, "is a table; name the column that a model should predict: --target COLUMN"),
        ({"text": "reviw"}, "no column of texts 'reviw'; did you mean 'review'"),
        ({"train": told.csv}, "--train .* is for columns, which texts have none of"),
    ):
        refused(says, Source(told.folder, told.csv, **({"text": "review", "target": "stars"} | words)))
    other = Told(tmp_path, ("poor", "fair", "fine"))
    refused(
        r"The target 'stars' is '0' in row 1, not among the classes 'poor', 'fair', 'fine'",
        Source(other.folder, other.csv, text="review", target="stars"),
    )


# Networks that others made.


def test_9_timm_by_a_function(tmp_path: Path) -> None:
    try:
        importlib.import_module("timm")
    except ImportError as e:  # it needs torchvision, which is another matter
        pytest.skip(f"timm is not here: {e}")
    path = script(
        tmp_path,
        'import timm\n\n\ndef build():\n    return timm.create_model("mobilenetv3_small_050", num_classes=2)\n',
    )
    data = saved(tmp_path / "images.npz", RNG.random((4, 3, 64, 64)).astype(np.float32), np.arange(4) % 2)
    assert 0 <= accuracy(open_subject(Source(f"{path}:build", data))) <= 1


def test_9_any_function_that_builds_a_network(tmp_path: Path) -> None:
    path = script(tmp_path, "def build():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 2))\n")
    data = saved(tmp_path / "images.npz", IMAGES, BRIGHT)
    assert open_subject(Source(f"{path}:build", data)).differentiable
    assert 0 <= accuracy(open_subject(Source(f"{path}:build", data))) <= 1


def test_10_magika(tmp_path: Path) -> None:
    path = shipped("magika", "models", "standard_v3_3", "model.onnx")
    pytest.importorskip("onnxruntime")
    data = saved(tmp_path / "bytes.npz", RNG.integers(0, 256, (2, 2048)).astype(np.float32), np.arange(2))
    subject = open_subject(Source(path, data, bounds=(0.0, 256.0)))
    assert accuracy(subject) == 0.0  # noise is none of these
    assert "takes whole numbers (int32)" in subject.notes[0]


def test_11_rapidocrs_three_networks(tmp_path: Path) -> None:
    cls, rec, det = (
        shipped("rapidocr_onnxruntime", "models", f"ch_{name}_infer.onnx")
        for name in ("ppocr_mobile_v2.0_cls", "PP-OCRv4_rec", "PP-OCRv4_det")
    )
    pytest.importorskip("onnxruntime")
    lines = RNG.random((2, 3, 48, 32)).astype(np.float32)
    upright = saved(tmp_path / "lines.npz", RNG.random((2, 3, 48, 192)).astype(np.float32), np.arange(2))
    assert accuracy(open_subject(Source(cls, upright))) in (0.0, 0.5, 1.0)
    written = saved(tmp_path / "words.npz", lines, np.arange(2))
    refused(r"rec_infer.onnx returned 1 x \d+ x 6625 .* no choice of one class \(Classification\); name its task, "
            r"Tagging or", Source(rec, written))  # fmt: skip
    places = 32 // 8
    subject = Subject.of(rec, (lines, np.zeros((2, places), dtype=int)), Tagging(tuple(map(str, range(6625)))))
    assert 0 <= accuracy(subject, Tagging) <= 1
    pages = RNG.random((2, 3, 32, 32)).astype(np.float32)
    refused(r"det_infer.onnx returned 1 x 1 x 32 x 32 .* a map over the image, .* Segmentation or ImageToImage",
            Source(det, saved(tmp_path / "pages.npz", pages, np.arange(2))))  # fmt: skip
    subject = Subject.of(det, (pages, np.zeros((2, 1, 32, 32), dtype=np.float32)), ImageToImage((1, 32, 32), 0.5))
    assert 0 <= accuracy(subject, ImageToImage) <= 1


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("silero_vad.onnx", {"output": "output", "feed": ("state=0", "sr=16000")}),
        ("silero_vad.jit", {"feed": ("sr=16000",)}),
    ],
)
def test_12_silero(file: str, words: dict[str, Any], tmp_path: Path) -> None:
    path = shipped("silero_vad", "data", file)
    pytest.importorskip("onnxruntime")
    sound = saved(tmp_path / "sound.npz", RNG.normal(0, 0.1, (4, 512)).astype(np.float32).clip(-1, 1), np.arange(4) % 2)
    refused(r"say what (the others|they) are: --feed", Source(path, sound, bounds=(-1.0, 1.0)))
    assert accuracy(open_subject(Source(path, sound, bounds=(-1.0, 1.0), **words))) == 0.5  # it hears nobody in noise


class Voices(nn.Module):
    """An encoder of resemblyzer's form: n 160 40 of a voice to a unit vector."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.linear = nn.LSTM(40, 8, batch_first=True), nn.Linear(8, 16)

    def forward(self, mels: Tensor) -> Tensor:
        _, (hidden, _) = self.lstm(mels)
        return nn.functional.normalize(self.linear(hidden[-1]).relu(), dim=1)


class Apart(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:  # n s, n s -> n
        return (a - b).norm(dim=1)


@pytest.mark.parametrize("real", [False, True], ids=["its form", "resemblyzer"])
def test_13_resemblyzer_as_similarity(real: bool) -> None:
    encoder: nn.Module = Voices()
    if real:
        encoder = pytest.importorskip("resemblyzer").VoiceEncoder("cpu", verbose=False)
    voices = RNG.random((8, 160, 40)).astype(np.float32)
    who = np.arange(8) % 3
    pairs = Pairs.alike(Arrays(voices, who), who, 6)
    subject = Subject.similarity(Siamese(encoder, Apart()), pairs, threshold=0.5)
    assert 0 <= accuracy(subject, Similarity) <= 1


# Tasks that are no choice of one class.


class First(nn.Module):
    """The first column, in this form: n, or n 1."""

    def __init__(self, flat: bool, shift: float = 0.0) -> None:
        super().__init__()
        self.flat, self.shift = flat, shift

    def forward(self, x: Tensor) -> Tensor:
        return x[:, 0] - self.shift if self.flat else x[:, :1] - self.shift


@pytest.mark.parametrize("flat", [True, False])
def test_14_a_regression(flat: bool) -> None:
    assert accuracy(Subject.of(First(flat), (ROWS, ROWS[:, 0])), Regression) == 1.0
    assert accuracy(Subject.of(First(flat), DataLoader(TensorDataset(*map(torch.tensor, (ROWS, ROWS[:, 0]))))),
                    Regression) == 1.0  # fmt: skip


@pytest.mark.parametrize("flat", [True, False])
def test_15_one_logit(flat: bool) -> None:
    subject = Subject.of(First(flat, 0.5), (ROWS, (ROWS[:, 0] > 0.5).astype(int)))
    assert accuracy(subject) == 1.0
    assert "it is read as the logit of the second class" in subject.notes[0]


def test_16_several_labels() -> None:
    class Each(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x[:, :3] - 0.5

    told = (ROWS[:, :3] > 0.5).astype(int)
    assert accuracy(Subject.of(Each(), (ROWS, told)), Labels) == 1.0
    assert accuracy(Subject.of(lambda x: x[:, :3] - 0.5, (ROWS, told)), Labels) == 1.0
    assert accuracy(Subject.of(Each(), (ROWS, told), Labels(("a", "b", "c"))), Labels) == 1.0


class Bright(nn.Module):
    """Two classes for each pixel: dark, bright. n 1 h w -> n 2 h w."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([0.5 - x, x - 0.5], 1)


SEGMENTER = """
import numpy as np

from assay import Subject
from assay.tasks import Segmentation


class Bright(nn.Module):
    def forward(self, x):
        return torch.cat([0.5 - x, x - 0.5], 1)


def build():
    x = np.random.default_rng(0).random((6, 1, 8, 8)).astype(np.float32)
    return Subject.of(Bright(), (x, (x[:, 0] > 0.5).astype(int)), Segmentation(("dark", "bright")))
"""


def test_17_a_segmentation(tmp_path: Path) -> None:
    masks = (IMAGES[:, 0] > 0.5).astype(int)
    assert accuracy(Subject.of(Bright(), (IMAGES, masks), Segmentation(("dark", "bright"))), Segmentation) == 1.0
    assert accuracy(open_subject(Source(f"{script(tmp_path, SEGMENTER)}:build")), Segmentation) == 1.0
    refused(r"shape \(12, 8, 8\) and dtype int64 are a class for each pixel, .*Segmentation\(...\)\)",
            Bright(), (IMAGES, masks))  # fmt: skip
    refused(r"returned 1 x 2 x 8 x 8 for one input: it gives a map over the image, .*\(Classification\); name its task",
            Bright(), (IMAGES, BRIGHT))  # fmt: skip


def test_18_a_denoiser() -> None:
    noisy = (IMAGES + 0.01 * RNG.random(IMAGES.shape)).clip(0, 1).astype(np.float32)
    assert accuracy(Subject.of(nn.Identity(), (noisy, IMAGES), ImageToImage((1, 8, 8), 0.2)), ImageToImage) == 1.0
    refused(r"dtype float32 are images, .* name its task, .*--task image-to-image or in Subject.of\(model, data, Image",
            nn.Identity(), (noisy, IMAGES))  # fmt: skip


def test_19_a_forecaster() -> None:
    class Last(nn.Module):
        def forward(self, x: Tensor) -> Tensor:  # n 12 2 -> n 3 2
            return x[:, -1:].expand(-1, 3, -1)

    series = RNG.random((20, 15, 2)).astype(np.float32).cumsum(1) / 15
    data = (series[:, :12], series[:, 12:])
    assert 0 <= accuracy(Subject.of(Last(), data, Forecast.of(series, 3)), Forecast) <= 1
    refused(r"are the steps of a series, or boxes, .* name its task, Forecast or Detection", Last(), data)


def test_20_a_detector() -> None:
    boxes = np.tile(np.array([0, 0.25, 0.25, 0.75, 0.75], dtype=np.float32), (12, 1, 1))

    class Middle(nn.Module):
        def forward(self, x: Tensor) -> Tensor:  # n 1 8 8 -> n 1 7
            return torch.tensor([0.25, 0.25, 0.75, 0.75, 9.0, 9.0, -9.0]).expand(len(x), 1, -1)

    assert accuracy(Subject.of(Middle(), (IMAGES, boxes), Detection(("cat", "dog"))), Detection) == 1.0
    refused(r"returned 1 x 1 x 7 for one input: it gives rows: .* or boxes, .* Forecast or Detection",
            Middle(), (IMAGES, BRIGHT))  # fmt: skip


def test_21_an_environment_with_its_policy() -> None:
    class Lean(nn.Module):
        """Pushes to where the pole falls."""

        def forward(self, x: Tensor) -> Tensor:  # n 4 -> n 2
            return torch.stack([-x[:, 2], x[:, 2]], 1)

    env = pytest.importorskip("gymnasium").make("CartPole-v1")
    refused(r"'test' is an environment \(\w+\), whose task is Control; give what it observes and what a reference does",
            Lean(), env)  # fmt: skip
    seen, (state, _) = [], env.reset(seed=0)
    for step in range(8):
        seen.append(state)
        state = env.step(step % 2)[0]
    states = np.stack(seen)
    bounds = ([-4.8, -9.0, -0.42, -9.0], [4.8, 9.0, 0.42, 9.0])
    data = (states, (states[:, 2] > 0).astype(int))
    assert accuracy(Subject.of(Lean(), data, Control(("left", "right")), bounds=bounds), Control) == 1.0


# Forms of answers, of data and of files.

DICT = """
class Net(nn.Module):
    def forward(self, x):
        return {"logits": 9 * x[:, :3], "features": x}


def build():
    return Net()
"""


def test_22_a_dict_of_outputs(rows: str, tmp_path: Path) -> None:
    path = script(tmp_path, DICT)
    refused(r"Net has the outputs logits \(1 x 3\), features \(1 x 4\); choose one with --output",
            Source(f"{path}:build", rows))  # fmt: skip
    assert accuracy(open_subject(Source(f"{path}:build", rows, output="logits"))) == 1.0

    class Net(nn.Module):
        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"logits": x[:, :3], "features": x}

    refused(r"returned dict, not a tensor; return the logits alone. It holds logits \(1 x 3\), features \(1 x 4\): "
            r"subject.py:build with --output NAME", Net(), (ROWS, KIND))  # fmt: skip


class Largest(nn.Module):
    def forward(self, x: Tensor) -> Tensor:  # n 4 -> n 3
        return x[:, :3]


class Cards:
    """A set by MAITE's protocol: items (input, one-hot target, metadata)."""

    metadata = {"id": "cards", "index2label": {0: "red", 1: "green", 2: "blue"}}  # noqa: RUF012

    def __len__(self) -> int:
        return len(ROWS)

    def __getitem__(self, k: int) -> tuple[np.ndarray, np.ndarray, dict[str, int]]:
        return ROWS[k], np.eye(3)[KIND[k]], {"id": k}


class Columns(list[Any]):
    """As Hugging Face's datasets are: rows by number, columns by name."""

    column_names = ("x", "label")

    def __getitem__(self, k: Any) -> Any:
        return [row[k] for row in self] if isinstance(k, str) else super().__getitem__(k)


def test_23_a_data_loader_and_sets_that_hold_their_items() -> None:
    loader = DataLoader(TensorDataset(torch.from_numpy(ROWS), torch.from_numpy(KIND)), batch_size=7, shuffle=True)
    named = Subject.of(Largest(), Cards())
    assert named.task.classes == ("red", "green", "blue")
    columns = Columns({"x": x.tolist(), "label": int(y)} for x, y in zip(ROWS, KIND, strict=True))
    for subject in (named, Subject.of(Largest(), {"test": loader}), Subject.of(Largest(), columns),
                    Subject.of(lambda x: x[:, :3], loader)):  # fmt: skip
        assert accuracy(subject) == 1.0
        assert len(subject.data["test"]) == len(ROWS)


def test_24_an_onnx_file_with_channels_last(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    value, node = onnx.helper.make_tensor_value_info, onnx.helper.make_node
    graph = onnx.helper.make_graph(
        [node("ReduceMean", ["image"], ["out"], axes=[1, 2], keepdims=0)],
        "keras",
        [value("image", onnx.TensorProto.FLOAT, ["n", 4, 5, 3])],
        [value("out", onnx.TensorProto.FLOAT, ["n", 3])],
    )
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, tmp_path / "keras.onnx")
    x = RNG.random((9, 3, 4, 5)).astype(np.float32)
    data = saved(tmp_path / "images.npz", x, x.mean((2, 3)).argmax(1))
    refused("takes inputs of shape 4 x 5 x 3, .* give --layout nhwc", Source(str(tmp_path / "keras.onnx"), data))
    assert accuracy(open_subject(Source(str(tmp_path / "keras.onnx"), data, layout="nhwc"))) == 1.0


def test_25_a_state_dict(tmp_path: Path) -> None:
    path = script(tmp_path, "def build():\n    return nn.Sequential(nn.Linear(4, 3, bias=False))\n")
    torch.save({"0.weight": torch.eye(3, 4)}, tmp_path / "state.pt")
    data = saved(tmp_path / "rows.npz", ROWS, KIND)
    refused(r"weights alone open with --builder net.py:build", Source(str(tmp_path / "state.pt"), data))
    opened = open_subject(Source(str(tmp_path / "state.pt"), data, builder=f"{path}:build"))
    assert accuracy(opened) == 1.0


def test_26_a_model_for_0_to_255() -> None:
    class Counts(nn.Module):
        def forward(self, x: Tensor) -> Tensor:  # n 1 8 8 -> n 2
            mean = x.mean((1, 2, 3)) - middle
            return torch.stack([-mean, mean], 1)

    pixels = (255 * IMAGES).astype(np.uint8)
    middle = float(np.median(pixels.mean((1, 2, 3))))
    y = (pixels.mean((1, 2, 3)) > middle).astype(int)
    refused(r"outside the bounds \[0, 1\]; scale the data .* or give --bounds LOW HIGH",
            Counts(), (pixels.astype(np.float32), y))  # fmt: skip
    for given in (pixels, pixels.astype(np.float32)):
        subject = Subject.of(Counts(), (given, y), bounds=(0.0, 255.0))
        assert accuracy(subject) == 1.0
        assert (subject.inputs.low, subject.inputs.high) == (0.0, 255.0)
