"""What goes first when a prompt is too long and ``--truncate-prompt`` was given.

Only the user's body text is cut, never a token of the template and never an option:

- a question loses the end of its state, or of itself if it has none;
- a chat loses the beginning of its oldest text, turn by turn (an emptied turn stays; the system
  message stays whole; the last message keeps at least a character);
- a raw prompt and token ids lose tokens at the beginning (in ``prompts``, where the ids are).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from scorer.prompts.rendering import state_text
from scorer.records.record import Message, Record

TokenStarts = Callable[[str], list[int]]


def cut(record: Record, excess: int, token_starts: TokenStarts) -> Record | None:
    """``record`` with its body shorter by about ``excess`` tokens; None if none would be left.

    ``token_starts`` gives the places in a text where its tokens begin. Every call cuts at least
    one character, so that repeating it comes to an end.
    """
    if record.messages is not None:
        return _cut_oldest(record, record.messages, excess, token_starts)
    if record.state is not None:
        body = state_text(record.state) or ""
        end = _end(body, excess, token_starts)
        return msgspec.structs.replace(record, state=body[:end]) if end else None
    body = record.question or ""
    end = _end(body, excess, token_starts)
    return msgspec.structs.replace(record, question=body[:end]) if end else None


def cut_end(record: Record) -> str:
    """Where a record loses text, for a sentence."""
    if record.question is not None:
        return "at the end of the question" if record.state is None else "at the end of the state"
    chat = record.messages is not None
    return "at the beginning of the chat's texts" if chat else "at its beginning"


def _end(body: str, excess: int, token_starts: TokenStarts) -> int:
    starts = token_starts(body)
    return starts[-excess] if excess < len(starts) else 0


def _cut_oldest(
    record: Record, messages: tuple[Message, ...], excess: int, token_starts: TokenStarts
) -> Record | None:
    for place, message in enumerate(messages):
        if message.role == "system" or not message.content:
            continue
        starts = token_starts(message.content)
        # A character of several tokens goes as a whole.
        begin = next((start for start in starts[excess:] if start), len(message.content))
        content = message.content[begin:]
        if not content and place == len(messages) - 1:
            return None
        changed = (*messages[:place], Message(message.role, content), *messages[place + 1 :])
        return msgspec.structs.replace(record, messages=changed)
    return None
