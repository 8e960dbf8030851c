from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorer.errors import ErrorCode, ModelError, RowError, UsageError
from scorer.prompts.templates import (
    DEFAULT_QUESTION_TEMPLATE,
    ChatTemplate,
    LetteredOption,
    QuestionTemplate,
    thinking_is_open,
)
from tests.tiny_tokenizer import CHAT, write_tokenizer

OPTIONS = (LetteredOption("A", "x"), LetteredOption("B", "y"))


def chat(folder: Path, template: object, **config: object) -> ChatTemplate:
    return ChatTemplate(write_tokenizer(folder, chat_template=template, config=dict(config)))


# The chat template


def test_qwen3_answers_without_thinking(qwen3_tokenizer: Path) -> None:
    text = ChatTemplate(qwen3_tokenizer).render(["system", "user"], ["S", "U"])
    assert text == (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )


def test_a_file_beside_the_config_wins(tmp_path: Path) -> None:
    folder = write_tokenizer(tmp_path)
    assert ChatTemplate(folder).source == CHAT
    (folder / "chat_template.jinja").write_text("é{{ messages[0].content }}", encoding="utf-8")
    assert ChatTemplate(folder).render(["user"], ["hi"]) == "éhi"
    (folder / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ModelError, match=r"chat_template\.jinja: can't be read"):
        ChatTemplate(folder)


def test_of_several_named_templates_the_default_is_used(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]
    assert chat(tmp_path, named).render(["user"], ["x"]) == "yes"


@pytest.mark.parametrize("template", [None, [], [{"name": "tool_use", "template": "x"}]])
def test_a_model_without_a_chat_template_is_refused(tmp_path: Path, template: object) -> None:
    with pytest.raises(ModelError, match="no chat template"):
        chat(tmp_path, template)


def test_special_tokens_of_the_config_are_variables(tmp_path: Path) -> None:
    template = chat(tmp_path, "{{ eos_token }}|{{ bos_token }}|", eos_token="<|end|>")
    assert template.render(["user"], ["x"]) == "<|end|>||"


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{% if %}", "not valid Jinja"),
        ("{{ raise_exception('no system, no service') }}", "no system, no service"),
        ("{{ strftime_now('%d') }}", "today's date"),
        ("{{ messages[0].content.__class__.__mro__ }}", "unsafe"),
        ("{{ messages[0].content }}<think>\n", "inside <think>"),
        ("{% if enable_thinking is false %}<think></think><think>{% endif %}", "inside <think>"),
    ],
)
def test_a_template_that_can_not_be_used_is_refused(
    tmp_path: Path, template: str, reason: str
) -> None:
    with pytest.raises(ModelError) as caught:
        chat(tmp_path, template)
    assert reason in str(caught.value)


def test_a_conversation_that_the_template_refuses_is_a_row_error(tmp_path: Path) -> None:
    template = chat(
        tmp_path,
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}"
        "{% endif %}{{ m.content }}{% endfor %}",
    )
    assert template.render(["user"], ["x"]) == "x"
    with pytest.raises(RowError, match="no system") as caught:
        template.render(["system", "user"], ["s", "x"])
    assert caught.value.code is ErrorCode.TEMPLATE_ERROR


@pytest.mark.parametrize(
    ("text", "is_open"),
    [("", False), ("<think>", True), ("<think>\n\n</think>\n\n", False), ("</think><think>", True)],
)
def test_thinking_is_open(text: str, is_open: bool) -> None:
    assert thinking_is_open(text) is is_open


# The question template


@given(
    question=st.text(),
    state=st.none() | st.text(),
    texts=st.lists(st.text(), min_size=1, max_size=26),
)
def test_the_default_question_is_its_template(
    question: str, state: str | None, texts: list[str]
) -> None:
    template = QuestionTemplate(DEFAULT_QUESTION_TEMPLATE)
    options = [LetteredOption(chr(65 + place), text) for place, text in enumerate(texts)]
    text = template.render(question, state, options)
    assert text == template.render_with_jinja(question, state, options)
    assert text == (
        f"{question}\n\n"
        + ("" if state is None else f"{state}\n\n")
        + "".join(f"{option.label}. {option.text}\n" for option in options)
        + "\nAnswer with the letter of the correct option only."
    )


def test_text_in_a_question_is_no_template() -> None:
    template = QuestionTemplate("{{ question }}|{{ options[1].label }}{{ options[1].text }}\n")
    assert template.render("{{ state }}{% if %}<&>", "s", OPTIONS) == "{{ state }}{% if %}<&>|By"


