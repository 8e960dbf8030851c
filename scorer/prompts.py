"""From a record to token ids: the prompt's, its options' and its targets'.

User text is literal: messages, questions, states, options, the system text and raw prompts
never become special tokens; only the chat template's own do (and, with ``parse_special``, a
raw prompt's).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, zip_longest
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

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
    letter_labels,
    prefix_clash,
)
from scorer.records import Record
from scorer.rendering import Draft, Renderer, strings
from scorer.tokenizer import Tokenizer, TokenText, is_closed
from scorer.truncation import cut
from scorer.words import ID_BYTES, WordIds, packed, unpacked

_MOST_KNOWN: Final = 256
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class PreparedTarget:
    """A token whose log-probability is asked for."""

    token_id: int
    text: str


class Prepared(msgspec.Struct, frozen=True):
    """A record in tokens.

    ``ids``: the prompt's tokens, n ≥ 1, int32, little endian. ``text``: the prompt as rendered.
    ``special_matches``: strings of added tokens in the user's text (read as text, except in a
    raw prompt with ``parse_special``). ``moved_spaces``: spaces moved from the prompt's end to
    its options. ``prefix_clash``: one option's ids begin another's.
    """

    record: Record
    ids: bytes
    options: tuple[PreparedOption, ...]
    targets: tuple[PreparedTarget, ...]
    text: str
    warnings: tuple[str, ...]
    special_matches: int
    truncated_tokens: int
    moved_spaces: int
    prefix_clash: bool

    @property
    def tokens(self) -> int:
        """How many tokens the prompt has."""
        return len(self.ids) // ID_BYTES

    @property
    def token_ids(self) -> npt.NDArray[np.int32]:
        """int32 [n]: the prompt."""
        return np.frombuffer(self.ids, dtype=np.int32)


class _OptionsKey(NamedTuple):
    """What the ids of options behind a prompt depend on.

    ``moved``: spaces that moved to them from the prompt's end. ``tail``: the end of the prompt's
    text that their ids may depend on.
    """

    texts: tuple[str, ...]
    moved: str
    tail: str


class _Options(NamedTuple):
    """What a record's options come to.

    ``longest``: tokens of the longest one that has several. ``clash``: one's ids begin another's.
    ``matches``: strings of added tokens in them, read as text.
    """

    options: tuple[PreparedOption, ...]
    longest: int
    clash: bool
    matches: int
    warnings: tuple[str, ...]


_NO_OPTIONS = _Options((), 0, clash=False, matches=0, warnings=())


class _Encoded(NamedTuple):
    """``ids``: of the prompt, int32, little endian."""

    text: str
    ids: bytes
    options: _Options

    @property
    def tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.ids) // ID_BYTES

    @property
    def length(self) -> int:
        """Tokens of the longest read: one-token options are read at the prompt's own end."""
        return self.tokens + self.options.longest


