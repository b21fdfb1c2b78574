"""The seven ways to a translator's uncertainty, from the command line to the trainer of each."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from assay import shelf
from assay.data.image_pairs import ImagePairs, Split
from assay.engine.local import ThisProcess
from assay.errors import AssayError
from assay.jobs import translate as job
from assay.jobs.translate import WAYS, Settings, network, translate, write_sample
from assay.jobs.translate_ways import Lesson, Lowered, Turned, made, subject
from assay.run import Run
from assay.server import kinds

if TYPE_CHECKING:
    from pathlib import Path

TINY: dict[str, Any] = {"epochs": 3, "members": 3, "batch": 3, "width": 2, "levels": 2}


def lesson(settings: Settings) -> Lesson:
    return Lesson(**{name: getattr(settings, name) for name in Lesson._fields})


@pytest.fixture(scope="module")
def pairs() -> ImagePairs:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (6, 1, 8, 8), dtype=np.uint8)
    names = tuple(map(str, range(6)))
    return ImagePairs(Split(names, x, 255 - x), Split(names[:2], x[:2], 255 - x[:2]))


@pytest.mark.parametrize("way", WAYS)
def test_every_way_has_a_mean_and_a_spread_and_the_same_seed_gives_the_same(
    way: str, pairs: ImagePairs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "_open", lambda data, run: pairs)
    read = []
    for out in ("a", "b"):
        done = translate(
            "x.zip", settings=Settings(**TINY, way=way), run=Run(engine=ThisProcess(), seed=3), out=tmp_path / out
        )
        told = json.loads((done.folder / "translation.json").read_text())
        read.append({name: told[name] for name in ("scores", "review", "widest", "largest")})
        assert told["widest"] > 0
        assert told["settings"]["way"] == way
        assert f"by {way}" in done.page.read_text()
        whole = way in ("ensemble", "fast-ensemble", "snapshot", "sgld")
        assert (done.folder / "translator.safetensors").exists() is whole
    assert read[0] == read[1]


@pytest.mark.parametrize("way", WAYS[1:])
def test_every_slider_reaches_the_trainer_of_every_way(
    way: str, pairs: ImagePairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = kinds.load("translate")
    posted = {"epochs": "4", "members": "3", "batch": "5", "learning_rate": "2.0e-3", "weight_decay": "2.5e-5",
              "dropout": "0.7", "way": way, "distance": "l2", "turned": "no"}  # fmt: skip
    settings, wrong = kind.read(posted)
    assert (wrong, kind.check(settings)) == ([], [])
    seen: dict[str, Any] = {}
    remedy = shelf.load("remedies", way)

    def watched(self: Any, of: Any, run: Run) -> Any:
        seen.update(self.settings(), of=of)
        raise AssayError("enough was seen")

    monkeypatch.setattr(remedy, "apply", watched)
    chosen = Settings(**settings)
    with pytest.raises(AssayError, match="enough was seen"):
        made(way, network(pairs, chosen), pairs, lesson(chosen), Run(engine=ThisProcess()))
    assert (seen["epochs"], seen["lr"], seen["weight_decay"], seen["batch"]) == (4, 2e-3, 2.5e-5, 5)
    assert 3 in (seen.get("members"), seen.get("samples"), seen.get("draws"))
    assert seen["of"].model.net.drop.p == 0.7
    assert seen["of"].task.distance == "l2"
    assert not isinstance(seen["of"].data["train"], Turned)


def test_what_is_lowered_and_what_is_turned(pairs: ImagePairs) -> None:
    out, target = torch.rand(2, 1, 4, 4), torch.rand(2, 1, 4, 4)
    for distance, wanted in (("l1", (out - target).abs()), ("l2", (out - target) ** 2)):
        torch.testing.assert_close(Lowered((1, 4, 4), 0.1, distance=distance).loss(out, target), wanted.mean((1, 2, 3)))
    data = subject(network(pairs, Settings(**TINY)), pairs, lesson(Settings(**TINY)), 0).data["train"]
    x, y = data.take(np.arange(6))
    torch.testing.assert_close(y, 1 - x)  # both alike
    again, _ = data.take(np.arange(6))
    assert not torch.equal(x, again)
    assert torch.equal(x.flatten(1).sort(1).values, again.flatten(1).sort(1).values)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"way": "magic"}, "--way 'magic' is none; choose ensemble, fast-ensemble"),
        ({"way": "snapshot", "members": 1}, "--way snapshot with --members 1 has no uncertainty; give 2 or more"),
        ({"way": "mc-dropout", "dropout": 0.0}, "draws the same each time"),
        ({"way": "snapshot", "epochs": 2}, "needs an epoch for each of its members; give --epochs 3"),
        ({"way": "batch-ensemble", "batch": 2}, "splits a batch among its members; give --batch 3 or more"),
    ],
)
def test_ways_that_cannot_be_are_one_line(given: dict[str, Any], says: str) -> None:
    with pytest.raises(AssayError, match=says):
        Settings(**given)


def test_the_command_line_takes_a_way(assay: Any, tmp_path: Path) -> None:
    write_sample(tmp_path / "pairs.zip", train=4, test=1)
    small = ["--epochs", "1", "--width", "2", "--levels", "2", "--members", "2", "--out", str(tmp_path / "out")]
    words = ["translate", str(tmp_path / "pairs.zip"), "--way", "mc-dropout", *small]
    ended = assay(*words)
    assert ended.status == 0, ended.err
    assert "--way mc-dropout" in " ".join(json.loads((tmp_path / "out" / "translation.json").read_text())["command"])
