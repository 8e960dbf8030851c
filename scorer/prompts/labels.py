"""The token ids that stand for an option: a letter's, or its own as a continuation.

Both are ids *after* a prompt, and depend on the prompt and the option's own text alone:
adding, removing or reordering other options changes nothing here.
"""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from scorer.errors import ErrorCode, RowError, UsageError

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
DIGITS = "123456789"

Encode = Callable[[str], list[int]]


@dataclass(frozen=True, slots=True)
class LabelSet:
    """What stands for a question's options, the first option's first; ``noun``: what one is."""

    texts: tuple[str, ...] = tuple(LETTERS)
    noun: str = "letter"

    @classmethod
    def parse(cls, text: str) -> LabelSet:
        """``letters`` (26), ``digits`` (1 to 9), or words separated by commas (``yes,no``).

        Raises ``UsageError``. Whether each is one token is seen where a prompt is prepared.
        """
        if text == "letters":
            return cls()
        if text == "digits":
            return cls(tuple(DIGITS), "number")
        words = tuple(word.strip() for word in text.split(","))
        distinct = {unicodedata.normalize("NFC", word) for word in words}
        if len(words) < 2 or "" in words or len(distinct) != len(words):
            raise UsageError(
                f"--labels {text!r}: expected letters, digits, or at least two words that differ, "
                "separated by commas, as in yes,no"
            )
        return cls(words, "label")


LETTER_LABELS = LabelSet()


class PreparedOption(msgspec.Struct, frozen=True):
    """An option, ready to be scored after its prompt.

    ``label`` is the label's text exactly as its token has it ("A" or " A"), None for an option
    that is scored as the continuation it is. ``token_ids`` are never empty. ``seam_changed``:
    prompt and option written as one text have other ids than the prompt's, so the option was
    encoded on its own.
    """

    text: str
    label: str | None
    token_ids: tuple[int, ...]
    seam_changed: bool


class Tail(msgspec.Struct, frozen=True):
    """A prompt's plain text after its last added token, and that text's ids.

    ``text`` is None where the ids are those of no text (token ids given by the user that the
    tokenizer would not have made).
    """

    text: str | None
    ids: list[int]


def label_variant(tail: str) -> str:
    """What stands before the letter: "" at a line's start or after white space, else " "."""
    return "" if not tail or tail[-1].isspace() else " "


def letter_labels(
    tail: str, count: int, encode: Encode, texts: Sequence[str] = LETTERS
) -> list[tuple[str, int]]:
    """The first ``count`` labels as (text, token id), all of one variant.

    Two labels can't share an id: a byte-level token stands for one string. Raises ``RowError``:
    ``label_not_one_token``, or ``label_merges`` where the label, written behind the prompt,
    would change the prompt's last tokens.
    """
    labels = []
    before = label_variant(tail)
    tail_ids = encode(tail) if tail else []
    for letter in texts[:count]:
        label = before + letter
        alone = encode(label)
        if len(alone) != 1:
            raise RowError(
                ErrorCode.LABEL_NOT_ONE_TOKEN,
                f"the label {label!r} is {len(alone)} tokens {alone} of this tokenizer, not one: "
                "give the options as continuations of a prompt instead",
            )
        if encode(tail + label) != [*tail_ids, *alone]:
            raise RowError(
                ErrorCode.LABEL_MERGES,
                f"the label {label!r} merges with the end of the prompt, {tail[-20:]!r}: the model "
                "would never see it as a token of its own; end the prompt differently",
            )
        labels.append((label, alone[0]))
    return labels


def continuation(text: str, moved: str, tail: Tail, encode: Encode) -> PreparedOption:
    """``text`` as what follows the prompt that ends in ``tail``.

    ``moved``: the spaces taken off the prompt's end, which the option begins with.
    """
    own = moved + text
    ids, seam_changed = None, True
    if tail.text is not None:
        joint = encode(tail.text + own)
        if joint[: len(tail.ids)] == tail.ids:
            ids, seam_changed = joint[len(tail.ids) :], False
    if ids is None:
        ids = encode(own)
    return PreparedOption(text, None, tuple(ids), seam_changed)


def check_distinct(texts: Sequence[str], normalise: Callable[[str], str]) -> None:
    """Raise ``RowError`` (``empty_option``, ``equal_options``) by the texts the model sees.

    Texts that differ here have different ids after any prompt: byte-level tokens spell out
    exactly the normalised text.
    """
    seen: dict[str, int] = {}
    for place, text in enumerate(texts):
        if not text:
            raise _empty(text)
        first = seen.setdefault(normalise(text), place)
        if first != place:
            raise _equal(texts, first, place)


def prefix_clash(options: Sequence[PreparedOption]) -> bool:
    """Whether one option's ids begin another's (their probabilities then overlap)."""
    ids = sorted(option.token_ids for option in options)
    # In this order an id sequence is followed at once by those that it begins.
    return any(b[: len(a)] == a for a, b in itertools.pairwise(ids))


def _empty(text: str) -> RowError:
    return RowError(
        ErrorCode.EMPTY_OPTION, f"the option {text!r} has no tokens: give it a text or remove it"
    )


def _equal(texts: Sequence[str], first: int, second: int) -> RowError:
    return RowError(
        ErrorCode.EQUAL_OPTIONS,
        f"options {first} and {second} (counted from 0), {texts[first]!a} and {texts[second]!a}, "
        "are the same text to the model: remove or reword one",
    )
