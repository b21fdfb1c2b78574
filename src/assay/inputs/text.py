"""Text: strings, and the tokenizer that the model reads them through. The changes and strengths are Assay's own.

A change of a text is another text that someone could have typed; a shift of its embedding is none. At severities 1 and
2 at most one word in ten changes (one word of a shorter text), a typo keeps its first and last letter, and a reader
does not stumble; over two words exchanged he does, and understands. Keyboard, function words, negations and synonyms
are English; the rest needs no language, but words are what lies between spaces: a text without any is one word.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Protocol

import torch

from assay.errors import AssayError
from assay.inputs.change import Change
from assay.inputs.features import NEVER, Features
from assay.inputs.kind import Kind
from assay.inputs.reach import Norm, WordReach
from assay.inputs.show import Words
from assay.inputs.synonyms import SYNONYMS

Texts = Sequence[str]
Pick = Callable[[], float]  # the next number of a seeded sequence, from 0 to 1
WORDS = (0.05, 0.1, 0.2, 0.35, 0.5)  # the share of words that change, at least one
ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")  # a key's neighbours in its own row: the commonest slip
NEIGHBOURS = {c: row[max(k - 1, 0) : k] + row[k + 1 : k + 2] for row in ROWS for k, c in enumerate(row)}
LIKE = str.maketrans("aceopxyijsACEHIKMOPTXB", "асеорхуіјѕАСЕНІКМОРТХВ")  # Latin to Cyrillic letters of the same look
SMALL = (
    "a", "an", "the", "of", "to", "in", "on", "at", "by", "for", "from", "with", "and", "or", "but", "that", "this",
    "these", "those", "is", "are", "was", "were", "be", "been", "it", "its", "as", "so", "there", "here", "very",
    "just", "also", "then", "than", "too", "which", "who",
)  # fmt: skip
NEGATIONS = ("not", "no", "never", "nor", "none", "nothing", "nobody", "nowhere", "neither", "without", "cannot")
LETTERS = re.compile(r"[^\W\d_]+")
MARKS = ",.;:!?"
VOWELS = tuple("aeiou")  # by sound, no word of the list is an exception


class Tokenizer(Protocol):
    """What makes numbers of a text, as tokenizers of transformers do; its length is the size of its vocabulary."""

    def encode(self, text: str) -> Sequence[int]: ...

    def __len__(self) -> int: ...


@dataclass(frozen=True)
class Text(Kind[Texts, str]):
    """Strings; `vocabulary` is how many tokens the model knows, the tokenizer's own number unless given."""

    tokenizer: Tokenizer | None = None
    vocabulary: int | None = None

    @classmethod
    def of(cls, texts: Texts, tokenizer: Tokenizer | None = None, vocabulary: int | None = None) -> Text:
        """Texts like these, each of which the tokenizer can read."""
        made = cls(tokenizer, vocabulary)
        made.check(texts)
        return made

    def check(self, x: Texts) -> None:
        if isinstance(x, str):
            raise AssayError("Text wants a list of strings, got one string; for a single text, pass [text].")
        for k, text in enumerate(x):
            if not isinstance(text, str):
                raise AssayError(
                    f"Text {k} is a {type(text).__name__} ({text!r}); give strings, not numbers of tokens."
                )
            if self.tokenizer is not None:
                self._tokens(text, k)

    def tokens(self, x: Texts) -> list[list[int]]:
        """The numbers that the model is shown."""
        if self.tokenizer is None:
            raise AssayError("This kind of text has no tokenizer; give Text one to get tokens.")
        return [self._tokens(text, k) for k, text in enumerate(x)]

    def _tokens(self, text: str, k: int) -> list[int]:
        assert self.tokenizer is not None
        size = len(self.tokenizer) if self.vocabulary is None else self.vocabulary
        found = [int(i) for i in self.tokenizer.encode(text)]
        if not found:
            raise AssayError(
                f"Text {k} ({_short(text)}) gives no token; take it out, or give the model's own tokenizer."
            )
        strange = next((i for i in found if not 0 <= i < size), None)
        if strange is not None:
            raise AssayError(
                f"Text {k} ({_short(text)}) gives token {strange}, outside the vocabulary of {size}; the tokenizer "
                "does not match the model, give the one it was trained with."
            )
        return found

    def everyday(self) -> Mapping[str, Change[Texts]]:
        words = "strength: the share of words, at least one."
        rules: tuple[tuple[str, str, Rule], ...] = (
            ("typos", f"A neighbouring key, two letters exchanged, one dropped or doubled; {words}", typo),
            ("casing", f"A word in capitals, or in small letters where it was; {words}", casing),
            ("punctuation", f"A mark left out, or a comma too many; {words}", punctuation),
            ("swapped-words", f"A word and the next exchanged; {words}", swap),
            ("dropped-words", f"Words left out, those that a reader fills in first, never a negation; {words}", drop),
            ("synonyms", f"Another everyday word, from a short list in English; {words}", synonym),
            ("homoglyphs", f"A Cyrillic letter that looks the same; {words}", homoglyph),
            ("spacing", f"A space doubled, or left out; {words}", spacing),
        )
        made = (Change[Texts](name, about, partial(_each, rule=rule), WORDS) for name, about, rule in rules)
        return MappingProxyType({change.name: change for change in made})

    @property
    def reach(self) -> WordReach:
        return WordReach()

    def neighbours(self, text: str, word: int, norm: Norm | None = None) -> tuple[str, ...]:
        """All texts that differ in this word: what an attacker tries.

        By one synonym ("words"), by one slip, its case or one homoglyph ("characters"), or by any of them.
        """
        parts = _parts(text)
        if not 0 <= word < len(_words(parts)):
            raise AssayError(f"There is no word {word} in {_short(text)}; it has {len(_words(parts))}, counted from 0.")
        at = _words(parts)[word]
        found = () if norm == "characters" else fitting(parts, at)
        if norm != "words":
            found = (*found, *recased(parts[at]), *slips(parts[at]), *lookalikes(parts[at]))
        others = dict.fromkeys(found)
        return tuple("".join([*parts[:at], other, *parts[at + 1 :]]) for other in others)

    def features(self, x: str) -> Features:
        """The words, and which characters belong to each."""
        groups = torch.full((len(x),), NEVER)
        spans = [match.span() for match in re.finditer(r"\S+", x)]
        for k, (start, end) in enumerate(spans):
            groups[start:end] = k
        return Features(tuple(x[start:end] for start, end in spans), groups)

    def show(self, x: str) -> Words:
        return Words(x)


