"""Jinja templates: the model's chat template and the text of a lettered question.

Both are rendered in a sandbox and within bounds, and print only what reads the same in every run
(see ``sandbox``). The chat template's environment is that of transformers' ``apply_chat_template``
(same flags, filters and globals), with one more difference: a template that asks for today's date
is refused, because its prompts would change overnight.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scorer.errors import ErrorCode, ModelError, RowError, UsageError
from scorer.prompts.skeleton import Skeleton, skeleton
from scorer.prompts.tokenizer import read_tokenizer_config, special_token_strings

if TYPE_CHECKING:
    import jinja2

    from scorer.prompts.sandbox import Bounded

# What a question and its options look like unless --question-template says otherwise.
# The two newlines before "Answer" are the last option's and an empty line.
DEFAULT_QUESTION_TEMPLATE = """\
{{ question }}

{% if state is not none %}
{{ state }}

{% endif %}
{% for option in options %}
{{ option.label }}. {{ option.text }}
{% endfor %}

Answer with the letter of the correct option only.
"""


def default_question_template(noun: str) -> str:
    """The default template, asking for a ``noun`` ("letter", "number") as the answer."""
    return DEFAULT_QUESTION_TEMPLATE.replace("the letter of", f"the {noun} of")


_SHOWN = 60  # characters of a template that is refused
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_QUESTION_VARIABLES = frozenset({"question", "state", "options"})


@dataclass(frozen=True, slots=True)
class LetteredOption:
    """An option as a question template sees it: ``label`` "A", ``text`` as given."""

    label: str
    text: str


def _environment() -> Bounded:
    from jinja2 import nodes
    from jinja2.exceptions import TemplateError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.runtime import Macro

    from scorer.prompts.sandbox import Bounded

    class Generation(Extension):
        """``{% generation %}``: marks assistant text for training; here its content as it is."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            call = self.call_method("_content")
            return nodes.CallBlock(call, [], [], body).set_lineno(line)

        def _content(self, caller: Macro) -> str:
            return caller()

    def raise_exception(message: str) -> None:
        raise TemplateError(environment.printed(message))

    def strftime_now(_format: str) -> None:
        raise TemplateError(
            "the template asks for today's date: its prompts would change overnight"
        )

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        # Jinja's own filter escapes HTML characters.
        return json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    environment = Bounded(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[Generation, loopcontrols],
        records=(LetteredOption,),
    )
    environment.filters["tojson"] = environment.bounded(tojson, prints=True)
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment


class ChatTemplate:
    """A model's chat template, rendered for an answer without thinking.

    ``source`` is the template's text. Raises ``ModelError`` for a directory without a chat
    template, one that is no Jinja, and one that can't take a single user message.
    """

    def __init__(self, directory: Path) -> None:
        import jinja2

        config = read_tokenizer_config(directory)
        self.source = _chat_template_source(directory, config)
        try:
            self._template = _environment().from_string(self.source)
        except jinja2.TemplateError as error:
            raise ModelError(
                f"{directory}: the chat template is not valid Jinja: {error}"
            ) from error
        self._values = {
            **special_token_strings(config),
            "tools": None,
            "documents": None,
            "add_generation_prompt": True,
            "enable_thinking": False,
        }
        self._skeletons: dict[tuple[str, ...], Skeleton | None] = {
            roles: skeleton(_environment(), self.source, roles, self._values)
            for roles in (("user",), ("system", "user"))
        }
        try:
            probe = self.render(["user"], ["x"])
        except RowError as error:
            raise ModelError(f"{directory}: the chat template can't be used: {error}") from error
        if thinking_is_open(probe):
            raise ModelError(
                f"{directory}: the chat template begins every answer inside <think>, also with "
                "thinking off: the next token is a thought, not a label. Use a model that answers "
                "without thinking (Qwen3 or an Instruct-2507 model), or give a rendered prompt "
                "that closes the block"
            )

    def render(self, roles: Sequence[str], contents: Sequence[str]) -> str:
        """The prompt up to where the answer begins. Raises ``RowError`` (template_error)."""
        known = self.skeleton(tuple(roles))
        text = known.fill(contents) if known else None
        return self.render_with_jinja(roles, contents) if text is None else text

    def skeleton(self, roles: tuple[str, ...]) -> Skeleton | None:
        """The template's fixed text around messages with these roles, where it is known."""
        return self._skeletons.get(roles)

    def render_with_jinja(self, roles: Sequence[str], contents: Sequence[str]) -> str:
        """What ``render`` gives, by the template itself."""
        messages = [
            {"role": role, "content": content}
            for role, content in zip(roles, contents, strict=True)
        ]
        return _render(self._template, {**self._values, "messages": messages})


