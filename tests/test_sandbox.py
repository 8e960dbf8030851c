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
    (
        "{% set n = namespace(x='ab') %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}"
        "{% endfor %}{{ n.x }}"
    ),
    "{{ ['x' * 10 ** 6] * 10 ** 6 }}",
    "{{ '%10000000000d'.encode() % 1 }}",
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


# Each would put a place in memory, or an order that changes from process to process, into the text.
UNPRINTABLE = [
    "{{ text.upper }}",
    "{{ {'a': [text.upper]} }}",
    "{{ {text.upper: 1} }}",
    "{{ items|map('upper') }}",
    "{{ items|map(attribute='x') }}",
    "{{ items|select }}",
    "{{ items|batch(2) }}",
    "{{ items|unique ~ 'x' }}",
    "{{ 'x' ~ text.upper }}",
    "{{ joiner(',') }}",
    "{{ cycler('a', 'b') }}",
    "{{ namespace }}",
    "{{ self }}",
    "{% for x in items %}{{ loop }}{% endfor %}",
    "{% macro m() %}{% endmacro %}{{ m }}",
    "{% set x %}{{ text.upper }}{% endset %}{{ x }}",
    "{{ text.upper|string }}",
    "{{ text.upper|upper }}",
    "{{ [text.upper]|map('string')|list }}",
    "{{ [text.upper]|join }}",
    "{{ [text]|join(attribute='upper') }}",
    "{{ items|join(text.upper) }}",
    "{{ [items|select]|list|join(',') }}",
    "{{ text|replace('e', text.upper) }}",
    "{{ text.upper|safe }}",
    "{{ (text|safe).replace('e', text.upper) }}",
    "{{ (text|safe).join([text.upper]) }}",
    "{{ (text|safe).escape(text.upper) }}",
    "{{ '%s' % text.upper }}",
    "{{ '%s %s' % (1, text.upper) }}",
    "{{ '%(a)s' % {'a': text.upper} }}",
    "{{ ('%s'|safe) % text.upper }}",
    "{{ ('%r'.encode() % text.upper).decode() }}",
    "{{ '%s'|format(text.upper) }}",
    "{{ '{}'.format(text.upper) }}",
    "{{ '{0.upper}'.format(text) }}",
    "{{ '{0.upper!r:>30}'.format(text) }}",
    "{{ '{a.upper}'.format_map({'a': text}) }}",
    "{{ ('{0.upper}'|safe).format(text) }}",
    "{{ {'a': 1, 'b': 2}.keys() - ['a'] }}",
    "{{ ({'a': 1, 'b': 2}.keys() - ['c'])|list }}",
    "{% for x in {'a': 1}.items() - [] %}{{ x }}{% endfor %}",
    "{% autoescape true %}{{ 'a'.upper }}{{ [text.upper]|join(',') }}{% endautoescape %}",
    "{% autoescape true %}{{ text.upper ~ 'x' }}{% endautoescape %}",
]


@pytest.mark.parametrize("source", UNPRINTABLE)
def test_what_differs_from_run_to_run_is_not_printed(source: str) -> None:
    environment = Bounded()
    values = {"text": "hello", "items": ["a", "b", "c"]}
    with pytest.raises(jinja2.TemplateRuntimeError, match=r"in each run|in every run") as caught:
        environment.render(environment.from_string(source), values, 0)
    assert " at 0x" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "got"),
    [
        ("{{ text.upper }}", r"got a function, upper: call it, with \(\) behind its name"),
        ("{{ items|select }}", r"got a generator: make a list or a text of it, with \|list or"),
        ("{{ joiner(',') }}", r"got a Joiner: call it"),
        ("{{ cycler('a') }}", r"got a Cycler: print a value of it"),
        ("{{ {}.keys() - [] }}", r"makes a set, .*: use \|list and \|reject"),
    ],
)
def test_what_is_not_printed_is_named_with_a_remedy(source: str, got: str) -> None:
    environment = Bounded()
    with pytest.raises(jinja2.TemplateRuntimeError, match=got):
        environment.render(environment.from_string(source), {"text": "x", "items": []}, 0)


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
        "{{ 1234567|tojson }} {{ 1234567|string }}",  # what is filtered is no width
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
        "{{ [1, 2.5, none, true, 'é', (1, 'a'), {'a': [none]}] }}{{ 3 - 1 }}{{ 3 - 0.5 }}",
        "{{ missing }}{{ missing|upper }}{{ [missing] }}{{ 'a' ~ missing ~ 1 ~ none }}",
        "{{ messages|map(attribute='role')|list }}{{ messages|join('|', attribute='role') }}",
        "{{ ', '.join(messages|map(attribute='role')) }}{{ ('<'|e).join(['>', 1]) }}",
        "{{ messages|groupby('role') }}{{ messages|batch(1)|list }}{{ messages|reverse|list }}",
        "{{ '{0} {a[role]} {0!r:>9}'.format(1, a=messages[0]) }}{{ '{a}'.format_map({'a': 2}) }}",
        "{{ ('<{}>'|safe).format('<') }}{{ '%s %r' % ('a', ['b']) }}{{ '%d'|format(3) }}",
        "{% set j = joiner(',') %}{{ j() }}{{ j() }}{% set c = cycler(1, 2) %}{{ c.next() }}",
        "{% autoescape true %}{{ '<' }}{{ messages[1].content ~ '<' }}{% endautoescape %}",
    ],
)
def test_other_templates_give_what_jinja_gives(source: str) -> None:
    values: dict[str, Any] = {"messages": MESSAGES}
    environment = Bounded()
    plain = ImmutableSandboxedEnvironment().from_string(source).render(values)
    assert environment.render(environment.from_string(source), values, 100) == plain
    assert plain
