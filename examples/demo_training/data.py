"""Training and evaluation material of the demonstration model: sentences, questions, splits.

The polarity words are split by word form. A held-out *form* ("delightful") never occurs in
training, while two or more words of its family and sign do ("delight", "delighted"); of a held-out
*family* no member occurs in training at all. A hash of the word decides, so the split depends on
the word list alone. Every polarity word that the hand-written tables use stays in training.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final, Literal

from demo_training import tables

Split = Literal["train", "form", "family"]
CLASSES: Final = ("positive", "negative", "neutral", "mixed")
LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
WORDS_DIR: Final = Path(__file__).parent / "words"

HELD_OUT_FORMS: Final = 0.2  # share of the word forms (of families seen in training)
HELD_OUT_FAMILIES: Final = 0.06  # share of the families

_SUFFIXES: Final = re.compile(
    r"(?:fulness|fully|ful|lessness|lessly|less|ously|ousness|ous|iveness|ively|ive|ness|nesses"
    r"|ments?|edly|ed|ingly|ings?|iest|ily|iness|ier|ers?|est|ies|es|ations?|ions?|ity|ities"
    r"|able|ably|ible|ance|ence|ically|ical|ic|ally|al|isms?|ists?|i[sz]e[sd]?|i[sz]ing|ish"
    r"|ant|ent|ors?|some|ly|y|s|e)$"
)


def family(word: str) -> str:
    """The stem that stands for a word's family: up to two endings off, four letters left at least.

    Prefixes stay, so that "happy" and "unhappy" are two families. Crude on purpose: it may
    join strangers ("family" is a split unit, not a claim about etymology).
    """
    for _ in range(2):
        stem = _SUFFIXES.sub("", word)
        word = stem if len(stem) >= 4 else word
    if len(word) > 4 and word[-1] == word[-2]:
        word = word[:-1]
    return word[:-1] if word.endswith(("e", "i", "y")) and len(word) > 4 else word


def _share(key: str) -> float:
    """A number in [0, 1) that depends on ``key`` alone."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") / 2**64


@dataclass(frozen=True, slots=True)
class PolarityWord:
    """One entry of ``words/polarity.tsv``: mean valence (-4 to 4), part of speech."""

    text: str
    valence: float
    pos: str  # adj, ed, adv, noun, other


def polarity_words() -> tuple[PolarityWord, ...]:
    """The whole list, in file order."""
    rows = (WORDS_DIR / "polarity.tsv").read_text(encoding="utf-8").splitlines()
    return tuple(PolarityWord(w, float(v), pos) for w, v, pos in (row.split("\t") for row in rows))


def neutral_words() -> tuple[str, ...]:
    """Everyday words that the polarity lexicon does not hold."""
    return tuple((WORDS_DIR / "neutral.txt").read_text(encoding="utf-8").split())


def _handwritten(value: object) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _handwritten(item)


def words_in_tables() -> frozenset[str]:
    """Every lower-cased word of the hand-written tables."""
    names = (name for name in vars(tables) if name.isupper())
    text = "\n".join(part for name in names for part in _handwritten(getattr(tables, name)))
    return frozenset(re.findall(r"[a-z]+", re.sub(r"\{\w+\}", " ", text).lower()))


def split_words(words: Sequence[PolarityWord]) -> dict[str, Split]:
    """Which split each word belongs to; see the module's head for the rule."""
    fixed = words_in_tables()
    fixed_families = {family(word) for word in fixed}
    split: dict[str, Split] = {}
    for word in words:
        stem = family(word.text)
        if stem not in fixed_families and _share("family:" + stem) < HELD_OUT_FAMILIES:
            split[word.text] = "family"
        elif word.text not in fixed and _share("form:" + word.text) < HELD_OUT_FORMS:
            split[word.text] = "form"
        else:
            split[word.text] = "train"
    relatives = Counter(
        (family(word.text), word.valence > 0) for word in words if split[word.text] == "train"
    )
    for word in words:
        if split[word.text] == "form" and relatives[family(word.text), word.valence > 0] < 2:
            split[word.text] = "train"
    return split


