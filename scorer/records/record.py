"""What a line of input is: a :class:`Record`, or a :class:`BadLine` that says why it is none.

A line is one JSON object in UTF-8. The rules, beyond those the keys state themselves:

- ``null`` for a known key is the same as leaving the key out.
- A key given twice in one object: the last one counts.
- A whole number is written as one: ``1.0``, ``true`` and ``"1"`` are not ints.
- ``label`` (the gold answer) as a string is an option's exact text, as an int always its
  index from 0. So with the options ``["1", "0"]``, ``"0"`` is the second and ``0`` the first.
- Unknown keys are carried along, value bytes unchanged. One edit away from a known name of
  five letters or more, a key is taken for a typo and refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from scorer.errors import RowError

# Of whole-vocabulary requests nothing good comes: an entry is about 100 bytes of JSON, so this
# many are 2 MB for every position read. It stays below every Qwen3 vocabulary (151,669 ids).
MAX_TOP_K: Final = 20_000
MIN_LETTERED: Final = 2
MAX_LETTERED: Final = 26
MAX_TOKEN_ID: Final = 2**31 - 1
LEAST_ID: Final = -(2**63)
LARGEST_ID: Final = 2**64 - 1
NULL: Final = msgspec.Raw(b"null")

ROLES: Final = ("system", "user", "assistant")
PROMPT_KEYS: Final = ("prompt", "messages", "prompt_token_ids", "question")
KNOWN_KEYS: Final = (
    "id",
    *PROMPT_KEYS,
    "state",
    "options",
    "label",
    "targets",
    "logprobs",
    "prompt_logprobs",
)


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One turn of a chat; ``role`` is one of :data:`ROLES`."""

    role: str
    content: str


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What to read. Exactly one of the four :data:`PROMPT_KEYS` is not None.

    ``line`` is the physical line, from 1. ``state`` is a string as given, or the raw JSON of
    any other value. ``gold_index`` is the option that ``label`` names. ``logprobs`` and
    ``prompt_logprobs``: None = none, 0 = the chosen token only, k = the k most likely, too.
    """

    line: int
    id: str | int
    prompt: str | None = None
    messages: tuple[Message, ...] | None = None
    prompt_token_ids: tuple[int, ...] | None = None
    question: str | None = None
    state: str | msgspec.Raw | None = None
    options: tuple[str, ...] | None = None
    label: str | int | None = None
    gold_index: int | None = None
    targets: tuple[int | str, ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    extra: dict[str, msgspec.Raw] = {}


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is no record. ``id`` is None where none could be made out."""

    line: int
    id: str | int | None
    error: RowError
    extra: Mapping[str, msgspec.Raw] = field(default_factory=dict)
