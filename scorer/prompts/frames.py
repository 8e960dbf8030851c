"""A skeleton cut at the template's own added tokens once, not in every prompt made of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from scorer.prompts.literal import AddedTokenText
from scorer.prompts.skeleton import Question, Skeleton, filled

_PLACE = re.compile("([\U0010f800-\U0010fffd])")
_FIRST_PLACE = 0x10F800


@dataclass(frozen=True, slots=True)
class Frame:
    """What ``AddedTokenText.split`` makes of a filled skeleton, for texts without added tokens.

    pieces: plain text and added tokens in turn. variable: of the plain pieces that texts go into,
    the place among ``pieces`` and, as in ``Skeleton``, the literals and the order of the texts.
    """

    pieces: tuple[str, ...]
    variable: tuple[tuple[int, tuple[str, ...], tuple[int, ...]], ...]
    questions: tuple[Question, ...]

    @classmethod
    def of(cls, skeleton: Skeleton, added: AddedTokenText) -> Frame | None:
        """The frame of a skeleton; None where a text might complete a token's string, or several
        tokens' strings begin alike, so that the cuts depend on the texts.
        """
        if any(map(added.may_go_on, skeleton.literals[:-1])):
            return None
        places = [chr(_FIRST_PLACE + place) for place in skeleton.order]
        whole = filled(skeleton.literals, range(len(places)), places)
        if len(_PLACE.findall(whole)) != len(places):
            return None
        pieces = added.split(whole)
        variable = []
        for index, piece in enumerate(pieces):
            parts = _PLACE.split(piece)
            if len(parts) > 1:
                order = tuple(ord(place) - _FIRST_PLACE for place in parts[1::2])
                variable.append((index, tuple(parts[::2]), order))
        return cls(tuple(pieces), tuple(variable), skeleton.questions)

    def fill(self, texts: Sequence[str]) -> list[str] | None:
        """The pieces with these texts; None if the template would treat them differently.

        No text may hold part of an added token's string.
        """
        for question in self.questions:
            if not question.answered_alike(texts[question.place]):
                return None
        pieces = list(self.pieces)
        for index, literals, order in self.variable:
            pieces[index] = filled(literals, order, texts)
        return pieces
