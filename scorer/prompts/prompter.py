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
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from scorer.errors import ErrorCode, ModelError, RowError
from scorer.prompts.labels import LETTER_LABELS, LabelSet, PreparedOption
from scorer.prompts.options import NO_OPTIONS, OptionIds, OptionSet
from scorer.prompts.rendering import Draft, Renderer
from scorer.prompts.tokenizer import Tokenizer, TokenText
from scorer.prompts.truncation import cut, cut_end
from scorer.prompts.words import ID_BYTES, TextIds, WordIds, packed, unpacked
from scorer.records.record import Record


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


class _Encoded(NamedTuple):
    """``ids``: of the prompt, int32, little endian."""

    text: str
    ids: bytes
    options: OptionSet

    @property
    def tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.ids) // ID_BYTES

    @property
    def behind(self) -> int:
        """Tokens that are read behind the prompt's: of the longest option, all but its last."""
        return max(self.options.longest - 1, 0)

    @property
    def length(self) -> int:
        """Tokens of the longest read, which is what the model's limit is for."""
        return self.tokens + self.behind


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
        self._options = OptionIds(self._tokenizer, labels)
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
    def has_chat_template(self) -> bool:
        """Whether questions and messages can be rendered."""
        try:
            _ = self._renderer.chat
        except ModelError:
            return False
        return True

    @cached_property
    def template_sha256(self) -> str:
        """SHA-256 of all that stands around the user's text: chat and question template, system.

        A chat template that is missing or refused counts as none.
        """
        chat = self._renderer.chat.source if self.has_chat_template else None
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
        texts: list[str] = []
        for record, draft in zip(records, drafts, strict=True):
            if isinstance(draft, Draft):
                self._collect(record, draft, texts)
        encode = TextIds(self._word_ids, texts)
        prepared: list[Prepared | RowError] = []
        for record, draft in zip(records, drafts, strict=True):
            try:
                prepared.append(
                    self._finish(record, draft, encode) if isinstance(draft, Draft) else draft
                )
            except RowError as error:
                prepared.append(error)
        return prepared

    def _collect(self, record: Record, draft: Draft, texts: list[str]) -> None:
        """Add the texts that the record will surely need the ids of."""
        if record.targets:
            texts += [own for own in record.targets if isinstance(own, str)]
        pieces = draft.pieces
        if pieces is not None:
            texts += pieces[::2]
            if record.options is not None and record.question is None:
                texts += self._options.wanted(record.options, draft.moved, pieces[-1])

    def _finish(self, record: Record, draft: Draft, encode: TextIds) -> Prepared:
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
            tokens = "1 token" if truncated == 1 else f"{truncated} tokens"
            were = "was" if truncated == 1 else "were"
            warnings += (
                f"{tokens} of the prompt {were} cut off {cut_end(record)} (--truncate-prompt)",
            )
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

    def _encode(self, record: Record, draft: Draft, encode: TextIds) -> _Encoded:
        pieces = draft.pieces
        if pieces is None:
            ids = packed(record.prompt_token_ids or ())
        elif len(pieces) == 1:
            ids = encode.packed(pieces[0])
        else:
            parts = list(map(encode.packed, pieces[::2]))
            added = list(map(self._added.__getitem__, pieces[1::2]))
            ids = b"".join(chain.from_iterable(zip_longest(parts, added, fillvalue=b"")))
        texts = record.options
        if not ids or texts is None:
            options = NO_OPTIONS
        elif pieces is None:
            options = self._options.behind_ids(texts, unpacked(ids), encode)
        elif record.question is None:
            options = self._options.behind_text(texts, draft.moved, pieces[-1], encode)
        else:
            options = self._options.lettered(texts, pieces[-1], encode)
        return _Encoded(draft.text, ids, options)

    def _target(self, target: int | str, encode: TextIds) -> PreparedTarget:
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

    def _truncated(self, record: Record, whole: _Encoded, encode: TextIds) -> _Encoded:
        """The prompt shortened as ``--truncate-prompt`` says (see ``truncation``)."""
        if not self._truncate:
            raise self._too_long(whole, "shorten it, or use --truncate-prompt")
        if record.prompt is not None or record.prompt_token_ids is not None:
            room = self._max_tokens - whole.behind
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
            + (f" and its longest option {longest}, whose last is not read" if longest else "")
            + f", the model's limit is {self._max_tokens}: {remedy}",
        )
