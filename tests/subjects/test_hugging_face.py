"""Folders as transformers writes them: tiny, with random weights, made here."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from assay.errors import AssayError, SubjectError
from assay.probe import put
from assay.probes.attacked.can_a_few_words_break_it import CanAFewWordsBreakIt
from assay.subjects import Source, doors, open_subject

os.environ["HF_HUB_OFFLINE"] = "1"
transformers: Any = None
tokenizers: Any = None


@pytest.fixture(scope="module", autouse=True)
def _loaded() -> None:
    """Here and not above: it takes seconds in every process that collects tests."""
    global transformers, tokenizers
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")


WORDS = ("[PAD]", "[UNK]", "good", "bad", "film", "a")
TEXTS = ["a good film", "bad", "a film a film"]


def tokenizer(**more):
    vocabulary = {word: i for i, word in enumerate(WORDS)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="[UNK]", model_max_length=6, **({"pad_token": "[PAD]"} | more)
    )


def bert(kind=None, names=("neg", "pos", "none"), size=6):
    config = transformers.BertConfig(
        vocab_size=size, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        max_position_embeddings=16, id2label=dict(enumerate(names)), label2id={n: i for i, n in enumerate(names)},
        initializer_range=0.5,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return (kind or transformers.BertForSequenceClassification)(config).eval()


def vit(names=("dog", "cat", "fox")):
    config = transformers.ViTConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, image_size=16, patch_size=8,
        id2label=dict(enumerate(names)), label2id={n: i for i, n in enumerate(names)}, initializer_range=0.5,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return transformers.ViTForImageClassification(config).eval()


MEAN, STD = [0.5, 0.4, 0.3], [0.2, 0.3, 0.4]
RECIPE = {"do_normalize": True, "image_mean": MEAN, "image_std": STD, "size": {"height": 16, "width": 16}}


def normal(x):
    return (x - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)


@pytest.fixture
def text_folder(tmp_path) -> Path:
    bert().save_pretrained(tmp_path / "mood")
    tokenizer().save_pretrained(tmp_path / "mood")
    return tmp_path / "mood"


@pytest.fixture
def image_folder(tmp_path) -> Path:
    vit().save_pretrained(tmp_path / "beasts")
    (tmp_path / "beasts" / "preprocessor_config.json").write_text(json.dumps(RECIPE))
    return tmp_path / "beasts"


def opened(folder: Path):
    return doors.open_file(folder, Source(str(folder)))


def test_texts_go_through_the_tokenizer(text_folder):
    model = opened(text_folder)
    ids = model.encode(TEXTS)
    assert ids.tolist() == [[5, 2, 4, 0], [3, 0, 0, 0], [5, 4, 5, 4]]
    alone = [bert()(input_ids=model.encode([text]).long()).logits for text in TEXTS]  # without any padding
    assert_close(model.model(ids), torch.cat(alone).detach(), rtol=1e-5, atol=1e-5)
    assert model.classes == ("neg", "pos", "none")
    assert model.gradients is False
    assert model.encode(["a " * 50]).shape == (1, 6)
    assert "cut to 6 tokens" in model.notes[0]
    with pytest.raises(AssayError, match="Texts are to be a list of strings"):
        model.encode("a good film")
    with pytest.raises(SubjectError, match="Token 9 is none of the 6 that the model has"):
        model.model(torch.tensor([[9.0]]))


def test_ids_make_a_subject(text_folder, tmp_path):
    ids = opened(text_folder).encode(TEXTS).float()
    np.savez(tmp_path / "ids.npz", x=ids.numpy(), y=np.arange(3))
    subject = open_subject(Source(str(text_folder), str(tmp_path / "ids.npz")))
    assert not subject.differentiable
    assert subject.task.classes == ("neg", "pos", "none")
    assert_close(subject.predict(ids), opened(text_folder).model(ids))
    assert subject.fingerprint() == open_subject(Source(str(text_folder), str(tmp_path / "ids.npz"))).fingerprint()


def test_tags_have_a_class_for_each_place(tmp_path):
    net = bert(transformers.BertForTokenClassification, ("O", "NAME"))
    net.save_pretrained(tmp_path / "names")
    tokenizer().save_pretrained(tmp_path / "names")
    model = opened(tmp_path / "names")
    assert model.answers == "tags"
    assert model.model(model.encode(TEXTS)).shape == (3, 4, 2)
    np.savez(tmp_path / "ids.npz", x=model.encode(TEXTS).float().numpy(), y=np.zeros(3, int))
    with pytest.raises(AssayError, match="give a class index for each place"):
        open_subject(Source(str(tmp_path / "names"), str(tmp_path / "ids.npz")))


def test_pixels_are_scaled_inside_the_model(image_folder):
    model, x = opened(image_folder), torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    assert_close(model.model(x), vit()(pixel_values=normal(x)).logits, rtol=1e-5, atol=1e-5)
    assert model.channels == 3
    wide = torch.rand(2, 3, 20, 32)
    resized = torch.nn.functional.interpolate(wide, (16, 16), mode="bilinear", antialias=True)
    assert_close(model.model(wide), vit()(pixel_values=normal(resized)).logits, rtol=1e-4, atol=1e-4)
    assert torch.autograd.gradcheck(model.model.double(), x[:1].double().requires_grad_(), eps=1e-6, atol=1e-4)


def test_pixels_that_are_not_scaled_stay(image_folder):
    (image_folder / "preprocessor_config.json").write_text(json.dumps({"do_normalize": False, "do_rescale": False}))
    x = torch.rand(2, 3, 16, 16)
    assert_close(opened(image_folder).model(x), vit()(pixel_values=x * 255).logits, rtol=1e-4, atol=1e-4)


def test_a_folder_of_images_is_matched_by_its_names(image_folder, tmp_path):
    from PIL import Image

    rng = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for i in range(2):
            Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(
                tmp_path / "images" / name / f"{i}.png"
            )
    subject = open_subject(Source(str(image_folder), str(tmp_path / "images")))
    assert subject.task.classes == ("dog", "cat", "fox")
    assert sorted(subject.data["test"].labels.tolist()) == [0, 0, 1, 1]
    assert subject.data["test"].labels[0] == 1  # the cats come first in the folder, and second in the model
    assert subject.differentiable


def broken(folder: Path, **files: str) -> str:
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(content)
    with pytest.raises(AssayError) as caught:
        opened(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def changed(folder: Path, name: str, **fields) -> None:
    told = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps(told | fields))


def test_what_is_missing_or_foreign_is_one_line(text_folder, tmp_path):
    (tmp_path / "mood" / "model.safetensors").rename(tmp_path / "kept")
    (text_folder / "pytorch_model.bin").write_bytes(b"a pickle")
    assert "has no .safetensors" in broken(text_folder)
    (text_folder / "model.safetensors").symlink_to(tmp_path / "kept")
    assert "is a link that leads out of" in broken(text_folder)
    (text_folder / "model.safetensors").unlink()
    (text_folder / "model.safetensors").write_bytes((tmp_path / "kept").read_bytes()[:-100])
    assert "cannot be loaded by transformers" in broken(text_folder)
    (tmp_path / "kept").rename(text_folder / "model.safetensors")
    changed(text_folder, "config.json", architectures=["BertForMaskedLM"])
    assert "holds a 'BertForMaskedLM'; what opens ends in one of ...ForSequenceClassification" in broken(text_folder)
    changed(text_folder, "config.json", architectures=["BertForSequenceClassification"], auto_map={"AutoModel": "x.Y"})
    assert "needs code of its maker ('AutoModel'), which is not run" in broken(text_folder)
    assert "is no JSON" in broken(text_folder, config__json="{")
    assert "holds list, no settings" in broken(text_folder, config__json="[]")


def test_a_network_without_its_head_is_not_made_up(tmp_path):
    net = bert()
    net.save_pretrained(tmp_path / "mood")
    tokenizer().save_pretrained(tmp_path / "mood")
    from safetensors.torch import load_file, save_file

    weights = load_file(tmp_path / "mood" / "model.safetensors")
    save_file({k: v for k, v in weights.items() if "classifier" not in k}, tmp_path / "mood" / "model.safetensors")
    assert "lack 'classifier.bias', 'classifier.weight', which would be random" in broken(tmp_path / "mood")


def test_a_tokenizer_that_does_not_belong(text_folder, tmp_path):
    bert(size=4).save_pretrained(text_folder)
    assert "has 6 tokens and the model 4; save the two that belong together" in broken(text_folder)
    bert().save_pretrained(text_folder)
    tokenizer(pad_token=None).save_pretrained(text_folder)
    assert "has no padding token" in broken(text_folder)
    assert "cannot be loaded" in broken(text_folder, tokenizer__json="{}")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (text_folder / name).unlink()
    assert "has no tokenizer; save it there" in broken(text_folder)


def test_a_folder_without_a_config_is_no_model(tmp_path):
    with pytest.raises(AssayError, match="is a folder; give a name"):
        open_subject(Source(str(tmp_path)))


def test_a_file_of_texts_opens_beside_its_model_and_its_words_can_be_attacked(text_folder, tmp_path, run):
    table = "text,label\na good film,pos\nbad,neg\na film a film,none\n"
    (tmp_path / "films.csv").write_text(table)
    source = Source(str(text_folder), data=str(tmp_path / "films.csv"), text="text", target="label")
    subject = open_subject(source)
    data = subject.data["test"]
    assert data.take(np.arange(3))[0].tolist() == [[5, 2, 4, 0], [3, 0, 0, 0], [5, 4, 5, 4]]
    assert (subject.tokens, subject.inputs.low, subject.inputs.high) == (True, 0.0, len(WORDS) - 1.0)
    answer = put(CanAFewWordsBreakIt(), subject, run)
    assert answer.status == "asked", answer.why
    x, fits = data.encode(["a good film", "a a a a a"])
    assert fits.tolist() == [True, False]
    assert x[0].tolist() == [5, 2, 4, 0]


def test_a_folder_comes_through_the_browser_as_a_zip(text_folder, tmp_path) -> None:
    """Packed with its folder or without, it is the same subject; what can run code is refused as ever."""
    import shutil

    uploads = pytest.importorskip("assay.server.uploads")
    from assay.server import kinds

    (tmp_path / "texts.csv").write_text("words,mood\na good film,pos\nbad,neg\na film,none\n")
    kept, kind = uploads.Uploads(tmp_path / "home"), kinds.load("audit")
    plain = Source(str(text_folder), data=str(tmp_path / "texts.csv"), text="words", target="mood")

    def answers(source: Source) -> torch.Tensor:
        subject = open_subject(source)
        return subject.predict(subject.data["test"].take(np.arange(3))[0])

    wanted = answers(plain)
    for number, (root, base) in enumerate(((text_folder, None), (tmp_path, "mood"))):
        packed = shutil.make_archive(str(tmp_path / f"packed{number}"), "zip", root, base)
        draft = str(number) * 22
        with open(packed, "rb") as content:
            upload = kept.take("ada", draft, "mood.zip", content, code=False)
        assert upload.path.is_dir()
        settings = {"model": upload.name, "data": "texts.csv", "text": "words", "target": "mood"}
        assert kind.check(settings, [upload.name, "texts.csv"]) == []
        words = kind.argv(settings, upload.path.parent.parent)
        assert words[1] == str(upload.path)
        assert_close(answers(Source(words[1], data=plain.data, text="words", target="mood")), wanted)
    (text_folder / "modeling.py").write_text("")
    packed = shutil.make_archive(str(tmp_path / "code"), "zip", text_folder)
    with open(packed, "rb") as content, pytest.raises(AssayError, match="can run code when it is opened"):
        kept.take("ada", "C" * 22, "mood.zip", content, code=False)
    assert "has to end in" in kind.check({"model": "mood.csv", "data": "texts.csv"}, ["mood.csv", "texts.csv"])[0]