def test_a_question_template_may_use_blocks_and_loops() -> None:
    source = (
        "{% set sep = '; ' %}{% for o in options %}\n"
        "{% if state %}{{ state }}{% endif %}{{ o.text }}{{ '' if loop.last else sep }}\n"
        "{% endfor %}{{ options | length }}{{ options | tojson | length > 0 }}"
    )
    with pytest.raises(RowError, match="not JSON serializable"):
        QuestionTemplate(source).render("q", None, OPTIONS)
    assert QuestionTemplate(source.partition("{{ options | tojson")[0]).render(
        "q", None, OPTIONS
    ) == ("x; \ny\n2")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("a\n{% for %}", "line 2"),
        ("{{ question", "line 1"),
        ("{{ questoin }}", "unknown variable 'questoin'"),
        ("{{ question | shout }}", "No filter named 'shout'"),
    ],
)
def test_a_question_template_that_can_not_work_is_a_usage_error(source: str, reason: str) -> None:
    with pytest.raises(UsageError) as caught:
        QuestionTemplate(source)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    "source",
    [
        "my_template.j2",
        "",
        "{% for o in options %}{{ o.text }}{% endfor %}",
        "{% set question = 'Is it?' %}{{ question }}",
        "x" * 500,
    ],
)
def test_a_question_template_without_the_question_is_a_usage_error(source: str) -> None:
    with pytest.raises(UsageError, match="uses neither question nor state") as caught:
        QuestionTemplate(source)
    shown = source if len(source) < 60 else "x" * 60 + "…"
    assert f"got {shown!r}: write {{{{ question }}}} where its text belongs" in str(caught.value)
    assert "the template's text, not its path" in str(caught.value)


@pytest.mark.parametrize(
    ("source", "uses"),
    [("{{ question }}", False), ("{{ state }}{{ options[0].text }}", True)],
)
def test_a_question_template_says_whether_it_uses_the_options(source: str, uses: bool) -> None:
    assert QuestionTemplate(source).uses_options is uses


@pytest.mark.parametrize(
    "source",
    [
        "{{ options[7].text }}",
        "{{ options[0].txet }}",
        "{{ 1 // 0 }}",
        "{{ question.__class__.__mro__ }}",
        "{% for i in range(1000000) %}{{ i }}{% endfor %}",
    ],
)
def test_a_question_template_that_fails_is_a_row_error(source: str) -> None:
    template = QuestionTemplate("{{ question }}" + source)
    with pytest.raises(RowError) as caught:
        template.render("q", None, OPTIONS)
    assert caught.value.code is ErrorCode.TEMPLATE_ERROR


@pytest.mark.parametrize(
    "source",
    [
        "{{ question.upper }}",
        "{{ question }}{{ options|map(attribute='text') }}",
        "{{ question }}{{ {}[question.upper] }}",
        "{{ question }}{{ [1].index(question.upper) }}",
        "{{ raise_exception(question.upper) }}",
        "{{ raise_exception([question.upper]) }}",
        "{{ [question.upper]|tojson }}",
    ],
)
def test_no_place_in_memory_gets_into_a_prompt_or_an_error(source: str) -> None:
    with pytest.raises(RowError) as caught:
        QuestionTemplate(source).render("q", None, OPTIONS)
    assert caught.value.code is ErrorCode.TEMPLATE_ERROR
    assert "0x" not in str(caught.value)


def test_options_can_be_printed_whole() -> None:
    source = "{{ question }} {{ options }} {{ options|map(attribute='text')|join(' or ') }}"
    assert QuestionTemplate(source).render("q", None, OPTIONS) == (
        "q (LetteredOption(label='A', text='x'), LetteredOption(label='B', text='y')) x or y"
    )


def test_a_chat_template_that_prints_a_function_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="got a function, upper: call it"):
        chat(tmp_path, "{% for m in messages %}{{ m.content.upper }}{% endfor %}")


def test_json_is_bounded(tmp_path: Path) -> None:
    for source in ("{{ messages|tojson(indent=10 ** 9) }}", "{{ [['x' * 9999] * 9999]|tojson }}"):
        with pytest.raises(ModelError, match="than any prompt needs"):
            chat(tmp_path, source)


# Against transformers


@pytest.mark.parametrize(
    "template",
    [
        CHAT,
        """{% for m in messages %}
        {% if m.role == 'user' %}
{{ m | tojson }}
        {% endif %}
        {% endfor %}{{ add_generation_prompt }}{{ tools is none }}{{ documents is none }}
        """,
        """{% for m in messages %}{% generation %}{% set x = m.content %}{{ x }}{% endgeneration %}
        {{ x }}{% if loop.last %}{% break %}{% endif %}{% endfor %}{{ enable_thinking }}""",
        "{{ messages | tojson(indent=1) }}{{ eos_token }}{{ pad_token is defined }}",
    ],
)
def test_a_template_renders_as_in_transformers(tmp_path: Path, template: str) -> None:
    from transformers import PreTrainedTokenizerFast

    folder = write_tokenizer(tmp_path, chat_template=template, config={"eos_token": "<|end|>"})
    theirs = PreTrainedTokenizerFast.from_pretrained(folder)
    roles, contents = ["system", "user"], ["<é>&\n", " x "]
    messages = [{"role": r, "content": c} for r, c in zip(roles, contents, strict=True)]
    assert ChatTemplate(folder).render(roles, contents) == theirs.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
    )
    assert json.dumps(ChatTemplate(folder).source) == json.dumps(theirs.chat_template)
