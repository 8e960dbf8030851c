"""From a record to token ids: the prompt's, its options' and its targets'.

User text is literal: messages, questions, states, options, the system text and raw prompts
never become special tokens; only the chat template's own do (and, with ``parse_special``, a
raw prompt's).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from scorer.errors import ErrorCode, ModelError, RowError, UsageError
from scorer.labels import (
    LETTERS,
    PreparedOption,
    Tail,
    check_distinct,
    continuation,
    label_variant,
    letter_labels,
    prefix_clash,
)
from scorer.records import Message, Record
from scorer.templates import (
    DEFAULT_QUESTION_TEMPLATE,
    ChatTemplate,
    LetteredOption,
    QuestionTemplate,
    thinking_is_open,
)
from scorer.tokenizer import Tokenizer, TokenText


@dataclass(frozen=True, slots=True)
class PreparedTarget:
    """A token whose log-probability is asked for."""

    token_id: int
    text: str


@dataclass(frozen=True, slots=True)
class Prepared:
    """A record in tokens.

    ``token_ids``: int32 [n], the prompt, n ≥ 1. ``text``: the prompt as rendered.
    ``special_matches``: strings of added tokens in the user's text (read as text, except in a
    raw prompt with ``parse_special``). ``moved_spaces``: spaces moved from the prompt's end to
    its options. ``prefix_clash``: one option's ids begin another's.
    """

    record: Record
    token_ids: npt.NDArray[np.int32]
    options: tuple[PreparedOption, ...]
    targets: tuple[PreparedTarget, ...]
    text: str
    warnings: tuple[str, ...]
    special_matches: int
    truncated_tokens: int
    moved_spaces: int
    prefix_clash: bool


@dataclass(frozen=True, slots=True)
class _Draft:
    """A rendered prompt whose texts have yet to be encoded.

    ``pieces``: plain text and added tokens in turn, plain first and last. None when the record
    brought its token ids.
    """

    text: str
    pieces: tuple[str, ...] | None
    moved: str
    matches: int
    warnings: tuple[str, ...]


class _TextIds:
    """The ids of plain texts: many at once beforehand, others when they turn up."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: dict[str, list[int]] = {}

    def encode_all(self, texts: Iterable[str]) -> None:
        unique = list(dict.fromkeys(texts))
        self._ids = dict(zip(unique, self._tokenizer.encode(unique), strict=True))

    def __call__(self, text: str) -> list[int]:
        ids = self._ids.get(text)
        if ids is None:
            ids = self._ids[text] = self._tokenizer.encode([text])[0]
        return ids


