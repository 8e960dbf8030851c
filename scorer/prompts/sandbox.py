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
from types import GeneratorType
from typing import Any, Final, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.filters import do_format
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

STEPS: Final = 200_000
SIZE: Final = 2_000_000
_PER_CHARACTER: Final = 16  # steps and characters more, for each character of the texts
_LARGEST_INT: Final = 100_000  # as an argument: a width, a count
_INT_BITS: Final = 256

# Of no use in a prompt: they differ from run to run, or take long for their size.
_LEFT_OUT: Final = ("pprint", "random", "urlize", "wordwrap", "xmlattr")
_SIZED: Final = (str, bytes, list, tuple, dict, set, frozenset, range)
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


class Bounded(ImmutableSandboxedEnvironment):
    """An environment whose templates are bounded."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.budget = _Budget()
        self.globals.pop("lipsum", None)
        for name in _LEFT_OUT:
            self.filters.pop(name, None)
        for name, function in self.filters.items():
            self.filters[name] = self.bounded(function)

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
        return self.concat(map(str, values))

    def bounded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A filter that is counted."""

        @functools.wraps(function)
        def counted(*args: Any, **named: Any) -> Any:
            if function is do_format:
                self.check_format(str(args[0]))
            return self.counted(functools.partial(function, *args, **named), args, named)

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
        run = functools.partial(super().call, context, function, *args, **named)
        return self.counted(run, args, named)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """An operation that can make much of little."""
        if operator == "%" and isinstance(left, str):
            self.check_format(left)
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
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            self.check_format(value.__self__)
        return wrapped

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


def _length(value: Any) -> int:
    # A traced text (see skeleton) lets nobody ask it for its length.
    return str.__len__(value) if isinstance(value, str) else len(value)
