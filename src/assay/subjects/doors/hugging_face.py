"""A Hugging Face folder: config.json, *.safetensors, and a tokenizer or a preprocessor, through transformers.

Nothing is downloaded and no code in the folder is run (`local_files_only`, `trust_remote_code=False`, safetensors
alone). What the model is for is told by the architecture in its config:

    ...ForImageClassification     pixels from 0 to 1, channels first; what preprocessor_config.json says of size, mean
                                  and spread is done inside the model, so that a radius is one of pixels
    ...ForSequenceClassification  token ids (n l), which come as floats; `encode` makes them of strings
    ...ForTokenClassification     the same, with a class for each place

Ids are names, not amounts: a gradient with respect to them does not exist, and one with respect to embeddings is no
change of a text. So text comes without gradients.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from assay.data.plain_file import check_plain, files_below, read_plain, refuse_leading_out, some
from assay.errors import AssayError, MissingExtra, SubjectError
from assay.subjects.doors.opened import Opened

if TYPE_CHECKING:
    from assay.subjects import Source

KINDS = {
    "ForSequenceClassification": "AutoModelForSequenceClassification",
    "ForTokenClassification": "AutoModelForTokenClassification",
    "ForImageClassification": "AutoModelForImageClassification",
}
MOST_TEXT = 64 * 2**20
LONGEST = 512  # tokens of a text, where neither the model nor its tokenizer says
TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "spiece.model")


class TextModel(nn.Module):
    """Logits of token ids, of a text each: padding is not looked at. No gradients."""

    def __init__(self, model: nn.Module, pad: int, size: int) -> None:
        super().__init__()
        self.model, self.pad, self.size = model, pad, size

    def forward(self, x: Tensor) -> Tensor:  # n l -> n k, or n l k
        ids = x.detach().round().long()
        if ids.numel() and bool(((ids < 0) | (ids >= self.size)).any()):
            strange = ids[(ids < 0) | (ids >= self.size)][0]
            raise SubjectError(
                f"Token {int(strange)} is none of the {self.size} that the model has; encode texts with its tokenizer."
            )
        out: Tensor = self.model(input_ids=ids, attention_mask=(ids != self.pad).long()).logits
        return out.detach()


@dataclass(frozen=True, eq=False)
class Encode:
    """Token ids of texts, cut to `places` and padded at the end; its length is the size of the model's vocabulary."""

    tokenizer: Any
    places: int
    pad_token_id: int
    size: int

    def __len__(self) -> int:
        return self.size

    def __call__(self, texts: Sequence[str]) -> Tensor:  # -> n l
        if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
            raise AssayError("Texts are to be a list of strings; give one string for each input.")
        made = self.tokenizer(
            list(texts), padding=True, padding_side="right", truncation=True, max_length=self.places,
            return_tensors="pt",
        )  # fmt: skip
        return torch.as_tensor(made["input_ids"])


