"""Everyday English words that may stand for each other in most sentences: a small list, written for Assay.

It stops early on purpose. Each group holds one form of a word only (no other tense or number is derived), no word is in
two groups, and words that are nouns and verbs at once, that change the grammar around them (a and an, verbs with other
prepositions) or that carry a judgement of their own are mostly left out. So it says nothing of rare words, of names,
of technical terms or of any other language: there a text stays as it is.
"""

from __future__ import annotations

GROUPS = (
    "big large", "small little", "quick fast rapid", "quickly rapidly swiftly", "begin start", "begins starts",
    "began started", "buy purchase", "buys purchases", "bought purchased", "help assist", "helps assists",
    "helped assisted", "happy glad cheerful", "sad unhappy", "angry furious", "smart clever", "hard difficult",
    "easy simple", "often frequently", "rarely seldom", "maybe perhaps", "almost nearly", "also too",
    "about roughly approximately", "enough sufficient", "many numerous", "whole entire", "main principal",
    "important significant", "strange odd peculiar", "silent quiet", "rich wealthy", "ill sick", "afraid scared",
    "beautiful lovely", "pretty attractive", "terrible awful dreadful", "wonderful marvellous", "great superb",
    "excellent outstanding", "good fine", "bad poor", "funny amusing", "boring dull tedious", "fascinating absorbing",
    "famous renowned", "tired weary", "correct right", "wrong mistaken", "true genuine", "fake sham", "sure certain",
    "surely certainly", "really truly", "very extremely", "totally completely utterly", "mostly mainly largely",
    "usually normally", "suddenly abruptly", "finally eventually", "immediately instantly", "soon shortly",
    "near close", "movie film", "movies films", "film-maker director", "actor performer", "actors performers",
    "doctor physician", "doctors physicians", "child kid", "children kids", "woman lady", "women ladies",
    "people folks", "person individual", "friend companion", "friends companions", "house home", "houses homes",
    "street road", "streets roads", "car automobile", "cars automobiles", "city town", "cities towns",
    "shop store", "shops stores", "job occupation", "jobs occupations", "money cash", "gift present",
    "gifts presents", "picture image", "pictures images", "story tale", "stories tales", "mistake error",
    "mistakes errors", "idea notion", "ideas notions", "chance opportunity", "chances opportunities",
    "trouble difficulty", "danger peril", "illness disease", "choice option", "choices options", "goal aim",
    "goals aims", "journey trip", "journeys trips", "part portion", "parts portions", "kind sort", "kinds sorts",
    "speak talk", "speaks talks", "spoke talked", "shout yell", "shouted yelled", "answer reply", "answered replied",
    "ask inquire", "asked inquired", "think believe", "thinks believes", "thought believed", "get obtain",
    "gets obtains", "got obtained", "keep retain", "keeps retains", "kept retained", "show display",
    "shows displays", "showed displayed", "choose select", "chooses selects", "chose selected", "fix repair",
    "fixes repairs", "fixed repaired", "build construct", "builds constructs", "built constructed",
    "destroy wreck", "destroyed wrecked", "end finish", "ends finishes", "ended finished", "try attempt",
    "tries attempts", "tried attempted", "need require", "needs requires", "needed required", "allow permit",
    "allows permits", "allowed permitted", "gather collect", "gathered collected", "happen occur",
    "happens occurs", "happened occurred", "like enjoy", "likes enjoys", "liked enjoyed", "hate detest",
    "hates detests", "hated detested", "rise climb", "however nevertheless", "therefore thus hence",
    "because since", "although though", "whole-heartedly sincerely", "nobody no-one", "everybody everyone",
    "somebody someone", "anybody anyone", "sofa couch", "autumn fall", "garbage rubbish trash", "dish plate",
    "infant baby", "infants babies", "teacher instructor", "teachers instructors", "student pupil",
    "students pupils", "boss manager", "worker employee", "workers employees", "company firm",
    "companies firms", "price cost", "prices costs", "cheap inexpensive", "expensive costly",
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
