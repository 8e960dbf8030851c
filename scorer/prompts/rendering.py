"""From a record to the text of its prompt, cut where the chat template put its own tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path

import msgspec

from scorer.errors import ErrorCode, RowError, UsageError
from scorer.prompts.frames import Frame
from scorer.prompts.labels import LabelSet, check_distinct
from scorer.prompts.options import strings
from scorer.prompts.templates import (
    ChatTemplate,
    LetteredOption,
    QuestionTemplate,
    default_question_template,
    thinking_is_open,
)
from scorer.prompts.tokenizer import Tokenizer
from scorer.records.record import Message, Record


class Draft(msgspec.Struct, frozen=True):
    """A rendered prompt whose texts have yet to be encoded.

    ``pieces``: plain text and added tokens in turn, plain first and last. None when the record
    brought its token ids.
    """

    text: str
    pieces: tuple[str, ...] | None
    moved: str
    matches: int
    warnings: tuple[str, ...]


class Renderer:
    """Renders records for one model; what the user wrote stays plain text.

    Raises ``UsageError`` for a question template or system text that can't be used. The chat
    template is loaded when the first chat record turns up: files of raw prompts need none.
    """

    def __init__(
        self,
        directory: Path,
        tokenizer: Tokenizer,
        *,
        system: str | None,
        question_template: str | None,
        parse_special: bool,
        labels: LabelSet,
    ) -> None:
        if system is not None:
            _check_system(system)
        self.system = system
        if question_template is None:
            question_template = default_question_template(labels.noun)
        self.question = QuestionTemplate(question_template)
        self.labels = labels
        self._of_questions: tuple[str, ...] = ()
        if not self.question.uses_options and labels.noun != "label":  # words speak for themselves
            unsaid = f"the prompt does not say what its {labels.noun}s stand for"
            self._of_questions = (f"the question template does not use options: {unsaid}",)
        self._directory = directory
        self._tokenizer = tokenizer
        self._parse_special = parse_special
        self._frames: dict[tuple[str, ...], Frame | None] = {}
        self._lettered = lru_cache(maxsize=256)(self._letter)

    @cached_property
    def chat(self) -> ChatTemplate:
        """The model's chat template. Raises ``ModelError`` if missing or refused."""
        return ChatTemplate(self._directory)

    def draft(self, record: Record) -> Draft:
        """The record's prompt as text. Raises ``RowError``, and ``ModelError`` as ``chat``."""
        if record.prompt is not None:
            return self._draft_prompt(record.prompt, has_options=bool(record.options))
        if record.prompt_token_ids is not None:
            return self._draft_ids(record.prompt_token_ids)
        if record.messages is not None:
            return self._draft_messages(record.messages)
        question = Message("user", self._question_text(record))
        return self._draft_messages((question,), self._of_questions)

    def _draft_prompt(self, prompt: str, *, has_options: bool) -> Draft:
        warnings = ["--system has no effect on a raw prompt"] if self.system is not None else []
        text = prompt.rstrip(" ") if has_options else prompt
        if moved := len(prompt) - len(text):
            spaces = "a space, which goes" if moved == 1 else f"{moved} spaces, which go"
            warnings.append(
                f"the prompt ends in {spaces} with its options: whatever is asked of this record, "
                "targets and logprobs too, is read behind the prompt without"
                + (" it" if moved == 1 else " them")
            )
        matches = self._tokenizer.added_text.count(text)
        if self._parse_special:
            pieces = tuple(self._tokenizer.added_text.split(text))
        else:
            pieces = (text,)
            if matches:
                warnings.append(
                    f"{strings(matches)} in the prompt, read as ordinary text (--parse-special "
                    "makes them tokens)"
                )
        return Draft(text, pieces, prompt[len(text) :], matches, tuple(warnings))

    def _draft_ids(self, ids: Sequence[int]) -> Draft:
        n_ids = self._tokenizer.n_ids
        for place, token_id in enumerate(ids):
            if not 0 <= token_id < n_ids:
                raise RowError(
                    ErrorCode.TOKEN_OUT_OF_RANGE,
                    f"prompt_token_ids[{place}] is {token_id}, but ids are 0 to {n_ids - 1}: use "
                    "the ids of this model's tokenizer",
                )
        warnings = ("--system has no effect on token ids",) if self.system is not None else ()
        return Draft(self._tokenizer.decode(ids), None, "", 0, warnings)

    def _draft_messages(
        self, messages: Sequence[Message], known_warnings: tuple[str, ...] = ()
    ) -> Draft:
        warnings = list(known_warnings)
        if messages[-1].role == "assistant":
            raise RowError(
                ErrorCode.INVALID_VALUE,
                "the last message is the assistant's, and the answer is read after it: remove it, "
                "or make its text the options",
            )
        if self.system is not None:
            if messages[0].role == "system":
                warnings.append("the record's own system message is used, not --system")
            else:
                messages = (Message("system", self.system), *messages)
        contents = [message.content for message in messages]
        roles = tuple([message.role for message in messages])
        added_text = self._tokenizer.added_text
        if not any(map(added_text.may_be_in, contents)):
            frame = self._frame(roles)
            pieces = None if frame is None else frame.fill(contents)
            if pieces is not None:
                return Draft("".join(pieces), tuple(pieces), "", 0, tuple(warnings))
        guarded, marker = added_text.guard(contents, self.chat.source)
        pieces = added_text.split(self.chat.render(roles, guarded))
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
            warnings.append(f"{strings(matches)} in the messages, read as ordinary text")
        return Draft(text, tuple(pieces), "", matches, tuple(warnings))

    def _frame(self, roles: tuple[str, ...]) -> Frame | None:
        """The frame of the skeleton for these roles, unless it ends inside a thought."""
        skeleton = self.chat.skeleton(roles)
        if skeleton is None:
            return None
        if roles not in self._frames:
            frame = Frame.of(skeleton, self._tokenizer.added_text)
            if frame is not None and thinking_is_open("".join(frame.pieces[1::2])):
                frame = None
            self._frames[roles] = frame
        return self._frames[roles]

    def _question_text(self, record: Record) -> str:
        if record.question is None or not record.options:
            raise RowError(ErrorCode.NO_PROMPT, "a question needs its options: add them")
        options = self._lettered(record.options)
        return self.question.render(record.question, state_text(record.state), options)

    def _letter(self, texts: tuple[str, ...]) -> tuple[LetteredOption, ...]:
        """A question's options with their labels."""
        labels = self.labels.texts
        if len(texts) > len(labels):
            raise RowError(
                ErrorCode.TOO_MANY_OPTIONS,
                f"a question has at most {len(labels)} options, one a {self.labels.noun}, got "
                f"{len(texts)}: ask in parts, or give them as continuations of a prompt",
            )
        check_distinct(texts, self._tokenizer.normalise)
        return tuple([LetteredOption(*pair) for pair in zip(labels, texts, strict=False)])


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


def _check_system(system: str) -> None:
    try:
        system.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"--system: not valid Unicode at character {error.start}") from error