Rule = Callable[[list[str], int, Pick], bool]
"""Changes the parts of a text at the word that stands there, and says whether it could."""


def _each(x: Texts, share: float, rng: torch.Generator, *, rule: Rule) -> list[str]:
    """One order of the words for each text, whatever the share: a larger one changes what a smaller did, and more."""
    if isinstance(x, str):
        raise AssayError("A change takes a list of strings, got one string; for a single text, pass [text].")
    seeds: list[int] = torch.randint(2**62, (len(x),), generator=rng, device=rng.device).tolist()
    return [_changed(text, share, random.Random(seed), rule) for text, seed in zip(x, seeds, strict=True)]


def _changed(text: str, share: float, draw: random.Random, rule: Rule) -> str:
    parts = _parts(text)
    words = _words(parts)
    # `random()` alone is the same from one Python to the next
    order = sorted((rule is drop and parts[at].lower() not in SMALL, draw.random(), at) for at in words)
    left = max(1, round(share * len(words)))
    for _, _, at in order:
        left -= rule(parts, at, draw.random)
        if not left:
            break
    return "".join(parts)


def typo(parts: list[str], at: int, pick: Pick) -> bool:
    return _put(parts, at, slips(parts[at]), pick)


def synonym(parts: list[str], at: int, pick: Pick) -> bool:
    return _put(parts, at, fitting(parts, at), pick)


def homoglyph(parts: list[str], at: int, pick: Pick) -> bool:
    return _put(parts, at, lookalikes(parts[at]), pick)


def casing(parts: list[str], at: int, pick: Pick) -> bool:
    return _put(parts, at, recased(parts[at]), pick)