class Prompter:
    """Turns records into token ids with one model's tokenizer and chat template.

    ``max_tokens``: the longest read the model takes. ``vocab_size``: rows of the model's logits.
    ``n_ids``: ids are 0 … n_ids - 1, added tokens included.

    Raises ``ModelError`` for a refused tokenizer or a vocabulary that the model's logits don't
    cover, ``UsageError`` for a question template or system text that can't be used.
    """

    def __init__(
        self,
        tokenizer_dir: Path,
        *,
        max_tokens: int,
        vocab_size: int,
        system: str | None = None,
        question_template: str | None = None,
        parse_special: bool = False,
        truncate: bool = False,
    ) -> None:
        self._directory = Path(tokenizer_dir)
        self._max_tokens = max_tokens
        self._system = system
        self._parse_special = parse_special
        self._truncate = truncate
        self._question = QuestionTemplate(question_template or DEFAULT_QUESTION_TEMPLATE)
        if system is not None:
            _check_system(system)
        self._tokenizer = Tokenizer(self._directory)
        self.n_ids = self._tokenizer.n_ids
        if vocab_size < self.n_ids:
            raise ModelError(
                f"{self._directory}: the tokenizer has {self.n_ids} ids, but the model's logits "
                f"only {vocab_size} rows: tokenizer and model don't belong together"
            )

    @cached_property
    def _chat(self) -> ChatTemplate:
        # Made when the first chat record turns up: files of raw prompts need no template.
        return ChatTemplate(self._directory)

    @cached_property
    def template_sha256(self) -> str:
        """SHA-256 of all that stands around the user's text: chat and question template, system.

        A directory without a chat template counts as none.
        """
        try:
            chat: str | None = self._chat.source
        except ModelError:
            chat = None
        parts = [chat, self._question.source, self._system]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def token_text(self, ids: Iterable[int]) -> list[TokenText]:
        """Text and raw bytes of each id (``0 <= id < n_ids``)."""
        return self._tokenizer.token_text(ids)

    def prepare(self, records: Sequence[Record]) -> list[Prepared | RowError]:
        """Token ids for each record, in order; a ``RowError`` in place of one that has none.

        All texts are encoded in one call, in the tokenizer's own threads. Raises ``ModelError``
        when a chat record meets a missing or refused chat template.
        """
        drafts: list[_Draft | RowError] = []
        for record in records:
            try:
                drafts.append(self._draft(record))
            except RowError as error:
                drafts.append(error)
        encode = _TextIds(self._tokenizer)
        encode.encode_all(
            text
            for record, draft in zip(records, drafts, strict=True)
            if isinstance(draft, _Draft)
            for text in _texts(record, draft)
        )
        prepared: list[Prepared | RowError] = []
        for record, draft in zip(records, drafts, strict=True):
            if isinstance(draft, _Draft):
                try:
                    prepared.append(self._finish(record, draft, encode))
                except RowError as error:
                    prepared.append(error)
            else:
                prepared.append(draft)
        return prepared

    # Rendering

    def _draft(self, record: Record) -> _Draft:
        if record.prompt is not None:
            return self._draft_prompt(record.prompt, has_options=bool(record.options))
        if record.prompt_token_ids is not None:
            return self._draft_ids(record.prompt_token_ids)
        if record.messages is not None:
            return self._draft_messages(record.messages)
        return self._draft_messages((Message("user", self._question_text(record)),))

    def _draft_prompt(self, prompt: str, *, has_options: bool) -> _Draft:
        warnings = ["--system has no effect on a raw prompt"] if self._system is not None else []
        text = prompt.rstrip(" ") if has_options else prompt
        matches = self._tokenizer.added_text.count(text)
        if self._parse_special:
            pieces = tuple(self._tokenizer.added_text.split(text))
        else:
            pieces = (text,)
            if matches:
                warnings.append(
                    f"{_strings(matches)} in the prompt, read as ordinary text (--parse-special "
                    "makes them tokens)"
                )
        return _Draft(text, pieces, prompt[len(text) :], matches, tuple(warnings))

    def _draft_ids(self, ids: Sequence[int]) -> _Draft:
        wrong = [(place, token) for place, token in enumerate(ids) if not 0 <= token < self.n_ids]
        if wrong:
            place, token = wrong[0]
            raise RowError(
                ErrorCode.TOKEN_OUT_OF_RANGE,
                f"prompt_token_ids[{place}] is {token}, but ids are 0 to {self.n_ids - 1}: use the "
                "ids of this model's tokenizer",
            )
        warnings = ("--system has no effect on token ids",) if self._system is not None else ()
        text = b"".join(map(self._tokenizer.token_bytes, ids)).decode(errors="replace")
        return _Draft(text, None, "", 0, warnings)

    def _draft_messages(self, messages: Sequence[Message]) -> _Draft:
        warnings = []
        if messages[-1].role == "assistant":
            raise RowError(
                ErrorCode.INVALID_VALUE,
                "the last message is the assistant's, and the answer is read after it: remove it, "
                "or make its text the options",
            )
        if self._system is not None:
            if messages[0].role == "system":
                warnings.append("the record's own system message is used, not --system")
            else:
                messages = (Message("system", self._system), *messages)
        contents = [message.content for message in messages]
        added_text = self._tokenizer.added_text
        guarded, marker = added_text.guard(contents, self._chat.source)
        turns = [
            {"role": message.role, "content": content}
            for message, content in zip(messages, guarded, strict=True)
        ]
        pieces = added_text.split(self._chat.render(turns))
        if marker:
            pieces = [piece.replace(marker, "") for piece in pieces]
        text = "".join(pieces)
        if thinking_is_open("".join(pieces[1::2])):
            raise RowError(
                ErrorCode.THINKING_TEMPLATE,
                "the chat template begins this answer inside <think>: the next token is a thought, "
                "not an answer; use a model that answers without thinking",
            )
        matches = sum(map(added_text.count, contents)) if marker else 0
        if matches:
            warnings.append(f"{_strings(matches)} in the messages, read as ordinary text")
        return _Draft(text, tuple(pieces), "", matches, tuple(warnings))

    def _question_text(self, record: Record) -> str:
        if record.question is None or not record.options:
            raise RowError(ErrorCode.NO_PROMPT, "a question needs its options: add them")
        if len(record.options) > len(LETTERS):
            raise RowError(
                ErrorCode.TOO_MANY_OPTIONS,
                f"a question has at most {len(LETTERS)} options, one a letter, got "
                f"{len(record.options)}: ask in parts, or give them as continuations of a prompt",
            )
        check_distinct(record.options, self._tokenizer.normalise)
        options = [
            LetteredOption(letter, text)
            for letter, text in zip(LETTERS, record.options, strict=False)
        ]
        return self._question.render(record.question, state_text(record.state), options)

    # Encoding

    def _finish(self, record: Record, draft: _Draft, encode: _TextIds) -> Prepared:
        ids, tail = self._prompt_ids(record, draft, encode)
        if not ids:
            raise RowError(
                ErrorCode.EMPTY_PROMPT,
                "the prompt has no tokens"
                + (" besides the spaces moved to its options" if draft.moved else "")
                + ": there is nothing to read after; give it a text",
            )
        warnings = list(draft.warnings)
        options = self._options(record, draft, tail, encode)
        if changed := [option.text for option in options if option.seam_changed]:
            warnings.append(
                f"the prompt's last tokens would change with {len(changed)} of the options behind "
                f"them ({changed[0]!r} …): these were encoded on their own"
            )
        targets = tuple(self._target(target, encode) for target in record.targets)
        # One-token options are read at the prompt's end: only longer ones need room.
        longest = max((len(o.token_ids) for o in options if len(o.token_ids) > 1), default=0)
        text, truncated = draft.text, 0
        excess = len(ids) + longest - self._max_tokens
        if excess > 0:
            if not self._truncate:
                raise self._too_long(len(ids), longest, "shorten it, or use --truncate-prompt")
            if record.prompt is not None or record.prompt_token_ids is not None:
                text, kept = self._without_beginning(ids, longest)
            else:
                text, kept = self._shortened(record, len(ids), longest, encode)
            truncated = len(ids) - len(kept)
            ids = kept
            warnings.append(f"{truncated} tokens of the prompt were cut off (--truncate-prompt)")
        return Prepared(
            record=record,
            token_ids=np.array(ids, dtype=np.int32),
            options=options,
            targets=targets,
            text=text,
            warnings=tuple(warnings),
            special_matches=draft.matches,
            truncated_tokens=truncated,
            moved_spaces=len(draft.moved),
            prefix_clash=prefix_clash(options) if record.question is None else False,
        )

    def _prompt_ids(
        self, record: Record, draft: _Draft, encode: _TextIds
    ) -> tuple[list[int], Tail]:
        if draft.pieces is None:
            ids = list(record.prompt_token_ids or ())
            return ids, self._tail_of_ids(ids, encode) if record.options else Tail(None, [])
        ids = []
        added = self._tokenizer.added
        for place, piece in enumerate(draft.pieces):
            if place % 2:
                ids.append(added[piece])
            elif piece:
                ids += encode(piece)
        last = draft.pieces[-1]
        return ids, Tail(last, encode(last) if last else [])

    def _tail_of_ids(self, ids: list[int], encode: _TextIds) -> Tail:
        start = len(ids)
        while start and not self._tokenizer.is_added(ids[start - 1]):
            start -= 1
        own = ids[start:]
        try:
            text = b"".join(map(self._tokenizer.token_bytes, own)).decode()
        except UnicodeDecodeError:
            return Tail(None, own)
        return Tail(text if encode(text) == own else None, own)

    def _options(
        self, record: Record, draft: _Draft, tail: Tail, encode: _TextIds
    ) -> tuple[PreparedOption, ...]:
        texts = record.options or ()
        if record.question is not None:
            labels = letter_labels(tail.text or "", tail.ids, len(texts), encode)
            return tuple(
                PreparedOption(text, label, (token_id,), False)
                for text, (label, token_id) in zip(texts, labels, strict=True)
            )
        check_distinct(texts, self._tokenizer.normalise)
        return tuple(continuation(text, draft.moved, tail, encode) for text in texts)

    def _target(self, target: int | str, encode: _TextIds) -> PreparedTarget:
        if isinstance(target, str):
            ids = encode(target) if target else []
            if len(ids) != 1:
                known = self._tokenizer.added.get(target)
                raise RowError(
                    ErrorCode.TARGET_NOT_ONE_TOKEN,
                    f"the target {target!r} is {len(ids)} tokens {ids}, not one: "
                    + (
                        f"ask for the added token by its id, {known}"
                        if known is not None
                        else "name one token, with its leading space if it has one, or give its id"
                    ),
                )
            return PreparedTarget(ids[0], target)
        if not 0 <= target < self.n_ids:
            raise RowError(
                ErrorCode.TOKEN_OUT_OF_RANGE,
                f"the target {target} is no token: ids are 0 to {self.n_ids - 1}",
            )
        return PreparedTarget(target, self._tokenizer.token_text([target])[0].text)

    # Length

    def _too_long(self, prompt: int, longest: int, remedy: str) -> RowError:
        option = f" and its longest option {longest}" if longest else ""
        return RowError(
            ErrorCode.PROMPT_TOO_LONG,
            f"the prompt has {prompt} tokens{option}, the model's limit is {self._max_tokens}: "
            + remedy,
        )

    def _without_beginning(self, ids: list[int], longest: int) -> tuple[str, list[int]]:
        """A raw prompt loses tokens at its beginning, as many as it must."""
        room = self._max_tokens - longest
        if room < 1:
            raise self._too_long(len(ids), longest, "shorten the option")
        kept = ids[-room:]
        return b"".join(map(self._tokenizer.token_bytes, kept)).decode(errors="replace"), kept

    def _shortened(
        self, record: Record, tokens: int, longest: int, encode: _TextIds
    ) -> tuple[str, list[int]]:
        """A question loses the end of its state (else of itself), a chat its oldest text."""
        excess = tokens + longest - self._max_tokens
        current = record
        while (shorter := self._cut(current, excess)) is not None:
            current = shorter
            draft = self._draft(current)
            ids, _ = self._prompt_ids(current, draft, encode)
            excess = len(ids) + longest - self._max_tokens
            if excess <= 0:
                return draft.text, ids
        raise self._too_long(
            tokens, longest, "not even --truncate-prompt makes it fit: shorten the rest"
        )

    def _cut(self, record: Record, excess: int) -> Record | None:
        """The record without about ``excess`` tokens of its body; None if none of it is left."""
        if record.messages is not None:
            return self._cut_oldest(record, record.messages, excess)
        name = "question" if record.state is None else "state"
        body = record.question if record.state is None else state_text(record.state)
        starts = self._tokenizer.token_starts(body or "")
        end = starts[-excess] if excess < len(starts) else 0
        return msgspec.structs.replace(record, **{name: (body or "")[:end]}) if end else None

    def _cut_oldest(
        self, record: Record, messages: tuple[Message, ...], excess: int
    ) -> Record | None:
        for place, message in enumerate(messages):
            if message.role == "system" or not message.content:
                continue
            starts = self._tokenizer.token_starts(message.content)
            # A character of several tokens goes as a whole.
            begin = next((start for start in starts[excess:] if start), len(message.content))
            content = message.content[begin:]
            if not content and place == len(messages) - 1:
                return None
            changed = (*messages[:place], Message(message.role, content), *messages[place + 1 :])
            return msgspec.structs.replace(record, messages=changed)
        return None


