"""The fixed text that a chat template writes around its messages, where that is certain.

Rendering with Jinja takes about as long as encoding. Most rows have the same roles (user, or
system and user) and differ in their texts alone, so the template is run once with *traced*
texts. These can be written out and joined to other text with ``+``; they can be asked whether
they are empty and whether they start with, end with or contain a constant, and the answers are
recorded. Whatever else is done to them raises, as does handing them to a filter, a test or a
function. So what the template did in that run is a function of the recorded answers, and any
texts that give the same answers get the same fixed text around them.

Python and Jinja could look into a traced string behind its back in a few ways (``x in "abc"``,
``"%s" % x``, macros and blocks, which return plain strings). A template whose syntax tree has
one of these is left to Jinja, and so are texts with other answers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Self

if TYPE_CHECKING:
    from jinja2 import nodes
    from jinja2.sandbox import SandboxedEnvironment

_FIRST_STAND_IN = 0x10FF00
# What may be asked of a text, by the name of the method that asks. A template calls the first
# two itself; the others are what `"constant" in text` and `if text` come down to.
_CALLED = ("startswith", "endswith")
_ASKED = (*_CALLED, "__contains__", "__bool__")

_NODES = {"Add", "And", "Assign", "Break", "Call", "Compare", "CondExpr", "Const", "Continue"}
_NODES |= {"Dict", "Filter", "For", "Getattr", "Getitem", "If", "Keyword", "List", "NSRef", "Name"}
_NODES |= {"Neg", "Not", "Operand", "Or", "Output", "Pair", "Slice", "Sub", "Template"}
_NODES |= {"TemplateData", "Test", "Tuple"}
# Tests that see a value's type only, and filters that can't see into a list's texts.
_TESTS = {"boolean", "defined", "false", "mapping", "none", "number", "string", "true", "undefined"}
_FILTERS = {"count", "length"}
_JINJA_NAMED = {"_block_vars", "_loop_vars"}


@dataclass(frozen=True, slots=True)
class Question:
    """What a template asked of text number ``place``, and the answer it got."""

    place: int
    method: str
    argument: tuple[str, ...]
    answer: bool

    def answered_alike(self, text: str) -> bool:
        """Whether ``text`` gives the same answer."""
        if self.method == "__bool__":
            return bool(text) == self.answer
        return bool(getattr(text, self.method)(*self.argument)) == self.answer


@dataclass(frozen=True, slots=True)
class Skeleton:
    """``literals[0] text[order[0]] literals[1] text[order[1]] … literals[-1]``."""

    literals: tuple[str, ...]
    order: tuple[int, ...]
    questions: tuple[Question, ...]

    def fill(self, texts: Sequence[str]) -> str | None:
        """The prompt with these texts; None if the template would treat them differently."""
        for question in self.questions:
            if not question.answered_alike(texts[question.place]):
                return None
        return filled(self.literals, self.order, texts)


def filled(literals: Sequence[str], order: Iterable[int], texts: Sequence[str]) -> str:
    """``literals[0] texts[order[0]] literals[1] texts[order[1]] … literals[-1]``."""
    parts = [literals[0]]
    for place, literal in zip(order, literals[1:], strict=True):
        parts += texts[place], literal
    return "".join(parts)


def skeleton(
    environment: SandboxedEnvironment, source: str, roles: Sequence[str], values: Mapping[str, Any]
) -> Skeleton | None:
    """The skeleton of ``source`` for messages with these roles, or None if there is none.

    ``environment``: one for this use alone, it is altered. ``values``: what else the template is
    rendered with.
    """
    if not _is_traceable(environment, source):
        return None
    trace = _Trace()
    _watch(environment, trace)
    stand_ins = [chr(_FIRST_STAND_IN + place) for place in range(len(roles))]
    if not set(source).isdisjoint(stand_ins):
        return None
    messages = [
        {"role": role, "content": _Traced(stand_in, trace, place)}
        for place, (role, stand_in) in enumerate(zip(roles, stand_ins, strict=True))
    ]
    try:
        text = environment.from_string(source).render({**values, "messages": messages})
    except Exception:  # noqa: BLE001  (a template may raise anything; Jinja will say so)
        return None
    if trace.failed:
        return None
    parts = re.split(f"([{''.join(stand_ins)}])", text)
    order = tuple(ord(stand_in) - _FIRST_STAND_IN for stand_in in parts[1::2])
    return Skeleton(tuple(parts[::2]), order, tuple(dict.fromkeys(trace.questions)))


class _UntraceableError(Exception):
    """The template did to a text what can't be traced."""


