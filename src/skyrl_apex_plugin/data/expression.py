"""Expressions over the facts of a task: ``world_kind == "law" and criteria >= 3``.

They are Jinja expressions in its sandbox: comparison, ``and``/``or``/``not``, ``in``, arithmetic
and filters such as ``task_name|lower``; no Python runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def compile_expression(text: str, origin: str) -> Callable[[Mapping[str, Any]], Any]:
    """A function from facts to the value of ``text``.

    :param origin: the configuration key or option that ``text`` comes from, for messages.

    Raises ``ValueError``: at once when ``text`` is no expression; when called, if it uses a name
    that the facts do not have (the message lists those they have).
    """
    from jinja2 import StrictUndefined, TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    # A filter may be given any value, and says so in its own way.
    faults = (TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
    environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined)
    try:
        compiled = environment.compile_expression(text, undefined_to_none=False)
    except TemplateError as error:
        raise ValueError(f"{origin}={text!r} is not an expression: {error}") from error

    def evaluate(facts: Mapping[str, Any]) -> Any:
        try:
            value = compiled(**facts)
            if isinstance(value, StrictUndefined):
                bool(value)  # raises, naming what is undefined
            return value
        except faults as error:
            known = ", ".join(sorted(facts))
            raise ValueError(f"{origin}={text!r}: {error}. Known names: {known}") from error

    return evaluate
