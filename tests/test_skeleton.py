"""A skeleton gives exactly what Jinja gives, or there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scorer.prompts.skeleton import Question
from scorer.prompts.templates import ChatTemplate
from tests.tiny_tokenizer import CHAT, write_tokenizer

# Texts near what templates look for, the stand-ins of a trace among them.
SHARP = ["", " ", "\n", "<think>", "</think>", "<tool_response>", "</tool_response>", "append", "a"]
SHARP += ["\U0010ff00", "\U0010ff01", "a\nb", "0", "éx", "{0}"]
texts = st.lists(st.sampled_from(SHARP) | st.text(max_size=5), max_size=4).map("".join)

TRACEABLE = [
    CHAT,
    "{{ messages[0].content }}{{ messages[-1].content + '!' }}",
    "{% if messages[0]['content'] %}{{ messages[0]['content'] }}{% else %}empty{% endif %}",
    "{% if 'a' in messages[0].content %}has a{% endif %}{{ messages[0].content }}",
    "{% if not messages[0].content.startswith('<think>') %}x{% endif %}",
    """{% set ns = namespace(x='') %}{% for m in messages %}{% set ns.x = ns.x + m.content %}
    {% endfor %}{{ ns.x }}""",
    "{{ messages[0].content if messages | length == 1 else messages[1].content }}",
    "{% if messages[0].content is string %}{{ messages[0].content }}{% endif %}",
    """{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% break %}{% endif %}
    {% endfor %}""",
    """{% for m in messages %}{% if m.role in ('user', 'x') and m.role not in ['system'] %}
    {{ m.content }}{% endif %}{% endfor %}""",
    "no text at all",
]

UNTRACEABLE = [
    "{{ messages[0].content | trim }}",
    "{{ messages[0].content.strip() }}",
    "{{ messages[0].content[0:1] }}",
    "{{ messages[0].content[0] }}",
    "{{ messages[0].content | length }}",
    "{{ messages[0].content ~ 'x' }}",
    "{{ '%s' % messages[0].content }}",
    "{{ '%.1s' | format(messages[0].content) }}",
    "{{ 'abc'.find(messages[0].content) }}",
    "{{ '{}'.format(messages[0].content) }}",
    "{{ messages[0].content.format('z') }}",
    "{{ messages[0].content.place }}",
    "{{ ''.join([messages[0].content]) }}",
    "{{ messages[0].content.join(['a', 'b']) }}",
    "{{ messages[0].content in 'append a' }}",
    "{{ 'a' in messages[0].content in ['x'] }}",
    "{{ messages[0].content in ['x', 'a'] }}",
    "{{ messages[0].content not in ('x', 'a') }}",
    "{{ messages[0].content == 'a' }}",
    "{{ 'a' != messages[0].content }}",
    "{{ messages[0].content < 'b' }}",
    "{{ 'a' in [messages[0].content] }}",
    "{{ {'a': 1}[messages[0].content] }}",
    "{{ [1][messages[0].content] is defined }}",
    "{{ messages | tojson }}",
    "{{ messages[0] }}",
    "{{ messages | map(attribute='content') | join }}",
    "{{ messages[0].content is sequence }}",
    "{{ messages[0].content is upper }}",
    "{% for c in messages[0].content %}{{ c }},{% endfor %}",
    "{% macro m(x) %}{{ x }}{% endmacro %}{{ m(messages[0].content) | trim }}",
    "{% set x %}{{ messages[0].content }}{% endset %}{{ x.strip() }}",
    "{% filter upper %}{{ messages[0].content }}{% endfilter %}",
    "{% for m in messages %}{{ loop.changed(m.content) }}{% endfor %}",
    "{% if (messages[0].content + 'x') is string %}{{ (messages[0].content + 'x')[0] }}{% endif %}",
    "{% if messages[0].content + '' %}x{% endif %}",
    "{{ messages[0].content * 2 }}",
    "{{ messages[0].content.startswith(('a', 'b')) }}",
    "{{ messages[0].content.startswith('a', 1) }}",
    "{{ messages[0].content.endswith(messages[0].content) }}",
    "{{ namespace(x=messages[0].content).x }}",
    "{{ '\U0010ff00' }}",
    "{% generation %}{{ messages[0].content }}{% endgeneration %}",
]

SHAPES = [("user",), ("system", "user")]


def chat(folder: Path, template: str) -> ChatTemplate:
    return ChatTemplate(write_tokenizer(folder, chat_template=template))


def check(template: ChatTemplate, shape: tuple[str, ...], contents: list[str]) -> None:
    contents = contents[: len(shape)]
    assert template.render(shape, contents) == template.render_with_jinja(shape, contents)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("source", TRACEABLE)
def test_a_traced_template_gives_what_jinja_gives(
    tmp_path_factory: pytest.TempPathFactory, source: str, shape: tuple[str, ...]
) -> None:
    template = chat(tmp_path_factory.mktemp("chat"), source)
    assert template.skeleton(shape) is not None

    @settings(deadline=None)
    @given(st.lists(texts, min_size=2, max_size=2))
    def equal(contents: list[str]) -> None:
        check(template, shape, contents)

    equal()


@pytest.mark.parametrize("source", UNTRACEABLE)
def test_a_template_that_looks_into_its_texts_is_left_to_jinja(tmp_path: Path, source: str) -> None:
    template = chat(tmp_path, source)
    assert template.skeleton(("user",)) is None
    for text in SHARP:
        check(template, ("user",), [text])


@pytest.fixture(scope="module")
def qwen3(qwen3_tokenizer: Path) -> ChatTemplate:
    return ChatTemplate(qwen3_tokenizer)


@settings(deadline=None)
@given(st.lists(texts, min_size=2, max_size=2))
def test_qwen3_is_traced_and_gives_what_jinja_gives(
    qwen3: ChatTemplate, contents: list[str]
) -> None:
    for shape in SHAPES:
        check(qwen3, shape, contents)


def test_the_bundled_model_is_traced(demo_model: Path) -> None:
    template = ChatTemplate(demo_model)
    for shape in SHAPES:
        assert template.skeleton(shape) is not None
        check(template, shape, ["Be brief.", "x"])


def test_qwen3_asks_one_question(qwen3: ChatTemplate) -> None:
    known = qwen3.skeleton(("user",))
    assert known is not None
    assert known.questions == (Question(0, "startswith", ("<tool_response>",), False),)
    assert known.fill(["<tool_response>x"]) is None
    assert known.fill(["x"]) == (
        "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