class QuestionTemplate:
    """The text of a lettered question: the user message it becomes.

    Variables: ``question`` (text), ``state`` (text, or none), ``options`` (each with ``label``
    and ``text``). ``uses_options``: whether it names them. Raises ``UsageError`` for a source that
    is no Jinja, names another variable, or neither ``question`` nor ``state``.
    """

    def __init__(self, source: str) -> None:
        import jinja2
        from jinja2 import meta

        self.source = source
        environment = _environment()
        environment.undefined = jinja2.StrictUndefined
        try:
            names = meta.find_undeclared_variables(environment.parse(source))
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise UsageError(
                f"--question-template: line {error.lineno}: {error.message}: not valid Jinja"
            ) from error
        unknown = names - _QUESTION_VARIABLES - environment.globals.keys()
        if unknown:
            raise UsageError(
                f"--question-template: unknown variable {min(unknown)!r}: a question template has "
                "question, state and options (each with .label and .text)"
            )
        if names.isdisjoint(("question", "state")):
            got = source if len(source) <= _SHOWN else source[:_SHOWN] + "…"
            raise UsageError(
                "--question-template: uses neither question nor state, so that all records would "
                f"have one and the same prompt, got {got!r}: write {{{{ question }}}} where its "
                "text belongs (in Python question_template is the template's text, not its path)"
            )
        self.uses_options = "options" in names

    def render(self, question: str, state: str | None, options: Sequence[LetteredOption]) -> str:
        """The question's text. Raises ``RowError`` (template_error)."""
        if self.source == DEFAULT_QUESTION_TEMPLATE:
            return _default_question(question, state, options)
        return self.render_with_jinja(question, state, options)

    def render_with_jinja(
        self, question: str, state: str | None, options: Sequence[LetteredOption]
    ) -> str:
        """What ``render`` gives, by the template itself."""
        values = {"question": question, "state": state, "options": options}
        return _render(self._template, values)


def _default_question(question: str, state: str | None, options: Sequence[LetteredOption]) -> str:
    """DEFAULT_QUESTION_TEMPLATE, 20 times as fast as Jinja."""
    lines = [f"{option.label}. {option.text}\n" for option in options]
    return (
        f"{question}\n\n"
        + (f"{state}\n\n" if state is not None else "")
        + "".join(lines)
        + "\nAnswer with the letter of the correct option only."
    )


def thinking_is_open(text: str) -> bool:
    """Whether ``text`` ends inside a ``<think>`` block."""
    return text.rfind("<think>") > text.rfind("</think>")


def _render(template: jinja2.Template, values: dict[str, Any]) -> str:
    try:
        text: str = template.environment.render(template, values, _characters(values))  # type: ignore[attr-defined]
    except Exception as error:  # a template may raise anything; it becomes the row's error
        # Python names some objects by their place in memory, which differs from run to run.
        reason = _ADDRESS.sub("", str(error)) or type(error).__name__
        raise RowError(ErrorCode.TEMPLATE_ERROR, f"the template failed: {reason}") from error
    return text


def _characters(value: object) -> int:
    """How many characters the texts of a template's values have."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, LetteredOption):
        return len(value.text)
    if isinstance(value, dict):
        return sum(map(_characters, value.values()))
    return sum(map(_characters, value)) if isinstance(value, list | tuple) else 0


def _chat_template_source(directory: Path, config: dict[str, Any]) -> str:
    path = directory / "chat_template.jinja"
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{path}: can't be read: {error}") from error
    source = config.get("chat_template")
    if isinstance(source, list):
        source = {entry.get("name"): entry.get("template") for entry in source}.get("default")
    if not isinstance(source, str):
        raise ModelError(
            f"{directory}: no chat template (neither chat_template.jinja nor chat_template in "
            "tokenizer_config.json): questions and messages need one; give 'prompt' records, "
            "rendered beforehand, instead"
        )
    return source