class _Trace:
    """The questions of one run. ``failed`` stays set even if the template's code caught it."""

    def __init__(self) -> None:
        self.failed = False
        self.questions: list[Question] = []

    def fail(self) -> NoReturn:
        self.failed = True
        raise _UntraceableError


class _Traced(str):
    """Text number ``place``, or (None) text that it was joined into."""

    __slots__ = ("place", "trace")
    place: int | None
    trace: _Trace

    def __new__(cls, value: str, trace: _Trace, place: int | None) -> Self:
        self = super().__new__(cls, value)
        self.trace = trace
        self.place = place
        return self

    def __str__(self) -> str:
        return str.__str__(self)

    def __add__(self, other: object) -> _Traced:
        if not isinstance(other, str):
            self.trace.fail()
        return _Traced(str.__add__(self, other), self.trace, None)

    def __radd__(self, other: object) -> _Traced:
        if not isinstance(other, str):
            self.trace.fail()
        return _Traced(str.__add__(other, self), self.trace, None)


def _asking(method: str) -> Callable[..., bool]:
    def ask(self: _Traced, *argument: object) -> bool:
        texts = tuple(text for text in argument if type(text) is str)
        if self.place is None or len(texts) != len(argument):
            self.trace.fail()
        # Not empty, and without any of the constants that templates look for.
        answer = method == "__bool__"
        self.trace.questions.append(Question(self.place, method, texts, answer))
        return answer

    return ask


def _refuse(self: _Traced, *_arguments: object, **_named: object) -> NoReturn:
    self.trace.fail()


_PLAIN = {"__add__", "__class__", "__delattr__", "__doc__", "__getattribute__", "__init__"}
_PLAIN |= {"__init_subclass__", "__new__", "__setattr__", "__str__", "__subclasshook__"}
for _name in {*dir(str), "__bool__"} - _PLAIN:
    setattr(_Traced, _name, _asking(_name) if _name in _ASKED else _refuse)


def _is_traceable(environment: SandboxedEnvironment, source: str) -> bool:
    from jinja2 import nodes

    pending: list[nodes.Node] = [environment.parse(source)]
    while pending:
        node = pending.pop()
        if type(node).__name__ not in _NODES:
            return False
        # `text in "abc"` is answered by "abc", without asking the text; a tuple asks it.
        if isinstance(node, nodes.Compare) and not _asks_its_right_side(node):
            return False
        pending += node.iter_child_nodes()
    return True


def _asks_its_right_side(node: nodes.Compare) -> bool:
    from jinja2 import nodes

    membership = any(operand.op in ("in", "notin") for operand in node.ops)
    if not membership or len(node.ops) != 1:
        return not membership
    listed = isinstance(node.ops[0].expr, nodes.Tuple | nodes.List)
    return listed or isinstance(node.expr, nodes.Const)


def _watch(environment: SandboxedEnvironment, trace: _Trace) -> None:
    """Let no traced text into code that could look at it unseen."""
    real_getattr, real_getitem = environment.getattr, environment.getitem
    real_call = environment.call

    def refuse(*_arguments: object, **_named: object) -> NoReturn:
        trace.fail()

    def watched_getattr(obj: Any, attribute: str) -> Any:
        if isinstance(obj, _Traced) and attribute not in _CALLED:
            trace.fail()
        return real_getattr(obj, attribute)

    def watched_getitem(obj: Any, argument: Any) -> Any:
        if isinstance(obj, _Traced) or isinstance(argument, _Traced):
            trace.fail()
        return real_getitem(obj, argument)

    def watched_call(context: Any, function: Any, *arguments: Any, **named: Any) -> Any:
        # Jinja's own two are for functions that take the context; of the globals none does.
        given = [value for name, value in named.items() if name not in _JINJA_NAMED]
        if not all(map(_holds_no_text, (*arguments, *given))):
            trace.fail()
        return real_call(context, function, *arguments, **named)

    environment.getattr = watched_getattr  # type: ignore[method-assign]
    environment.getitem = watched_getitem  # type: ignore[method-assign]
    environment.call = watched_call  # type: ignore[method-assign]
    for known, harmless in ((environment.filters, _FILTERS), (environment.tests, _TESTS)):
        for name in known.keys() - harmless:
            known[name] = refuse


def _holds_no_text(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_holds_no_text, value))
    return type(value) in (str, int, float, bool, type(None))