@dataclass(frozen=True, slots=True)
class Example:
    """What the model reads and the text it should go on with."""

    messages: tuple[tuple[str, str], ...]  # (role, content); empty for a plain prompt
    prompt: str  # the plain prompt; empty for messages
    answer: str
    kind: str  # letter, word, choice, continuation, chat
    n_options: int = 0
    gold: int = -1
    text_class: int = -1  # of the text asked about, an index of CLASSES; -1: not said
    option_classes: tuple[int, ...] = ()  # what each option's wording means; empty: not said


def render_question(question: str, state: str | None, options: Sequence[str]) -> str:
    """The lettered question as ``scorer`` renders it by default (the user's message)."""
    body = f"{question}\n\n" + (f"{state}\n\n" if state is not None else "")
    lines = "".join(f"{LETTERS[i]}. {option}\n" for i, option in enumerate(options))
    return f"{body}{lines}\nAnswer with the letter of the correct option only."


def _table(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.replace("\n", "").split("|"))


_SINGULAR = _table(tables.SINGULAR)
_PLURAL = _table(tables.PLURAL)
_PERSON = _table(tables.PERSON)
_WHEN = _table(tables.WHEN)
_INTENSIFIERS = _table(tables.INTENSIFIERS)
_PHRASES: Final = {1: _table(tables.PRAISE), -1: _table(tables.COMPLAINTS)}
_MONTHS: Final = ("May", "June", "July", "August", "October", "November")

# (templates, slot's part of speech, does the template turn the sign round, weight)
_Clauses = tuple[tuple[str, ...], str, bool, float]
TRAIN_CLAUSES: Final[tuple[_Clauses, ...]] = (
    (tables.ADJ_CLAUSES, "adj", False, 0.44),
    (tables.ADJ_NEGATED, "adj", True, 0.2),
    (tables.ED_CLAUSES, "ed", False, 0.12),
    (tables.ED_NEGATED, "ed", True, 0.05),
    (tables.ADV_CLAUSES, "adv", False, 0.08),
    (tables.NOUN_CLAUSES, "noun", False, 0.07),
    (tables.NOUN_NEGATED, "noun", True, 0.04),
    (tables.OTHER_CLAUSES, "other", False, 0.06),
)
HELD_OUT_CLAUSES: Final[tuple[_Clauses, ...]] = (
    (tables.HELD_OUT_ADJ, "adj", False, 0.52),
    (tables.HELD_OUT_ADJ_NEGATED, "adj", True, 0.18),
    (tables.HELD_OUT_ED, "ed", False, 0.12),
    (tables.HELD_OUT_ADV, "adv", False, 0.1),
    (tables.HELD_OUT_NOUN, "noun", False, 0.08),
)


