"""Added tokens in text: found where the template wrote them, never where a user did.

A tokenizer cuts text at its added tokens (``<|im_end|>``, ``<think>``) before anything else,
whoever wrote them. Here user text is *guarded* before it is rendered: a marker character,
one that occurs in no text at hand, goes behind the first character of every added token's
string. What is found in the rendering can then only be the template's own. The markers are
taken out again before anything is encoded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from scorer.errors import ErrorCode, RowError

# Unicode's last private-use plane, from its end: no text uses these, and if one does, the
# next is taken.
_MARKERS = tuple(map(chr, range(0x10FFFD, 0x0FFFFF, -1)))


def _continuation(endings: Iterable[str]) -> str:
    """Pattern for text that goes on with one of ``endings``, or stops inside one."""
    by_first: dict[str, list[str]] = {}
    for ending in endings:
        if not ending:
            return ""
        by_first.setdefault(ending[0], []).append(ending[1:])
    branches = [re.escape(first) + _continuation(rest) for first, rest in by_first.items()]
    return "(?:" + "|".join([*branches, r"\Z"]) + ")"


class AddedTokenText:
    """Where the strings of a tokenizer's added tokens stand in a text.

    ``strings``: each of two characters or more (a shorter one can't be broken by a marker).
    """

    def __init__(self, strings: Sequence[str]) -> None:
        # Leftmost, then longest: the rule by which tokenizers cut text.
        longest_first = sorted(strings, key=len, reverse=True)
        self._whole = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")
        by_first: dict[str, list[str]] = {}
        for string in strings:
            by_first.setdefault(string[0], []).append(string[1:])
        # Only the first character is consumed, so overlapping occurrences are all seen; a
        # text that stops inside a token counts, since what follows it might complete it.
        self._fragile = re.compile(
            "|".join(
                f"{re.escape(first)}(?={_continuation(rest)})" for first, rest in by_first.items()
            )
        )
        self._strings = tuple(strings)
        self._firsts = frozenset(string[0] for string in strings)

    def may_be_in(self, text: str) -> bool:
        """Whether ``text`` holds a character that one of the strings begins with."""
        return any(first in text for first in self._firsts)

    def may_go_on(self, text: str) -> bool:
        """Whether one of the strings may begin at the end of ``text`` and go on behind it."""
        return any(
            text.endswith(string[:length])
            for string in self._strings
            for length in range(1, len(string))
        )

    def split(self, text: str) -> list[str]:
        """``[plain, token, plain, token, …, plain]``: always odd, plain parts may be empty."""
        return self._whole.split(text) if self.may_be_in(text) else [text]

    def count(self, text: str) -> int:
        """How many added tokens the usual tokenisation would see in ``text``."""
        return sum(1 for _ in self._whole.finditer(text)) if self.may_be_in(text) else 0

    def guard(self, texts: Sequence[str], template: str = "") -> tuple[Sequence[str], str]:
        """``texts`` with every added token's string broken, and the marker that breaks them.

        The marker is "" when there was nothing to break, and occurs neither in ``texts`` nor in
        ``template`` (the source of the template they go into).
        """
        if not any(self.may_be_in(text) and self._fragile.search(text) for text in texts):
            return texts, ""
        everything = (*texts, template)
        marker = next((m for m in _MARKERS if not any(m in text for text in everything)), None)
        if marker is None:
            raise RowError(
                ErrorCode.INVALID_VALUE,
                "the text uses all 65,534 private-use characters of plane 16, so none is left to "
                "guard its special-token strings with: remove some of them",
            )
        return [self._fragile.sub(rf"\g<0>{marker}", text) for text in texts], marker
