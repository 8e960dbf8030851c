"""Jinja for templates that nobody vouches for: sandboxed, and bounded in steps and in size.

A template that comes with a checkpoint may loop for days or double a text forty times. What a
rendering may do is therefore counted, in steps and characters and never in seconds: the same record
gets the same prompt, or the same error, on a slow machine and on a fast one. A step is a turn of a
loop, a call, or a filter, plus one for every item or character that goes in. Both bounds grow with
the texts that are rendered.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from types import GeneratorType
from typing import Any, Final, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateRuntimeError
from jinja2.filters import do_format, make_attrgetter, sync_do_join
from jinja2.nodes import EvalContext
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import (
    ImmutableSandboxedEnvironment,
    SandboxedEscapeFormatter,
    SandboxedFormatter,
)
from jinja2.visitor import NodeTransformer
from markupsafe import Markup

STEPS: Final = 200_000
SIZE: Final = 2_000_000
_PER_CHARACTER: Final = 16  # steps and characters more, for each character of the texts
_LARGEST_INT: Final = 100_000  # as an argument: a width, a count
_INT_BITS: Final = 256

# Of no use in a prompt: they differ from run to run, or take long for their size.
_LEFT_OUT: Final = ("pprint", "random", "urlize", "wordwrap", "xmlattr")
_SIZED: Final = (str, bytes, list, tuple, dict, range)
_PRINTED: Final = frozenset((str, int, float, bool, type(None), Markup))
# Filters that hand on what they are given; the others make text of it.
_HAND_ON = {"attr", "batch", "count", "d", "default", "dictsort", "first", "groupby"}
_HAND_ON |= {"items", "join", "last", "length", "list", "map", "max", "min", "reject", "rejectattr"}
_HAND_ON |= {"reverse", "select", "selectattr", "slice", "sort", "sum", "unique"}
_WIDE: Final = re.compile(r"[0-9]{6}|%[^a-zA-Z%]*\*")


class _Budget(threading.local):
    """What is left of the bounds in this thread's rendering."""

    steps: int = STEPS
    size: int = SIZE


class _Joined(NodeTransformer):
    def __init__(self, own: Callable[..., nodes.Call]) -> None:
        self._own = own

    def visit_Concat(self, node: nodes.Concat) -> nodes.Call:  # noqa: N802
        self.generic_visit(node)
        return self._own("joined", node.nodes)


class _Fields(SandboxedFormatter):
    """``"…".format``, whose fields become text."""

    def __init__(self, env: Bounded, **named: Any) -> None:
        super().__init__(env, **named)
        self._printed = env.printed

    def format_field(self, value: Any, format_spec: str) -> Any:
        return super().format_field(self._printed(value), format_spec)

    def convert_field(self, value: Any, conversion: Any) -> Any:
        return super().convert_field(self._printed(value) if conversion else value, conversion)


class _MarkupFields(_Fields, SandboxedEscapeFormatter):
    pass


