"""Everyday English words that may stand for each other in most sentences: a small list, written for Assay.

It stops early on purpose. Each group holds one form of a word only (no other tense or number is derived), no word is in
two groups, and words that mean something else as another part of speech or in a common phrase (fall, like, kind, part,
goal, present) are left out. `a` and `an` before a word are minded where it is replaced, not here. The list says nothing
of rare words, names, technical terms or any other language: there a text stays as it is.
"""

from __future__ import annotations

GROUPS = (
    "big large", "quick rapid", "quickly rapidly swiftly", "begin start", "begins starts", "began started",
    "buy purchase", "buys purchases", "bought purchased", "help assist", "helps assists", "helped assisted",
    "happy glad", "sad unhappy", "angry furious", "smart clever", "easy simple", "often frequently", "rarely seldom",
    "maybe perhaps", "almost nearly", "roughly approximately", "main principal", "important significant",
    "strange peculiar", "silent quiet", "rich wealthy", "ill sick", "afraid scared", "beautiful lovely",
    "terrible awful dreadful", "wonderful marvellous", "excellent outstanding", "funny amusing", "boring dull tedious",
    "fascinating absorbing", "famous renowned", "tired weary", "sure certain", "surely certainly", "really truly",
    "very extremely", "totally completely utterly", "mostly mainly largely", "usually normally", "suddenly abruptly",
    "finally eventually", "immediately instantly", "movie film", "movies films", "actor performer",
    "actors performers", "doctor physician", "doctors physicians", "child kid", "children kids", "woman lady",
    "women ladies", "people folks", "person individual", "friend companion", "friends companions", "street road",
    "streets roads", "car automobile", "cars automobiles", "city town", "cities towns", "jobs occupations",
    "money cash", "picture image", "pictures images", "story tale", "stories tales", "mistake error",
    "mistakes errors", "idea notion", "ideas notions", "chances opportunities", "trouble difficulty", "danger peril",
    "illness disease", "choice option", "choices options", "journey trip", "journeys trips", "parts portions",
    "kinds sorts", "shout yell", "shouted yelled", "answer reply", "showed displayed", "choose select",
    "chooses selects", "chose selected", "fix repair", "fixes repairs", "build construct", "builds constructs",
    "built constructed", "destroyed wrecked", "try attempt", "tries attempts", "tried attempted", "allow permit",
    "allows permits", "allowed permitted", "gather collect", "gathered collected", "hate detest", "hates detests",
    "hated detested", "however nevertheless", "therefore thus hence", "nobody no-one", "everybody everyone",
    "somebody someone", "anybody anyone", "sofa couch", "garbage rubbish trash", "infant baby", "infants babies",
    "teacher instructor", "teachers instructors", "student pupil", "students pupils", "boss manager",
    "worker employee", "workers employees", "companies firms", "cheap inexpensive", "expensive costly",
)  # fmt: skip


def _others() -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for group in GROUPS:
        words = group.split()
        for word in words:
            found[word] = tuple(other for other in words if other != word)
    return found


SYNONYMS = _others()
"""For each word, in small letters, the others of its group."""