class _Texts:
    """The ids of one batch's plain texts: many at once beforehand, others when they turn up."""

    def __init__(self, word_ids: WordIds) -> None:
        self._word_ids = word_ids
        self._ids: dict[str, bytes] = {}

    def encode_all(self, texts: Iterable[str]) -> None:
        """Encode texts whose ids are going to be asked for."""
        unique = list(dict.fromkeys(texts))
        self._ids = dict(zip(unique, self._word_ids(unique), strict=True))

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
        self._word_ids = WordIds(self._tokenizer)
        self._added = {text: packed([own]) for text, own in self._tokenizer.added.items()}
        # The records of a file mostly have the same options: looked up, not worked out again.
        self._known_labels: dict[tuple[str, int], list[tuple[str, int]]] = {}
        self._known_options: dict[_OptionsKey, _Options] = {}
        self._known_questions: dict[_OptionsKey, _Options] = {}
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
        encode = _Texts(self._word_ids)
        encode.encode_all(
            text
            for record, draft in zip(records, drafts, strict=True)
            if isinstance(draft, Draft)
            for text in self._plain_texts(record, draft)
        )
        prepared: list[Prepared | RowError] = []
        for record, draft in zip(records, drafts, strict=True):
            try:
                prepared.append(
                    self._finish(record, draft, encode) if isinstance(draft, Draft) else draft
                )
            except RowError as error:
                prepared.append(error)
        return prepared

    def _plain_texts(self, record: Record, draft: Draft) -> Sequence[str]:
        """The texts that the record will surely need the ids of."""
        pieces = draft.pieces
        texts: Sequence[str] = () if pieces is None else pieces[::2]
        if record.targets:
            texts = [*texts, *[own for own in record.targets if isinstance(own, str)]]
        if pieces is None or record.options is None or record.question is not None:
            return texts
        key = self._options_key(record.options, draft.moved, pieces[-1])
        if key in self._known_options:
            return texts
        own = [key.tail + key.moved + option for option in key.texts]
        return [*texts, *([key.tail] if key.tail else ()), *own]

    def _finish(self, record: Record, draft: Draft, encode: _Texts) -> Prepared:
        encoded = whole = self._encode(record, draft, encode)
        if not whole.ids:
            raise RowError(
                ErrorCode.EMPTY_PROMPT,
                "the prompt has no tokens"
                + (" besides the spaces moved to its options" if draft.moved else "")
                + ": there is nothing to read after; give it a text",
            )
        targets = tuple([self._target(target, encode) for target in record.targets])
        warnings = draft.warnings
        truncated = 0
        if whole.length > self._max_tokens:
            encoded = self._truncated(record, whole, encode)
            truncated = whole.tokens - encoded.tokens
            warnings += (f"{truncated} tokens of the prompt were cut off (--truncate-prompt)",)
        options = encoded.options
        return Prepared(
            record=record,
            ids=encoded.ids,
            options=options.options,
            targets=targets,
            text=encoded.text,
            warnings=warnings + options.warnings,
            special_matches=draft.matches + options.matches,
            truncated_tokens=truncated,
            moved_spaces=len(draft.moved),
            prefix_clash=options.clash,
        )

    def _encode(self, record: Record, draft: Draft, encode: _Texts) -> _Encoded:
        pieces = draft.pieces
        if pieces is None:
            ids = packed(record.prompt_token_ids or ())
        elif len(pieces) == 1:
            ids = encode.packed(pieces[0])
        else:
            parts = list(map(encode.packed, pieces[::2]))
            added = list(map(self._added.__getitem__, pieces[1::2]))
            ids = b"".join(chain.from_iterable(zip_longest(parts, added, fillvalue=b"")))
        if not ids or record.options is None:
            return _Encoded(draft.text, ids, _NO_OPTIONS)
        if pieces is None:
            options = self._options_of_ids(record.options, unpacked(ids), encode)
        elif record.question is None:
            options = self._options(record.options, draft.moved, pieces[-1], encode)
        else:
            options = self._lettered(record.options, pieces[-1], encode)
        return _Encoded(draft.text, ids, options)

    def _options_key(self, texts: tuple[str, ...], moved: str, tail: str) -> _OptionsKey:
        if tail and not (
            self._tokenizer.cuts_at_spaces
            and is_closed(tail)
            and (moved or all(text.startswith(" ") for text in texts))
        ):
            return _OptionsKey(texts, moved, tail[self._tokenizer.independent_from(tail) :])
        return _OptionsKey(texts, moved, "")

    def _options(self, texts: tuple[str, ...], moved: str, tail: str, encode: _Texts) -> _Options:
        """Options that go on with the prompt; ``tail`` is its text behind the last added token."""
        key = self._options_key(texts, moved, tail)
        known = self._known_options.get(key)
        if known is None:
            known = self._continuations(key, Tail(key.tail, encode(key.tail)), encode)
            remember(self._known_options, key, known)
        return known

    def _options_of_ids(self, texts: tuple[str, ...], ids: list[int], encode: _Texts) -> _Options:
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
            return self._continuations(_OptionsKey(texts, "", ""), Tail(None, own), encode)
        return self._options(texts, "", text, encode)

    def _continuations(self, key: _OptionsKey, tail: Tail, encode: _Texts) -> _Options:
        check_distinct(key.texts, self._tokenizer.normalise)
        options = tuple([continuation(text, key.moved, tail, encode) for text in key.texts])
        warnings = []
        if changed := [option.text for option in options if option.seam_changed]:
            warnings.append(
                f"the prompt's last tokens would change with {len(changed)} of the options behind "
                f"them (the first is {changed[0]!r}): these were encoded on their own"
            )
        matches = sum(map(self._tokenizer.added_text.count, key.texts))
        if matches:
            warnings.append(f"{strings(matches)} in the options, read as ordinary text")
        longest = max([len(option.token_ids) for option in options])
        return _Options(
            options,
            longest if longest > 1 else 0,
            clash=prefix_clash(options),
            matches=matches,
            warnings=tuple(warnings),
        )

    def _lettered(self, texts: tuple[str, ...], tail: str, encode: _Texts) -> _Options:
        """A question's options, of which labels are read behind ``tail``."""
        key = _OptionsKey(texts, "", tail)
        known = self._known_questions.get(key)
        if known is not None:
            return known
        labels = self._known_labels.get((tail, len(texts)))
        if labels is None:
            labels = letter_labels(tail, len(texts), encode, self._renderer.labels.texts)
            remember(self._known_labels, (tail, len(texts)), labels)
        options = tuple(
            [
                PreparedOption(text, label, (token_id,), False)
                for text, (label, token_id) in zip(texts, labels, strict=True)
            ]
        )
        known = _NO_OPTIONS._replace(options=options)
        remember(self._known_questions, key, known)
        return known

    def _target(self, target: int | str, encode: _Texts) -> PreparedTarget:
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

    def _truncated(self, record: Record, whole: _Encoded, encode: _Texts) -> _Encoded:
        """The prompt shortened as ``--truncate-prompt`` says (see ``truncation``)."""
        if not self._truncate:
            raise self._too_long(whole, "shorten it, or use --truncate-prompt")
        if record.prompt is not None or record.prompt_token_ids is not None:
            room = self._max_tokens - whole.options.longest
            if room < 1:
                raise self._too_long(whole, "shorten the option")
            ids = unpacked(whole.ids)[-room:]
            return _Encoded(self._tokenizer.decode(ids), packed(ids), whole.options)
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
        longest = encoded.options.longest
        return RowError(
            ErrorCode.PROMPT_TOO_LONG,
            f"the prompt has {encoded.tokens} tokens"
            + (f" and its longest option {longest}" if longest else "")
            + f", the model's limit is {self._max_tokens}: {remedy}",
        )


def remember(known: dict[_Key, _Value], key: _Key, value: _Value) -> None:
    """Put a value where it is looked up; as many are kept as a file of a kind may need."""
    if len(known) >= _MOST_KNOWN:
        known.clear()
    known[key] = value