def state_text(state: str | msgspec.Raw | None) -> str | None:
    """A question's state as text: a string as it is, any other JSON value on one line.

    Written as ``{"a": [1, 2.50], "b": "é"}``: one space after commas and colons, characters
    as themselves, keys in the order given and numbers exactly as they were typed.
    """
    if state is None or isinstance(state, str):
        return state
    line = msgspec.json.format(bytes(state), indent=0).decode()
    return _JSON_STRING.sub(lambda m: json.dumps(json.loads(m[0]), ensure_ascii=False), line)


_JSON_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')


def _texts(record: Record, draft: _Draft) -> Iterator[str]:
    """All plain texts that ``record`` will surely need the ids of."""
    for target in record.targets:
        if isinstance(target, str):
            yield target
    if draft.pieces is None:
        return
    yield from draft.pieces[::2]
    last = draft.pieces[-1]
    if record.question is not None:
        variant = label_variant(last)
        for letter in LETTERS[: len(record.options or ())]:
            yield variant + letter
            yield last + variant + letter
    else:
        for option in record.options or ():
            yield last + draft.moved + option


def _strings(count: int) -> str:
    return f"{count} special-token string" + ("" if count == 1 else "s")


def _check_system(system: str) -> None:
    try:
        system.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"--system: not valid Unicode at character {error.start}") from error
