"""The ids of texts, put together from the ids of their words, most of which have been seen before.

A text is cut at its spaces where these are surely cut off from what stands before them (see
``is_closed``): its ids are then its words' ids end to end, each word with the space before it. Ids
are kept as bytes (int32, little endian), which join at the speed of memory.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from scorer.prompts.tokenizer import Tokenizer, is_closed

ID_BYTES: Final = 4
_MOST_WORDS: Final = 1 << 15  # of each kind
_LONGEST_WORD: Final = 40  # characters; longer ones are seldom words
_SEEN: Final = 1 << 20
"""Marks of words that were seen once, by their hash: what comes twice will come again, names and
numbers would only fill the memory."""

# Where a word stands, which decides what it has to end in: behind nothing or behind a space, and
# with something behind it or at the text's end.
_FIRST, _INNER, _LAST, _ALONE = range(4)
_BEFORE: Final = ("", " ", " ", "")
_Word = tuple[int, str]


def packed(ids: Iterable[int]) -> bytes:
    """Token ids as int32, little endian."""
    return array("i", ids).tobytes()


def unpacked(ids: bytes) -> list[int]:
    """The token ids that ``packed`` packed."""
    return memoryview(ids).cast("i").tolist()


class WordIds:
    """Encodes texts with one tokenizer, and remembers words that come again; bounded memory."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: tuple[dict[str, bytes], ...] = ({"": b""}, {}, {}, {})
        self._seen = bytearray(_SEEN)
        self._marks = 0
        self._digits: dict[str, bytes] = {}  # and of what may stand before them
        if tokenizer.cuts_digits:
            apart = [*"0123456789", *_BEFORE]
            self._digits = dict(zip(apart, map(packed, tokenizer.encode(apart)), strict=True))

    def __call__(self, texts: Sequence[str]) -> list[bytes]:
        """The ids of each text, int32, little endian."""
        first, inner, last, alone = self._known
        cuts = self._tokenizer.cuts_at_spaces
        found: list[bytes] = []
        new: list[_New] = []
        for place, text in enumerate(texts):
            words = text.split(" ") if cuts else [text]
            if len(words) == 1:
                parts = [alone.get(text)]
            else:
                parts = [first.get(words[0]), *map(inner.get, words[1:-1]), last.get(words[-1])]
            missing = self._missing(words, parts) if None in parts else ()
            if missing or None in parts:
                new.append(_New(place, text, parts, missing))
                found.append(b"")
            else:
                found.append(b"".join(parts))  # type: ignore[arg-type]  # none is None
        if new:
            for place, ids in self._put_together(new):
                found[place] = ids
        return found

    def _missing(self, words: Sequence[str], parts: list[bytes | None]) -> list[tuple[int, _Word]]:
        """Fill in numbers; return the other words that are not known, with their places."""
        end = len(words) - 1
        missing: list[tuple[int, _Word]] = []
        for index, word in enumerate(words):
            if parts[index] is not None:
                continue
            if index < end and not is_closed(word):
                return []
            kind = (_INNER if index else _FIRST) if index < end else _LAST if index else _ALONE
            if self._digits and word.isdecimal() and word.isascii():
                digits = map(self._digits.__getitem__, word)
                parts[index] = b"".join([self._digits[_BEFORE[kind]], *digits])
            else:
                missing.append((index, (kind, word)))
        return missing

    def _put_together(self, new: Sequence[_New]) -> list[tuple[int, bytes]]:
        """Encode what is not known, once each; return the texts' ids with their places."""
        times = Counter(word for text in new for _, word in text.missing)
        rare = {word for word, count in times.items() if count == 1 and self._is_first(word)}
        again = times.keys() - rare
        # A text that can't be cut, or of many words that nothing else has, is encoded as a whole.
        whole: list[_New] = []
        apart: list[_New] = []
        for text in new:
            own = [word for _, word in text.missing if word in rare]
            (whole if not text.missing or 2 * len(own) > len(text.parts) else apart).append(text)
        wanted = [*again, *{word for text in apart for _, word in text.missing if word in rare}]
        encoded = self._tokenizer.encode(
            [*(text.text for text in whole), *(_BEFORE[kind] + word for kind, word in wanted)]
        )
        as_bytes = list(map(packed, encoded))
        fresh = dict(zip(wanted, as_bytes[len(whole) :], strict=True))
        found = [(text.place, ids) for text, ids in zip(whole, as_bytes, strict=False)]
        for text in apart:
            for index, word in text.missing:
                text.parts[index] = fresh[word]
            found.append((text.place, b"".join(text.parts)))  # type: ignore[arg-type]  # none is None
        for word in again:
            kind, spelt = word
            known = self._known[kind]
            if len(spelt) <= _LONGEST_WORD and len(known) < _MOST_WORDS:
                known[spelt] = fresh[word]
        return found

    def _is_first(self, word: _Word) -> bool:
        """Whether a word has not been seen lately; from now on it has."""
        mark = hash(word) % _SEEN
        if self._seen[mark]:
            return False
        self._seen[mark] = 1
        self._marks += 1
        if self._marks > _SEEN // 4:
            self._seen = bytearray(_SEEN)
            self._marks = 0
        return True


class TextIds:
    """The ids of texts: those that are given at once beforehand, others when they turn up."""

    def __init__(self, word_ids: WordIds, texts: Iterable[str]) -> None:
        self._word_ids = word_ids
        unique = list(dict.fromkeys(texts))
        self._ids = dict(zip(unique, word_ids(unique), strict=True))

    def packed(self, text: str) -> bytes:
        """The ids of a text, int32, little endian."""
        ids = self._ids.get(text)
        if ids is None:
            (ids,) = self._word_ids([text])
            self._ids[text] = ids
        return ids

    def __call__(self, text: str) -> list[int]:
        """The ids of a text."""
        return unpacked(self.packed(text))


@dataclass(frozen=True, slots=True)
class _New:
    """A text with words that are not known.

    parts: the ids of each word as far as they are known. missing: the others, with their places
    among the words; none where the text can't be cut at every space.
    """

    place: int
    text: str
    parts: list[bytes | None]
    missing: Sequence[tuple[int, _Word]]