class PictureModel(nn.Module):
    """Logits of pixels from 0 to 1, which are resized and scaled as the folder says before the model sees them."""

    mean: Tensor
    std: Tensor

    def __init__(
        self, model: nn.Module, mean: Sequence[float], std: Sequence[float], scale: float, size: tuple[int, int] | None
    ) -> None:
        super().__init__()
        self.model, self.scale, self.size = model, scale, size
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32).view(-1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:  # n c h w -> n k
        if self.size is not None and tuple(x.shape[2:]) != self.size:
            x = nn.functional.interpolate(x, self.size, mode="bilinear", antialias=True)
        out: Tensor = self.model(pixel_values=(x * self.scale - self.mean) / self.std).logits
        return out


def open(path: Path, source: Source) -> Opened:
    """The model in the folder."""
    config = _read(path, "config.json")
    told = config.get("architectures") or ["(none)"]
    kind = next((kind for kind in KINDS if str(told[0]).endswith(kind)), None)
    if kind is None:
        known = ", ".join(f"...{kind}" for kind in KINDS)
        raise AssayError(f"{str(path)!r} holds a {told[0]!r}; what opens ends in one of {known}.")
    _check_files(path, config)
    transformers = _transformers()
    try:
        with torch.random.fork_rng(devices=[]), _quiet(transformers):
            model, loading = getattr(transformers, KINDS[kind]).from_pretrained(
                path,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                output_loading_info=True,
                dtype=torch.float32,
            )
    except Exception as e:  # its readers raise whatever a config makes them meet
        raise AssayError(
            f"{str(path)!r} cannot be loaded by transformers ({_told(e)}); save_pretrained it again."
        ) from e
    missing = sorted(loading["missing_keys"])
    if missing:  # transformers makes them up, and says so in a log
        raise AssayError(
            f"The weights in {str(path)!r} lack {some(missing)}, which would be random; save the trained model."
        )
    model = model.eval()
    classes = tuple(str(model.config.id2label[i]) for i in range(model.config.num_labels))
    if classes == tuple(f"LABEL_{i}" for i in range(len(classes))):  # nobody named them: data count them from 0
        classes = tuple(map(str, range(len(classes))))
    if kind == "ForImageClassification":
        return _pictures(path, model, classes, str(told[0]))
    return _texts(path, model, classes, str(told[0]), transformers)


def _pictures(path: Path, model: Any, classes: tuple[str, ...], what: str) -> Opened:
    about = _read(path, "preprocessor_config.json") if (path / "preprocessor_config.json").exists() else {}
    channels = int(getattr(model.config, "num_channels", 3))
    normal = bool(about.get("do_normalize", bool(about)))
    mean = [float(m) for m in about.get("image_mean") or [0.5]] if normal else [0.0]
    std = [float(s) for s in about.get("image_std") or [0.5]] if normal else [1.0]
    if any(len(v) not in (1, channels) for v in (mean, std)) or min(std) <= 0:
        raise AssayError(
            f"The mean {mean} and spread {std} in {str(path)!r} are not for {channels} channels; mend them."
        )
    # What the folder's own recipe multiplies 8-bit pixels by; they come from 0 to 1 here.
    scale = 255.0 * (float(about.get("rescale_factor", 1 / 255)) if about.get("do_rescale", True) else 1.0)
    size = _size(about, model.config)
    return Opened(
        model=PictureModel(model, mean, std, scale, size),
        name=path.name,
        about=f"{path.name}, a {what} of transformers.",
        answers="classes",
        reads="logits",
        classes=classes,
        labels=classes,
        shape=(channels, None, None),
        notes=() if size is None else (f"Images of another size are resized to {size[0]} x {size[1]} in the model.",),
    )


def _size(about: dict[str, Any], config: Any) -> tuple[int, int] | None:
    """Height and width that the model sees: of the crop, else of the resizing, else as its config says."""
    for told in (about.get("crop_size"), about.get("size"), getattr(config, "image_size", None)):
        if isinstance(told, int):
            return told, told
        if isinstance(told, list | tuple) and len(told) == 2:
            return int(told[0]), int(told[1])
        if isinstance(told, dict) and "height" in told:
            return int(told["height"]), int(told["width"])
        if isinstance(told, dict) and "shortest_edge" in told:
            return int(told["shortest_edge"]), int(told["shortest_edge"])
    return None


def _texts(path: Path, model: Any, classes: tuple[str, ...], what: str, transformers: Any) -> Opened:
    if not any((path / name).exists() for name in TOKENIZERS):
        raise AssayError(f"{str(path)!r} has no tokenizer; save it there with tokenizer.save_pretrained.")
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except Exception as e:
        raise AssayError(f"The tokenizer in {str(path)!r} cannot be loaded ({_told(e)}); save it again.") from e
    size = int(model.get_input_embeddings().num_embeddings)
    if len(tokenizer) > size:
        raise AssayError(
            f"The tokenizer in {str(path)!r} has {len(tokenizer)} tokens and the model {size}; save the two that "
            "belong together."
        )
    pad = tokenizer.pad_token_id
    if pad is None:
        raise AssayError(f"The tokenizer in {str(path)!r} has no padding token; set tokenizer.pad_token and save it.")
    model.config.pad_token_id = pad  # by which some find the last token of a text
    places = min(
        int(getattr(model.config, "max_position_embeddings", LONGEST)), int(tokenizer.model_max_length), LONGEST
    )
    tags = what.endswith("ForTokenClassification")
    return Opened(
        model=TextModel(model, int(pad), size),
        name=path.name,
        about=f"{path.name}, a {what} of transformers, on token ids: answers without gradients.",
        answers="tags" if tags else "classes",
        reads="logits",
        classes=classes,
        labels=classes,
        shape=(None,),
        gradients=False,
        notes=(f"Texts are cut to {places} tokens, and padding (token {pad}) is not looked at.",),
        encode=Encode(tokenizer, places, int(pad), size),
        tokens=size,
    )


def _check_files(path: Path, config: dict[str, Any]) -> None:
    """Refuse a folder without safetensors, with code that it wants run, or with files that lie elsewhere."""
    for each in path.iterdir():
        refuse_leading_out(each, path)
        if not each.is_dir():
            check_plain(each)
    if "auto_map" in config:
        raise AssayError(
            f"{str(path)!r} needs code of its maker ({some(sorted(map(str, config['auto_map'])))}), which is "
            "not run; give a subject.py that builds the model."
        )
    if not list(files_below(path, path, (".safetensors",))):
        raise AssayError(
            f"{str(path)!r} has no .safetensors; where you trust it, write them: model.save_pretrained({path.name!r})."
        )


def _read(path: Path, name: str) -> dict[str, Any]:
    try:
        told = json.loads(read_plain(path / name, MOST_TEXT))
    except (ValueError, RecursionError) as e:
        if isinstance(e, AssayError):
            raise
        raise AssayError(f"{str(path / name)!r} is no JSON ({_told(e)}); save it again.") from e
    if not isinstance(told, dict):
        raise AssayError(f"{str(path / name)!r} holds {type(told).__name__}, no settings; save it again.")
    return told


def _transformers() -> Any:
    os.environ["HF_HUB_OFFLINE"] = "1"  # no request is ever made here
    try:
        import transformers  # type: ignore[import-untyped, unused-ignore]
    except ImportError as e:
        raise MissingExtra.of("Reading a Hugging Face folder", "transformers", "transformers") from e
    return transformers


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Without a bar of its own on the terminal."""
    logging = transformers.utils.logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _told(e: BaseException) -> str:
    lines = [line.strip() for line in str(e).splitlines() if line.strip()]
    return f"{type(e).__name__}: {lines[0] if lines else 'no message':.200}"