class Writer:
    """Draws sentences and examples from the polarity words and templates of one split."""

    def __init__(self, seed: int, split: Split) -> None:
        self.rng = Random(seed)
        self.split: Split = split
        self.label_weights = (30, 30, 20, 20)  # of CLASSES, in lettered questions
        where = split_words(polarity_words())
        self._words: dict[tuple[str, int], list[str]] = {}
        self.vocabulary: dict[int, list[str]] = {1: [], -1: []}
        for word in polarity_words():
            if where[word.text] == split:
                sign = 1 if word.valence > 0 else -1
                self._words.setdefault((word.pos, sign), []).append(word.text)
                self.vocabulary[sign].append(word.text)
        self._neutral = neutral_words()
        self._clauses = TRAIN_CLAUSES if split == "train" else HELD_OUT_CLAUSES
        self._facts = tables.NEUTRAL_CLAUSES if split == "train" else tables.HELD_OUT_NEUTRAL

    # ------------------------------------------------------------ sentences

    def _fill(self, template: str, words: Sequence[str]) -> str:
        """``template`` with its slots filled; ``words`` are the polarity words to draw from."""
        rng = self.rng

        def slot(match: re.Match[str]) -> str:
            name = match[1].rstrip("02")
            if name == "s":
                if rng.random() < 0.2:
                    return f"the {rng.choice(self._neutral)}"
                roll = rng.random()
                if roll < 0.08:
                    return "it" if roll < 0.05 else "this"
                return f"{'the' if rng.random() < 0.8 else 'this'} {rng.choice(_SINGULAR)}"
            if name == "p":
                noun = rng.choice(_PLURAL)
                return noun if match[1] == "p0" else f"the {noun}"
            if name == "x":
                noun = rng.choice(_SINGULAR)
                return rng.choice(self._neutral) if rng.random() < 0.15 else noun
            if name == "i":
                return f"{rng.choice(_INTENSIFIERS)} " if rng.random() < 0.5 else ""
            if name == "n":
                return rng.choice(self._neutral)
            if name == "num":
                return str(rng.randrange(2, 60))
            if name == "year":
                return str(rng.randrange(1950, 2026))
            if name in ("who", "when", "month"):
                return rng.choice({"who": _PERSON, "when": _WHEN, "month": _MONTHS}[name])
            return rng.choice(words)

        text = re.sub(r"\{(\w+)\}", slot, template)
        text = re.sub(r"\ba\(n\) (?=[aeiou])", "an ", text)
        return text.replace("a(n) ", "a ")

    def clause(self, sign: int) -> str:
        """One clause, without a capital or a full stop; ``sign`` +1, -1, or 0 for a plain fact."""
        rng = self.rng
        if sign == 0:
            return self._fill(rng.choice(self._facts), ())
        if self.split == "train" and rng.random() < 0.3:
            return self._fill(rng.choice(_PHRASES[sign]), ())
        templates, pos, turns, _ = rng.choices(
            self._clauses, weights=[clauses[3] for clauses in self._clauses]
        )[0]
        words = self._words[(pos, -sign if turns else sign)]
        return self._fill(rng.choice(templates), words)

    def sentence(self, label: int) -> str:
        """A short text whose sentiment is ``CLASSES[label]``."""
        rng = self.rng
        if label == 3:
            signs = rng.choice(([1, -1], [-1, 1]))
            text = rng.choice(tables.MIXED_JOINS).format(*(self.clause(sign) for sign in signs))
        elif label == 2 or rng.random() < 0.55:
            sign = (1, -1, 0)[label]
            text = self.clause(sign)
            if sign == 0 and rng.random() < 0.4:
                text = rng.choice(tables.NEUTRAL_JOINS).format(text, self.clause(0))
            elif sign and rng.random() < 0.3:
                parts = [text, self.clause(0)]
                rng.shuffle(parts)
                text = rng.choice(tables.NEUTRAL_JOINS).format(*parts)
        else:
            sign = (1, -1)[label]
            text = rng.choice(tables.SAME_JOINS).format(self.clause(sign), self.clause(sign))
        if label == 3 and rng.random() < 0.25:
            text = f"{self.clause(0)}. {text}"
        elif label < 2 and rng.random() < 0.1:
            text = f"{text}. {self.clause((1, -1)[label])}"
        end = "!" if label != 2 and rng.random() < 0.08 else "."
        return sentence_case(text) + end

    # ------------------------------------------------------------ examples

    def letter(self) -> Example:
        """A lettered sentiment question with two to four options in random order."""
        rng = self.rng
        n = rng.choice((2, 3, 4))
        label = rng.choices((0, 1, 2, 3), weights=self.label_weights)[0]
        others = [c for c in range(4) if c != label]
        if n == 2 and label < 2 and rng.random() < 0.7:
            others = [1 - label]
        classes = [label, *rng.sample(others, n - 1)]
        rng.shuffle(classes)
        style = rng.choice(tables.OPTION_STYLES)
        options = [style[c] for c in classes]
        question = rng.choice(tables.QUESTIONS)
        return self._ask(question, label, options, classes.index(label), "letter", tuple(classes))

    def yes_no(self) -> Example:
        """A yes/no question over a text that is clearly positive or negative."""
        rng = self.rng
        label = rng.choice((0, 1))
        question, sign = rng.choice(tables.YES_NO)
        options = list(rng.choice(tables.YES_NO_STYLES))
        right = options[0 if (1, -1)[label] == sign else 1]
        rng.shuffle(options)
        return self._ask(question, label, options, options.index(right), "letter")

    def which_word(self) -> Example:
        """A question whose options are polarity words."""
        rng = self.rng
        label = rng.choice((0, 1))
        sign = (1, -1)[label]
        pos = rng.choice(("adj", "ed"))
        options = [rng.choice(self._words[(pos, sign)])]
        options += rng.sample(self._words[(pos, -sign)], rng.choice((1, 2, 3)))
        right = options[0]
        rng.shuffle(options)
        question = rng.choice(tables.WHICH_WORD)
        return self._ask(question, label, options, options.index(right), "choice")

    def _ask(
        self,
        question: str,
        label: int,
        options: list[str],
        gold: int,
        kind: str,
        classes: tuple[int, ...] = (),
    ) -> Example:
        rng = self.rng
        text = self.sentence(label)
        state: str | None = None
        if rng.random() < 0.5:
            state = rng.choice(tables.STATES).format(t=text)
        else:
            question = rng.choice(tables.IN_QUESTION).format(q=question, t=text)
        return self._lettered(question, state, options, gold, kind, label, classes)

    def _lettered(
        self,
        question: str,
        state: str | None,
        options: list[str],
        gold: int,
        kind: str,
        label: int,
        classes: tuple[int, ...],
    ) -> Example:
        user = ("user", render_question(question, state, options))
        system = (("system", self.rng.choice(tables.SYSTEMS)),) if self.rng.random() < 0.1 else ()
        return Example((*system, user), "", LETTERS[gold], kind, len(options), gold, label, classes)

    def word(self) -> Example:
        """A lettered question about one word alone."""
        rng = self.rng
        sign = rng.choice((1, 1, -1, -1, 0))
        label = {1: 0, -1: 1, 0: 2}[sign]
        word = rng.choice(self.vocabulary[sign] if sign else self._neutral)
        style = rng.choice(tables.OPTION_STYLES[:7])
        classes = [0, 1, 2] if sign == 0 or rng.random() < 0.5 else [0, 1]
        rng.shuffle(classes)
        question = rng.choice(tables.WORD_QUESTIONS).format(w=word)
        options = [style[c] for c in classes]
        gold = classes.index(label)
        return self._lettered(question, None, options, gold, "word", label, tuple(classes))

    def continuation(self) -> Example:
        """A plain prompt and the text that follows it."""
        label = self.rng.randrange(4)
        prompt, answers = self.rng.choice(tables.CONTINUATIONS)
        text = prompt.format(t=self.sentence(label))
        return Example((), text, answers[label], "continuation", text_class=label)

    def chat(self) -> Example:
        """A chat that asks for one word, sometimes with an earlier turn."""
        rng = self.rng
        turns: list[tuple[str, str]] = []
        if rng.random() < 0.3:
            turns.append(("system", rng.choice(tables.SYSTEMS)))
        answer = ""
        for _ in range(2 if rng.random() < 0.3 else 1):
            if answer:
                turns.append(("assistant", answer))
            request = rng.choice(tables.CHAT_REQUESTS)
            label = rng.randrange(2 if "or negative?" in request else 4)
            turns.append(("user", request.format(t=self.sentence(label))))
            answer = tables.CHAT_ANSWERS[label]
        label = tables.CHAT_ANSWERS.index(answer)
        return Example(tuple(turns), "", answer, "chat", text_class=label)

    def example(self) -> Example:
        """One training example of any kind."""
        kinds = (self.letter, self.yes_no, self.which_word, self.word, self.continuation, self.chat)
        return self.rng.choices(kinds, weights=(56, 8, 7, 15, 8, 6))[0]()


def sentence_case(text: str) -> str:
    """Capitals after full stops, for "I", and at the start."""
    return re.sub(r"(^|[.!?] )([a-z])", lambda m: m[1] + m[2].upper(), text)