def punctuation(parts: list[str], at: int, pick: Pick) -> bool:
    word = parts[at]
    bare = word.rstrip(MARKS)
    if not bare:
        return False
    parts[at] = bare if bare != word else word + ","
    return True


def swap(parts: list[str], at: int, _pick: Pick) -> bool:
    """With the next word; a word that has been moved stays there, so that a swap is never undone."""
    if at + 2 >= len(parts) or isinstance(parts[at], Moved) or isinstance(parts[at + 2], Moved):
        return False
    if not parts[at + 2] or parts[at] == parts[at + 2]:
        return False
    parts[at], parts[at + 2] = Moved(parts[at + 2]), Moved(parts[at])
    return True


def drop(parts: list[str], at: int, _pick: Pick) -> bool:
    """With the space after it, or before where it is the last; a negation stays, and so does the only word."""
    core = parts[at].lower().strip(MARKS)
    words = _words(parts)
    if core in NEGATIONS or core.endswith(("n't", "n’t")) or len(words) < 2:
        return False
    parts[at] = ""
    between = at + 1 if at != words[-1] else next(k for k in range(at - 1, 0, -2) if parts[k])
    parts[between] = ""
    return True


def spacing(parts: list[str], at: int, pick: Pick) -> bool:
    """Of the space after a word."""
    if at + 2 >= len(parts) or not parts[at + 2]:
        return False
    parts[at + 1] = parts[at + 1] * 2 if pick() < 0.5 else ""
    return True


class Moved(str):
    """A word that stands elsewhere than it did."""

    __slots__ = ()


def recased(word: str) -> tuple[str, ...]:
    """The word in capitals, or in small letters where it was; none where it has no letters."""
    return tuple(w for w in (word.lower() if word.isupper() else word.upper(),) if w != word)


def slips(word: str) -> tuple[str, ...]:
    """The word with one slip inside: its first and last letters stay. None of a word of fewer than four letters."""
    found: dict[str, None] = {}
    for run in LETTERS.finditer(word):
        start, end = run.span()
        for k in range(start + 1, end - 1) if end - start >= 4 else ():
            before, c, after = word[:k], word[k], word[k + 1 :]
            for key in NEIGHBOURS.get(c.lower(), ""):
                found[before + (key.upper() if c.isupper() else key) + after] = None
            found[before + after] = None
            found[before + c + c + after] = None
            if k + 1 < end - 1:
                found[before + word[k + 1] + c + word[k + 2 :]] = None
    found.pop(word, None)
    return tuple(found)


def synonyms(word: str) -> tuple[str, ...]:
    """Other words from the list, written as this one is: with a capital, or in capitals, and with its marks."""
    core = word.strip(MARKS + "\"'()")
    found = SYNONYMS.get(core.lower(), ())
    if core.isupper() and len(core) > 1:
        found = tuple(w.upper() for w in found)
    elif core[:1].isupper():
        found = tuple(w[0].upper() + w[1:] for w in found)
    return tuple(word.replace(core, w, 1) for w in found)


def fitting(parts: list[str], at: int) -> tuple[str, ...]:
    """The synonyms of a word; after `a` and `an` those that these still fit."""
    before = next((parts[k].lower() for k in range(at - 2, -1, -2) if parts[k]), "")
    found = synonyms(parts[at])
    if before not in ("a", "an"):
        return found
    return tuple(word for word in found if (word.lstrip("\"'(")[:1].lower() in VOWELS) == (before == "an"))


def lookalikes(word: str) -> tuple[str, ...]:
    """The word with one Latin letter as the Cyrillic one that looks the same."""
    swapped = word.translate(LIKE)
    return tuple(word[:k] + swapped[k] + word[k + 1 :] for k in range(len(word)) if swapped[k] != word[k])


def _put(parts: list[str], at: int, options: tuple[str, ...], pick: Pick) -> bool:
    if not options:
        return False
    parts[at] = options[int(pick() * len(options))]
    return True


def _parts(text: str) -> list[str]:
    """Words and the spaces between them in turn; a word may be empty at either end."""
    return re.split(r"(\s+)", text)


def _words(parts: list[str]) -> list[int]:
    return [at for at in range(0, len(parts), 2) if parts[at]]


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")
