"""The exception tree.

::

    ScorerError
    ├── UsageError      an option or a combination of options that can't work
    ├── InputError      an input file that can't be used at all (duplicate ids, unreadable)
    ├── ModelError      a checkpoint or tokenizer that is refused, by name
    ├── IsolationError  the self-test saw bits move: packed reads can't be trusted here
    ├── DeviceError     the accelerator failed while scoring
    ├── WorkerError     a process that did part of the host's work died
    ├── InterruptError  a signal asked the job to stop (TerminateError: SIGTERM)
    ├── StopAtError     --on-error stop met a record that can't be scored
    └── RowError        one record can't be scored; the others are unaffected

Every message names the rule, the value got and what to do. Errors are raised where
the rule lives and caught once, in the command line.
"""

from __future__ import annotations

import signal
from enum import StrEnum
from typing import ClassVar


class ScorerError(Exception):
    """Base of every error that scorer raises on purpose; ``exit_code`` is the process's."""

    exit_code: ClassVar[int] = 2


class UsageError(ScorerError):
    """An option, or a combination of options, that can't work."""


class InputError(ScorerError):
    """An input file that can't be used at all."""


class ModelError(ScorerError):
    """A checkpoint, tokenizer or chat template that is refused."""


class IsolationError(ScorerError):
    """The self-test found that a read's bits depend on its partners on this machine."""

    exit_code: ClassVar[int] = 1


class DeviceError(ScorerError):
    """The accelerator failed (out of memory, a CUDA error) while scoring."""

    exit_code: ClassVar[int] = 4


class WorkerError(ScorerError):
    """A process that did part of the host's work died while scoring."""

    exit_code: ClassVar[int] = 4


class InterruptError(ScorerError):
    """SIGINT or, the subclass, SIGTERM asked the job to stop."""

    exit_code: ClassVar[int] = 128 + signal.SIGINT


class TerminateError(InterruptError):
    """SIGTERM asked the job to stop."""

    exit_code: ClassVar[int] = 128 + signal.SIGTERM


class StopAtError(ScorerError):
    """A record can't be scored, and ``--on-error stop`` says that none shall follow it."""

    exit_code: ClassVar[int] = 1


class ErrorCode(StrEnum):
    """The stable ``error.code`` of a row that could not be scored."""

    # the line
    INVALID_UTF8 = "invalid_utf8"
    INVALID_JSON = "invalid_json"
    NOT_AN_OBJECT = "not_an_object"
    LINE_TOO_LONG = "line_too_long"
    # the record
    UNKNOWN_KEY = "unknown_key"
    WRONG_TYPE = "wrong_type"
    INVALID_VALUE = "invalid_value"
    LONE_SURROGATE = "lone_surrogate"
    NO_PROMPT = "no_prompt"
    CONFLICTING_PROMPTS = "conflicting_prompts"
    UNKNOWN_LABEL = "unknown_label"
    LOGPROBS_LIMIT = "logprobs_limit"
    # the prompt
    EMPTY_PROMPT = "empty_prompt"
    EMPTY_OPTION = "empty_option"
    EQUAL_OPTIONS = "equal_options"
    TOO_MANY_OPTIONS = "too_many_options"
    PROMPT_TOO_LONG = "prompt_too_long"
    TOKEN_OUT_OF_RANGE = "token_out_of_range"
    TARGET_NOT_ONE_TOKEN = "target_not_one_token"
    LABEL_NOT_ONE_TOKEN = "label_not_one_token"
    LABEL_MERGES = "label_merges"
    THINKING_TEMPLATE = "thinking_template"
    TEMPLATE_ERROR = "template_error"
    # the read
    NONFINITE_LOGITS = "nonfinite_logits"
    ZERO_PROBABILITY = "zero_probability"


class RowError(ScorerError):
    """One record can't be scored.

    ``code`` is stable and meant for programs, ``str(error)`` is for people.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
