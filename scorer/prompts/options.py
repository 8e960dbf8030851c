"""The token ids of options behind a prompt, worked out once for all records that have the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeVar

from scorer.prompts.labels import (
    LabelSet,
    PreparedOption,
    Tail,
    check_distinct,
    continuation,
    letter_labels,
    prefix_clash,
)
from scorer.prompts.tokenizer import Tokenizer, is_closed
from scorer.prompts.words import TextIds

_MOST_KNOWN: Final = 256
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

_Behind = tuple[tuple[str, ...], str, str | None]
"""What the ids of options depend on: their texts, the spaces that moved to them from the prompt's
end, and the end of its text: "" where a space cuts all of it off, None where there is none."""


class OptionSet(NamedTuple):
    """What a record's options come to.

    ``longest``: tokens of the longest one that has several, 0 if none has. ``clash``: one's ids
    begin another's. ``matches``: strings of added tokens in them, read as text.
    """

    options: tuple[PreparedOption, ...]
    longest: int = 0
    clash: bool = False
    matches: int = 0
    warnings: tuple[str, ...] = ()


NO_OPTIONS: Final = OptionSet(())


class OptionIds:
    """Options with one tokenizer and set of labels. All methods raise ``RowError``."""

    def __init__(self, tokenizer: Tokenizer, labels: LabelSet) -> None:
        self._tokenizer = tokenizer
        self._label_texts = labels.texts
        self._labels: dict[tuple[str, int], list[tuple[str, int]]] = {}
        self._lettered: dict[tuple[tuple[str, ...], str], OptionSet] = {}
        self._known: dict[_Behind, OptionSet] = {}

    def wanted(self, texts: tuple[str, ...], moved: str, tail: str) -> Sequence[str]:
        """The plain texts that ``behind_text`` will need the ids of."""
        behind, known = self._find(texts, moved, tail)
        if known is not None:
            return ()
        before = behind[2] or ""
        return [before, *[before + moved + text for text in texts]]

    def behind_text(
        self, texts: tuple[str, ...], moved: str, tail: str, encode: TextIds
    ) -> OptionSet:
        """Options that go on with the prompt; ``tail`` is its text behind the last added token."""
        behind, known = self._find(texts, moved, tail)
        if known is None:
            before = behind[2] or ""
            known = self._continuations(texts, moved, Tail(before, encode(before)), encode)
            _remember(self._known, behind, known)
        return known

    def behind_ids(self, texts: tuple[str, ...], ids: list[int], encode: TextIds) -> OptionSet:
        """Options that go on with token ids, whose text may not be theirs alone."""
        start = len(ids)
        while start and not self._tokenizer.is_added(ids[start - 1]):
            start -= 1
        own = ids[start:]
        try:
            text = self._tokenizer.decode(own, errors="strict")
        except UnicodeDecodeError:
            text = None
        if text is None or encode(text) != own:
            return self._continuations(texts, "", Tail(None, own), encode)
        return self.behind_text(texts, "", text, encode)

    def lettered(self, texts: tuple[str, ...], tail: str, encode: TextIds) -> OptionSet:
        """A question's options, of which labels are read behind ``tail``."""
        known = self._lettered.get((texts, tail))
        if known is None:
            labels = self._labels.get((tail, len(texts)))
            if labels is None:
                labels = letter_labels(tail, len(texts), encode, self._label_texts)
                _remember(self._labels, (tail, len(texts)), labels)
            options = [
                PreparedOption(text, label, (token_id,), False)
                for text, (label, token_id) in zip(texts, labels, strict=True)
            ]
            known = OptionSet(tuple(options))
            _remember(self._lettered, (texts, tail), known)
        return known

    def _find(
        self, texts: tuple[str, ...], moved: str, tail: str
    ) -> tuple[_Behind, OptionSet | None]:
        behind: _Behind = (texts, moved, tail or None)
        if tail:
            if self._tokenizer.cuts_at_spaces and is_closed(tail):
                behind = (texts, moved, "")
                known = self._known.get(behind)
                if known or moved or all(text.startswith(" ") for text in texts):
                    return behind, known
            behind = (texts, moved, tail[self._tokenizer.independent_from(tail) :])
        return behind, self._known.get(behind)

    def _continuations(
        self, texts: tuple[str, ...], moved: str, tail: Tail, encode: TextIds
    ) -> OptionSet:
        check_distinct(texts, self._tokenizer.normalise)
        options = tuple([continuation(text, moved, tail, encode) for text in texts])
        warnings = []
        if changed := [option.text for option in options if option.seam_changed]:
            warnings.append(
                f"the prompt's last tokens would change with {len(changed)} of the options behind "
                f"them (the first is {changed[0]!r}): these were encoded on their own"
            )
        matches = sum(map(self._tokenizer.added_text.count, texts))
        if matches:
            warnings.append(f"{strings(matches)} in the options, read as ordinary text")
        longest = max([len(option.token_ids) for option in options])
        return OptionSet(
            options,
            longest if longest > 1 else 0,
            clash=prefix_clash(options),
            matches=matches,
            warnings=tuple(warnings),
        )


def strings(count: int) -> str:
    """Wording for so many matches."""
    return f"{count} special-token string" + ("" if count == 1 else "s")


def _remember(known: dict[_Key, _Value], key: _Key, value: _Value) -> None:
    """Put a value where it is looked up; as many are kept as a file of a kind may need."""
    if len(known) >= _MOST_KNOWN:
        known.clear()
    known[key] = value
