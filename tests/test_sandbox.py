"""Templates that nobody vouches for end soon and small, or are what plain Jinja makes of them."""

from __future__ import annotations

import resource
import time
from typing import Any

import jinja2
import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from scorer.prompts.sandbox import Bounded

HOSTILE = [
    # time
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) if range(99999)|sum %}{% endfor %}",
    "{% for a in range(99999) %}{% set x = range(99999)|list %}{% endfor %}",
    "{% macro f(n) %}{{ f(n - 1) ~ f(n - 1) if n else '' }}{% endmacro %}{{ f(60) }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{{ range(99999)|map('string')|map('upper')|map('lower')|map('title')|map('trim')|list }}",
    "{% for a in [1] recursive %}{{ loop([1, 1]) }}{% endfor %}",
    "{{ 9 ** 9 ** 9 ** 9 }}",
    "{% set n = namespace(x=3) %}{% for i in range(40) %}{% set n.x = n.x * n.x %}{% endfor %}",
    # size
    "{{ 'a' * 10 ** 10 }}",
    "{{ 10 ** 10 * 'a' }}",
    "{{ [0] * 10 ** 10 }}",
    "{% set n = namespace(x='ab') %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "{% set n = namespace(x='ab') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
    (
        "{% set n = namespace(x='ab') %}{% for i in range(60) %}"
        "{% set n.x = n.x.replace('', n.x) %}{% endfor %}"
    ),
    (
        "{% set n = namespace(x='ab') %}{% for i in range(60) %}{% set n.x = [n.x, n.x]|join %}"
        "{% endfor %}"
    ),
    (
        "{% set n = namespace(x='ab') %}{% for i in range(60) %}"
        "{% set n.x %}{{ n.x }}{{ n.x }}{% endset %}{% endfor %}"
    ),
    "{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}",
    "{{ 'a'.ljust(10 ** 10) }}",
    "{{ 'a'|center(10 ** 10) }}",
    "{{ 'a'|indent(10 ** 10) }}",
    "{{ '%10000000000d' % 1 }}",
    "{{ '%*d' % (10 ** 10, 1) }}",
    "{{ '%*d'|format(10 ** 10, 1) }}",
    "{{ '%10000000000d'|format(1) }}",
    "{{ '{:10000000000}'.format(1) }}",
    "{{ '{x:10000000000}'.format_map({'x': 1}) }}",
    "{{ '{:{}}'.format(1, 10 ** 10) }}",
    "{{ {'a': 1}|tojson(indent=10 ** 10) }}",
    # chance, and a way out
    "{{ range(9)|random }}",
    "{{ lipsum(n=10 ** 6) }}",
    "{{ ''.__class__.__mro__ }}",
    "{{ cycler.__init__.__globals__ }}",
    "{% include '/etc/passwd' %}",
]


@pytest.mark.parametrize("source", HOSTILE)
def test_a_hostile_template_ends_soon_and_small(source: str) -> None:
    environment = Bounded()
    began = time.process_time()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    with pytest.raises((jinja2.TemplateError, RecursionError, OverflowError, TypeError)):
        environment.render(environment.from_string(source), {}, 0)

    assert time.process_time() - began < 40
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 500_000  # kB


def test_the_bounds_grow_with_the_texts() -> None:
    environment = Bounded()
    template = environment.from_string(
        "{% for c in text %}{% for d in 'abcdef' %}{{ c ~ d }}{% endfor %}{% endfor %}"
    )
    text = "long " * 8_000
    assert len(environment.render(template, {"text": text}, len(text))) == 12 * len(text)
    with pytest.raises(jinja2.TemplateError, match="steps than any prompt needs"):
        environment.render(template, {"text": text}, 0)


def test_a_refusal_does_not_depend_on_what_was_rendered_before() -> None:
    environment = Bounded()
    template = environment.from_string("{% for a in range(50000) %}{{ a }}{% endfor %}")
    first = environment.render(template, {}, 0)
    for _ in range(5):
        assert environment.render(template, {}, 0) == first


MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "<b>é</b> [x] {{ y }}\n"},
]


@pytest.mark.parametrize(
    "source",
    [
        (
            "{% for m in messages %}{{ loop.index0 ~ ':' ~ m.role ~ '\\n' + m['content']|trim }}"
            "{% if not loop.last %}{{ ', ' }}{% endif %}{% endfor %}"
        ),
        "{{ messages[::-1]|map(attribute='content')|join(' | ') }}",
        (
            "{% for m in messages if m.role == 'user' %}{{ loop.length }}{{ m.content }}"
            "{% else %}none{% endfor %}"
        ),
        (
            "{% set ns = namespace(last=none) %}{% for m in messages %}"
            "{% set ns.last = m.content %}{% endfor %}{{ ns.last.split('</b>')[-1].lstrip('\\n') }}"
        ),
        (
            "{% macro show(x) %}<{{ x }}>{{ caller() if caller }}{% endmacro %}"
            "{% call show('a') %}b{% endcall %}{{ show(1 + 2 * 3 % 4) }}"
        ),
        "{{ 'a,b'.split(',')|list }}{{ '%s-%5.2f' % ('x', 1.5) }}{{ 2 ** 10 }}{{ 7 // 2 }}",
        "{% filter upper %}{{ messages[0].content }}{% endfilter %}{{ messages|length }}",
        "{% set x %}{{ messages[0].content ~ 1 }}{% endset %}{{ x|replace('B', 'b') }}",
        "{{ messages|selectattr('role', 'equalto', 'user')|list|first }}",
    ],
)
def test_other_templates_give_what_jinja_gives(source: str) -> None:
    values: dict[str, Any] = {"messages": MESSAGES}
    environment = Bounded()
    plain = ImmutableSandboxedEnvironment().from_string(source).render(values)
    assert environment.render(environment.from_string(source), values, 100) == plain
    assert plain
