"""From a record to token ids: the prompt's, its options' and its targets'.

User text is literal: messages, questions, states, options, the system text and raw prompts
never become special tokens; only the chat template's own do (and, with ``parse_special``, a
raw prompt's).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from scorer.errors import ErrorCode, ModelError, RowError
from scorer.labels import (
    LETTER_LABELS,
    LabelSet,
    PreparedOption,
    Tail,
    check_distinct,
    continuation,
    label_variant,
    letter_labels,
    prefix_clash,
)
from scorer.records import Record
from scorer.rendering import Draft, Renderer, strings
from scorer.tokenizer import Tokenizer, TokenText
from scorer.truncation import cut


@dataclass(frozen=True, slots=True)
class PreparedTarget:
    """A token whose log-probability is asked for."""

    token_id: int
    text: str


class Prepared(msgspec.Struct, frozen=True):
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


class _Encoded(msgspec.Struct, frozen=True):
    text: str
    ids: list[int]
    options: tuple[PreparedOption, ...]

    @property
    def length(self) -> int:
        """Tokens of the longest read: one-token options are read at the prompt's own end."""
        own = (len(option.token_ids) for option in self.options)
        return len(self.ids) + max((length for length in own if length > 1), default=0)


class _TextIds:
    """The ids of plain texts: many at once beforehand, others when they turn up.

    Lives for one batch.
    """

    def __init__(self, tokenizer: Tokenizer, texts: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._texts = texts
        self._ids: dict[str, list[int]] = {}
        self._labels: dict[tuple[str, int], list[tuple[str, int]]] = {}

    def encode_all(self, texts: Iterable[str]) -> None:
        unique = list(dict.fromkeys(texts))
        self._ids = dict(zip(unique, self._tokenizer.encode(unique), strict=True))

    def __call__(self, text: str) -> list[int]:
        ids = self._ids.get(text)
        if ids is None:
            ids = self._ids[text] = self._tokenizer.encode([text])[0]
        return ids

    def labels(self, tail: str, count: int) -> list[tuple[str, int]]:
        """``letter_labels``, once for all prompts that end alike."""
        labels = self._labels.get((tail, count))
        if labels is None:
            labels = self._labels[tail, count] = letter_labels(tail, count, self, self._texts)
        return labels


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
        labels: LabelSet = LETTER_LABELS,
    ) -> None:
        self._max_tokens = max_tokens
        self._truncate = truncate
        self._tokenizer = Tokenizer(tokenizer_dir)
        self._renderer = Renderer(
            tokenizer_dir,
            self._tokenizer,
            system=system,
            question_template=question_template,
            parse_special=parse_special,
            labels=labels,
        )
        self.n_ids = self._tokenizer.n_ids
        if vocab_size < self.n_ids:
            raise ModelError(
                f"{tokenizer_dir}: the tokenizer has {self.n_ids} ids, but the model's logits "
                f"only {vocab_size} rows: tokenizer and model don't belong together"
            )

    @cached_property
    def template_sha256(self) -> str:
        """SHA-256 of all that stands around the user's text: chat and question template, system.

        A chat template that is missing or refused counts as none.
        """
        try:
            chat: str | None = self._renderer.chat.source
        except ModelError:
            chat = None
        parts: list[object] = [chat, self._renderer.question.source, self._renderer.system]
        if self._renderer.labels != LETTER_LABELS:
            parts.append(self._renderer.labels.texts)
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def token_text(self, ids: Iterable[int]) -> list[TokenText]:
        """Text and raw bytes of each id (``0 <= id < n_ids``)."""
        return self._tokenizer.token_text(ids)

    def prepare(self, records: Sequence[Record]) -> list[Prepared | RowError]:
        """Token ids for each record, in order; a ``RowError`` in place of one that has none.

        All texts are encoded in one call, in the tokenizer's own threads. Raises ``ModelError``
        when a chat record meets a missing or refused chat template.
        """
        drafts: list[Draft | RowError] = []
        for record in records:
            try:
                drafts.append(self._renderer.draft(record))
            except RowError as error:
                drafts.append(error)
        labels = self._renderer.labels.texts
        encode = _TextIds(self._tokenizer, labels)
        encode.encode_all(_texts(records, drafts, labels, self._tokenizer.independent_from))
        prepared: list[Prepared | RowError] = []
        for record, draft in zip(records, drafts, strict=True):
            try:
                prepared.append(
                    draft if isinstance(draft, RowError) else self._finish(record, draft, encode)
                )
            except RowError as error:
                prepared.append(error)
        return prepared

    def _finish(self, record: Record, draft: Draft, encode: _TextIds) -> Prepared:
        encoded = whole = self._encode(record, draft, encode)
        if not whole.ids:
            raise RowError(
                ErrorCode.EMPTY_PROMPT,
                "the prompt has no tokens"
                + (" besides the spaces moved to its options" if draft.moved else "")
                + ": there is nothing to read after; give it a text",
            )
        targets = tuple(self._target(target, encode) for target in record.targets)
        warnings = draft.warnings
        truncated = 0
        if whole.length > self._max_tokens:
            encoded = self._truncated(record, whole, encode)
            truncated = len(whole.ids) - len(encoded.ids)
            warnings += (f"{truncated} tokens of the prompt were cut off (--truncate-prompt)",)
        if changed := [option.text for option in encoded.options if option.seam_changed]:
            text = (
                f"the prompt's last tokens would change with {len(changed)} of the options behind "
                f"them (the first is {changed[0]!r}): these were encoded on their own"
            )
            warnings += (text,)
        matches = draft.matches
        if record.question is None and (
            in_options := sum(map(self._tokenizer.added_text.count, record.options or ()))
        ):
            matches += in_options
            warnings += (f"{strings(in_options)} in the options, read as ordinary text",)
        return Prepared(
            record=record,
            token_ids=np.array(encoded.ids, dtype=np.int32),
            options=encoded.options,
            targets=targets,
            text=encoded.text,
            warnings=warnings,
            special_matches=matches,
            truncated_tokens=truncated,
            moved_spaces=len(draft.moved),
            prefix_clash=record.question is None and prefix_clash(encoded.options),
        )

    def _encode(self, record: Record, draft: Draft, encode: _TextIds) -> _Encoded:
        ids, tail = self._prompt_ids(record, draft, encode)
        options = self._options(record, draft, tail, encode) if ids else ()
        return _Encoded(draft.text, ids, options)

    def _prompt_ids(self, record: Record, draft: Draft, encode: _TextIds) -> tuple[list[int], Tail]:
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
            text = self._tokenizer.decode(own, errors="strict")
        except UnicodeDecodeError:
            return Tail(None, own)
        return Tail(text if encode(text) == own else None, own)

    def _options(
        self, record: Record, draft: Draft, tail: Tail, encode: _TextIds
    ) -> tuple[PreparedOption, ...]:
        texts = record.options or ()
        if record.question is not None:
            labels = encode.labels(tail.text or "", len(texts))
            return tuple(
                PreparedOption(text, label, (token_id,), False)
                for text, (label, token_id) in zip(texts, labels, strict=True)
            )
        check_distinct(texts, self._tokenizer.normalise)
        if tail.text and (start := self._tokenizer.independent_from(tail.text)):
            rest = tail.text[start:]
            tail = Tail(rest, encode(rest))
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

    def _truncated(self, record: Record, whole: _Encoded, encode: _TextIds) -> _Encoded:
        """The prompt shortened as ``--truncate-prompt`` says (see ``truncation``)."""
        if not self._truncate:
            raise self._too_long(whole, "shorten it, or use --truncate-prompt")
        if record.prompt is not None or record.prompt_token_ids is not None:
            room = self._max_tokens - (whole.length - len(whole.ids))
            if room < 1:
                raise self._too_long(whole, "shorten the option")
            ids = whole.ids[-room:]
            return _Encoded(self._tokenizer.decode(ids), ids, whole.options)
        current, encoded = record, whole
        while encoded.length > self._max_tokens:
            shorter = cut(current, encoded.length - self._max_tokens, self._tokenizer.token_starts)
            if shorter is None:
                raise self._too_long(
                    whole, "--truncate-prompt cuts the body only: shorten the rest"
                )
            current = shorter
            encoded = self._encode(current, self._renderer.draft(current), encode)
        return encoded

    def _too_long(self, encoded: _Encoded, remedy: str) -> RowError:
        longest = encoded.length - len(encoded.ids)
        return RowError(
            ErrorCode.PROMPT_TOO_LONG,
            f"the prompt has {len(encoded.ids)} tokens"
            + (f" and its longest option {longest}" if longest else "")
            + f", the model's limit is {self._max_tokens}: {remedy}",
        )


def _texts(
    records: Iterable[Record],
    drafts: Iterable[Draft | RowError],
    labels: Sequence[str],
    independent_from: Callable[[str], int],
) -> Iterator[str]:
    """The plain texts that the records will surely need the ids of."""
    lettered: set[tuple[str, int]] = set()
    for record, draft in zip(records, drafts, strict=True):
        if isinstance(draft, RowError):
            continue
        for target in record.targets:
            if isinstance(target, str):
                yield target
        if draft.pieces is None:
            continue
        yield from draft.pieces[::2]
        last, options = draft.pieces[-1], record.options or ()
        if record.question is None:
            if options:
                last = last[independent_from(last) :]
                yield last
            for option in options:
                yield last + draft.moved + option
        elif (last, len(options)) not in lettered:
            lettered.add((last, len(options)))
            for label in labels[: len(options)]:
                yield label_variant(last) + label
                yield last + label_variant(last) + label