class Bounded(ImmutableSandboxedEnvironment):
    """An environment whose templates are bounded.

    records: classes of values that may be printed besides Jinja's own kinds; what Python prints
    of them must be the same in every run.
    """

    intercepted_binops = frozenset(("+", "-", "*", "**", "%"))

    def __init__(self, *args: Any, records: tuple[type, ...] = (), **named: Any) -> None:
        super().__init__(*args, finalize=self._finalized, **named)
        self.budget = _Budget()
        self._printable = (str, int, float, Undefined, *records)
        self.globals.pop("lipsum", None)
        for name in _LEFT_OUT:
            self.filters.pop(name, None)
        self.filters["join"] = self._join
        for name, function in self.filters.items():
            self.filters[name] = self.bounded(function, prints=name not in _HAND_ON)

    @jinja2.pass_eval_context  # constants are printed at run time too, and counted then
    def _finalized(self, _context: EvalContext, value: Any) -> Any:
        """What ``{{ value }}`` prints."""
        return value if type(value) in _PRINTED else self.printed(value)

    def printed(self, value: Any) -> Any:
        """``value``, if it reads the same in every run. Raises TemplateRuntimeError."""
        items: Iterable[Any]
        if isinstance(value, list | tuple):
            items = value
        elif isinstance(value, dict):
            items = chain(value.keys(), value.values())
        elif value is None or isinstance(value, self._printable):
            return value
        else:
            raise TemplateRuntimeError(_not_printed(value))
        for item in items:
            self.spend(1 + (_length(item) if isinstance(item, str) else 0))
            self.printed(item)
        return value

    @jinja2.pass_eval_context
    def _join(
        self, context: EvalContext, value: Any, d: Any = "", attribute: str | int | None = None
    ) -> str:
        """The filter ``join``."""
        if attribute is not None:
            value = map(make_attrgetter(self, attribute), value)
        return sync_do_join(context, map(self.printed, value), self.printed(d))

    def concat(self, parts: Iterable[str]) -> str:
        """What Jinja joins output, macros and blocks with."""
        pieces, left = [], self.budget.size
        for part in parts:
            left -= _length(part)
            if left < 0:
                self.fail_size()
            pieces.append(part)
        return "".join(pieces)

    def spend(self, steps: int = 1) -> bool:
        """Count steps; true, so that it can stand in a condition."""
        self.budget.steps -= steps
        if self.budget.steps < 0:
            raise SecurityError("the template takes more steps than any prompt needs")
        return True

    def fail_size(self) -> NoReturn:
        """Refuse a text that is too long."""
        raise SecurityError("the template makes a longer text than any prompt needs")

    def joined(self, *values: object) -> str:
        """Stands for ``a ~ b``."""
        return self.concat(map(str, map(self.printed, values)))

    def bounded(self, function: Callable[..., Any], *, prints: bool) -> Callable[..., Any]:
        """A filter that is counted; prints: whether it makes text of what it is given."""

        @functools.wraps(function)
        def counted(*args: Any, **named: Any) -> Any:
            given = [
                value
                for value in args
                if not isinstance(value, Context | EvalContext | jinja2.Environment)
            ]
            if prints:
                for value in (*given, *named.values()):
                    self.printed(value)
            if function is do_format:
                self.check_format(str(args[0]))
            run = functools.partial(function, *args, **named)
            if given and isinstance(given[0], int):  # what is filtered is no width and no count
                given = given[1:]
            return self.counted(run, given, named)

        return counted

    def counted(
        self, function: Callable[[], Any], args: Iterable[Any], named: Mapping[str, Any]
    ) -> Any:
        """The result of a call, if its arguments and it are of a size that a prompt needs."""
        self.spend()
        for value in (*args, *named.values()):
            if isinstance(value, int) and abs(value) > _LARGEST_INT:
                raise SecurityError(f"an argument of {value} is larger than any prompt needs")
            if isinstance(value, _SIZED):
                self.spend(_length(value))
        result = function()
        if isinstance(result, GeneratorType):
            return self.each(result)
        if isinstance(result, _SIZED) and _length(result) > self.budget.size:
            self.fail_size()
        return result

    def each(self, items: Iterator[Any]) -> Iterator[Any]:
        """Items that are made one by one, each a step."""
        for item in items:
            self.spend()
            yield item

    def call(self, context: Any, function: Any, /, *args: Any, **named: Any) -> Any:
        """A call in a template."""
        owner = getattr(function, "__self__", None)
        if owner is self:  # spend, joined
            return function(*args)
        if isinstance(owner, str):
            if function.__name__ == "replace" and len(args) > 1:
                most = (len(owner) + 1) * (1 + len(str(args[1])))
                if most > self.budget.size:
                    self.fail_size()
            self.spend(_length(owner))
        given: tuple[Any, ...] = args
        if isinstance(owner, Markup) or (isinstance(owner, type) and issubclass(owner, str)):
            # These make text of anything; a plain string takes no other than strings.
            if function.__name__ == "join":
                given = tuple([map(self.printed, items) for items in args])
            else:
                for value in (*args, *named.values()):
                    self.printed(value)
        run = functools.partial(super().call, context, function, *given, **named)
        return self.counted(run, args, named)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """An operation that can make much of little, or of what has no order."""
        if operator == "-":
            result = super().call_binop(context, operator, left, right)
            if isinstance(result, set):
                raise TemplateRuntimeError(
                    "the template makes a set, whose order is another one in each run: use |list "
                    "and |reject"
                )
            return result
        if operator == "%" and isinstance(left, str | bytes):
            self.check_format(left if isinstance(left, str) else left.decode("latin-1"))
            self.printed(right)
        elif isinstance(left, int) and isinstance(right, int):
            bits = abs(left).bit_length(), abs(right).bit_length()
            if max(bits) > _INT_BITS or (operator == "**" and bits[0] * abs(right) > _INT_BITS):
                raise SecurityError("the template computes a larger number than any prompt needs")
        elif operator in ("+", "*"):
            sizes = [_length(side) if isinstance(side, _SIZED) else side for side in (left, right)]
            if all(isinstance(size, int) for size in sizes):
                size = sizes[0] + sizes[1] if operator == "+" else sizes[0] * sizes[1]
                if size > self.budget.size:
                    self.fail_size()
                self.spend(max(0, size) // 64)
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """``"…".format``, when it is asked for."""
        if super().wrap_str_format(value) is None:
            return None
        text: str = value.__self__
        self.check_format(text)
        own = _MarkupFields(self, escape=text.escape) if isinstance(text, Markup) else _Fields(self)

        def filled(*args: Any, **named: Any) -> str:
            if value.__name__ == "format_map":
                (named,), args = args, ()
            return type(text)(own.vformat(text, args, named))

        return functools.update_wrapper(filled, value)

    def check_format(self, text: str) -> None:
        """Refuse a format with a width that nobody reads."""
        if _WIDE.search(text):
            raise SecurityError("the template formats wider than any prompt needs")

    def from_string(self, source: Any, *args: Any, **named: Any) -> jinja2.Template:
        """The template of a text, its loops counted."""
        self.budget.steps, self.budget.size = STEPS, SIZE
        tree = self.parse(source) if isinstance(source, str) else source
        for loop in list(tree.find_all(nodes.For)):
            loop.body.insert(0, nodes.ExprStmt(self.own("spend")))
            if loop.test is not None:
                loop.test = nodes.And(self.own("spend"), loop.test)
        _Joined(self.own).visit(tree)
        tree.set_environment(self)
        return super().from_string(tree, *args, **named)

    def own(self, name: str, arguments: list[nodes.Expr] | None = None) -> nodes.Call:
        """A call of a method of this environment, which no template can put another behind."""
        return nodes.Call(nodes.EnvironmentAttribute(name), arguments or [], [], None, None)

    def render(self, template: jinja2.Template, values: Mapping[str, Any], size: int) -> str:
        """The text of a template of this environment; size: characters of what is rendered.

        Raises SecurityError (a jinja2.TemplateError) for a template that is out of bounds.
        """
        self.budget.steps = STEPS + _PER_CHARACTER * size
        self.budget.size = SIZE + _PER_CHARACTER * size
        return template.render(values)


def _not_printed(value: Any) -> str:
    kind = type(value).__name__
    if callable(value):
        name = getattr(value, "__name__", None)
        got = f"a function, {name}" if isinstance(name, str) else f"a {kind}"
        remedy = "call it, with () behind its name"
    elif isinstance(value, Iterable):
        got, remedy = f"a {kind}", "make a list or a text of it, with |list or |join"
    else:
        got, remedy = f"a {kind}", "print a value of it"
    return (
        "text is made of strings, numbers, booleans, none, and lists and dicts of these, which "
        f"read the same in every run; got {got}: {remedy}"
    )


def _length(value: Any) -> int:
    # A traced text (see skeleton) lets nobody ask it for its length.
    return str.__len__(value) if isinstance(value, str) else len(value)
