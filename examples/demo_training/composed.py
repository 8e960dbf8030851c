"""The second stage's training sentences: composed from ``parts.py``, and those of before."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from demo_training import tables
from demo_training.data import HELD_OUT_CLAUSES, Example, Writer
from demo_training.parts import PARTS

_ALTERNATIVES: Final = {
    name: tuple(text.replace("\n", "").split("|")) for name, text in PARTS.items()
}
_SLOT: Final = re.compile(r"\{(" + "|".join(name for name in PARTS if name.islower()) + r")\}")
_POLARITY: Final = re.compile(r"\{(?:adj|ed|adv|noun|other)[23]?\}")
# (rule of PARTS, part of speech, does it turn the sign round, weight)
_RULES: Final = (
    ("ADJ", "adj", False, 0.36),
    ("ADJ TURNED", "adj", True, 0.26),
    ("ED", "ed", False, 0.12),
    ("ED TURNED", "ed", True, 0.05),
    ("ADV", "adv", False, 0.09),
    ("ADV TURNED", "adv", True, 0.02),
    ("NOUN", "noun", False, 0.07),
    ("NOUN TURNED", "noun", True, 0.03),
    ("OTHER", "other", False, 0.06),
)


def _words_of(template: str) -> str:
    """A pattern of ``template``'s own words, in order, with anything in its slots."""
    own = re.split(r"\{\w+\}|a\(n\)", template)
    return ".*".join(re.escape(part.strip()) for part in own if part.strip())


# The parts could put "went" and "for us" round an adverb, as a held-out template does.
_HELD_OUT: Final = re.compile(
    "|".join(
        rf"\b{_words_of(template)}\b"
        for templates in (tables.HELD_OUT_NEUTRAL, *(clauses[0] for clauses in HELD_OUT_CLAUSES))
        for template in templates
    )
)


class Composer(Writer):
    """Training sentences and examples of the second stage; more of them neutral."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, "train")
        self.label_weights = (27, 27, 28, 18)

    def _expand(self, rule: str) -> str:
        """One alternative of ``rule``, its own parts drawn likewise; other slots stay."""
        template = self.rng.choice(_ALTERNATIVES[rule])
        return _SLOT.sub(lambda match: self._expand(match[1]), template)

    def _plain(self, template: str) -> str:
        """``template`` with words that carry no polarity in its polarity slots."""
        rng = self.rng
        plain = _ALTERNATIVES["nadj"]
        filled = _POLARITY.sub(
            lambda _: rng.choice(plain if rng.random() < 0.4 else self._neutral), template
        )
        return self._fill(filled, ())

    def clause(self, sign: int) -> str:
        """As :meth:`Writer.clause`; three clauses in four are composed from parts."""
        while True:
            clause = super().clause(sign) if self.rng.random() < 0.25 else self._composed(sign)
            if not _HELD_OUT.search(clause):
                return clause

    def _composed(self, sign: int) -> str:
        rng = self.rng
        if sign == 0 and rng.random() < 0.7:
            clause = self._fill(self._expand("fact"), ())
        else:
            rule, pos, turns, _ = rng.choices(_RULES, weights=[rule[3] for rule in _RULES])[0]
            template = self._expand(rule)
            if sign == 0:
                clause = self._plain(template)
            else:
                clause = self._fill(template, self._words[(pos, -sign if turns else sign)])
        if rng.random() < 0.25:
            clause = self._fill(self._expand("open"), ()) + clause
        return clause

    def _fill(self, template: str, words: Sequence[str]) -> str:
        return super()._fill(template, words).replace("  ", " ")

    def sentence(self, label: int) -> str:
        """As :meth:`Writer.sentence`; a question keeps its mark."""
        return re.sub(r"\?[.!,;]", "?", super().sentence(label))

    def example(self) -> Example:
        """One training example of any kind."""
        kinds = (self.letter, self.yes_no, self.which_word, self.word, self.continuation, self.chat)
        return self.rng.choices(kinds, weights=(62, 11, 3, 13, 6, 5))[0]()
