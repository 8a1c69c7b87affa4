"""The tool catalogue: what the model is shown, and what its calls are checked against."""

from __future__ import annotations

import difflib
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from . import schema as schemas

logger = logging.getLogger(__name__)

SHOWN_ERRORS = 5
SHOWN_NAMES = 30


@dataclass(frozen=True, slots=True)
class CheckedCall:
    """A call that fits its tool's schema, in the form the server expects (envelope included)."""

    name: str
    arguments: dict[str, Any]
    repaired: bool = False
    """Whether a stringified object or array was turned back into one."""


@dataclass(frozen=True, slots=True)
class Correction:
    """Why a call is not dispatched, in words for the model."""

    text: str


class ToolCatalogue:
    """The tools of one world.

    :param tools: as MCP lists them: ``{name, description, inputSchema, …}``.
    :raises ValueError: a tool without a name, or two of the same name.
    """

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        self._tools: dict[str, _Tool] = {}
        for spec in tools:
            name = spec.get("name")
            if not isinstance(name, str) or not name:
                raise ValueError(f"a tool without a name: {str(spec)[:200]}")
            if name in self._tools:
                raise ValueError(f"two tools are called {name!r}")
            self._tools[name] = _Tool(name, spec)

    def __len__(self) -> int:
        return len(self._tools)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._tools)

    @cached_property
    def for_model(self) -> list[dict[str, Any]]:
        """OpenAI tool specs, envelopes taken off. Shared: do not change it."""
        return [tool.for_model for tool in self._tools.values()]

    def check(self, name: str, arguments: Any) -> CheckedCall | Correction:
        """Check a call as the model made it, repair what is unambiguous, put on the envelope.

        ``arguments`` is normally an object; a JSON string of one and ``None`` (no arguments) are
        taken too. Nothing raises: whatever does not fit is a :class:`Correction`.
        """
        tool = self._tools.get(name)
        if tool is None:
            return Correction(self._unknown(name))
        return tool.check(arguments)

    def _unknown(self, name: str) -> str:
        text = f"There is no tool called {name!r}."
        close = difflib.get_close_matches(name, self._tools, n=3, cutoff=0.5)
        # A tool is often asked for without its server's prefix.
        close += [n for n in self._tools if n.endswith(f"_{name}") and n not in close]
        if close:
            return f"{text} Did you mean {' or '.join(repr(n) for n in close[:4])}?"
        if len(self._tools) <= SHOWN_NAMES:
            return f"{text} The tools are: {', '.join(self._tools) or '(none)'}."
        return f"{text} Use one of the {len(self._tools)} tools you were given."


class _Tool:
    """One tool: its flattened schema, and calls against it."""

    def __init__(self, name: str, spec: Mapping[str, Any]) -> None:
        self.name = name
        given = spec.get("inputSchema") or {"type": "object", "properties": {}}
        self.parameters, self.envelope = schemas.flatten(given)
        self.for_model = {
            "type": "function",
            "function": {
                "name": name,
                "description": spec.get("description") or "",
                "parameters": self.parameters,
            },
        }

    @cached_property
    def _validator(self) -> Any:
        """A validator of the flattened arguments; ``None`` where the schema itself is unusable."""
        from jsonschema import validators  # type: ignore[import-untyped]
        from jsonschema.exceptions import SchemaError  # type: ignore[import-untyped]

        schema = schemas.normalise(self.parameters)
        try:
            for reference in schemas.references(schema):
                schemas.follow(reference, schema)
            cls = validators.validator_for(schema, default=validators.Draft202012Validator)
            cls.check_schema(schema)
        except (SchemaError, KeyError) as error:
            logger.warning(
                "tool %s: its schema cannot be used, only required arguments are checked: %s",
                self.name,
                str(error).splitlines()[0],
            )
            return None
        return cls(schema)

    @property
    def _required(self) -> list[str]:
        """Names that must be there whatever else is wrong with the schema."""
        found = self.parameters.get("required")
        return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []

    def check(self, arguments: Any) -> CheckedCall | Correction:
        given = _as_object(arguments)
        if given is None:
            return Correction(
                f"The call of {self.name!r} was not run: its arguments must be a JSON object, got "
                f"{str(arguments)[:200]!r}."
            )
        flat = self._unwrapped(given)
        repaired = flat
        if self._validator is None:
            if missing := [name for name in self._required if name not in flat]:
                names = "; ".join(f"missing required argument '{name}'" for name in missing)
                return Correction(f"The call of {self.name!r} was not run: {names}.")
        else:
            repaired = _repair(flat, self._validator.schema, self._validator)
            errors = sorted(
                self._validator.iter_errors(repaired), key=lambda e: list(map(str, e.path))
            )
            if errors:
                return Correction(self._correction(errors))
        wrapped = repaired if self.envelope is None else {self.envelope: repaired}
        return CheckedCall(self.name, wrapped, repaired=repaired != flat)

    def _unwrapped(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Arguments without the envelope, which some models put on from the tool's description."""
        if self.envelope is None or set(arguments) != {self.envelope}:
            return arguments
        if self.envelope in (self.parameters.get("properties") or {}):
            return arguments
        inner = _as_object(arguments[self.envelope])
        return arguments if inner is None else inner

    def _correction(self, errors: Sequence[Any]) -> str:
        lines = list(dict.fromkeys(line for e in errors for line in _explain(e)))[:SHOWN_ERRORS]
        text = f"The call of {self.name!r} was not run: {'; '.join(lines)}."
        properties = self.parameters.get("properties") or {}
        required = set(self.parameters.get("required") or ())
        shown = [
            schemas.describe(name, schema, self.parameters)
            + (" required" if name in required else "")
            for name, schema in list(properties.items())[:SHOWN_NAMES]
        ]
        return f"{text} Its arguments are: {', '.join(shown)}." if shown else text


def _as_object(arguments: Any) -> dict[str, Any] | None:
    """The arguments as a dictionary, or ``None`` where they are none."""
    if arguments is None or arguments == "":
        return {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return None
    return dict(arguments) if isinstance(arguments, Mapping) else None


def _repair(value: Any, schema: Any, root: Any) -> Any:
    """``value`` with stringified containers parsed where the schema leaves no doubt.

    A string is parsed only when the schema refuses it as a string and accepts the object or array
    that it spells. Strings that may stay strings, and scalars, are never touched.

    :param schema: the part of the tool's schema that ``value`` belongs to.
    :param root: the validator of the whole schema, which resolves references.
    """
    if not isinstance(schema, Mapping):
        return value
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        validator = root.evolve(schema=schema)
        if validator.is_valid(value):
            return value
        try:
            parsed = _repair(json.loads(value), schema, root)
        except ValueError:
            return value
        return parsed if validator.is_valid(parsed) else value
    found = schemas.resolve(schema, root.schema)
    if not isinstance(found, Mapping):
        return value
    if isinstance(value, dict):
        properties = found.get("properties") or {}
        rest = found.get("additionalProperties")
        return {k: _repair(item, properties.get(k, rest), root) for k, item in value.items()}
    if isinstance(value, list):
        return [_repair(item, found.get("items"), root) for item in value]
    return value


def _explain(error: Any) -> Iterable[str]:
    """A validation error in words that name the argument."""
    where = ".".join(map(str, error.absolute_path))
    if error.validator == "required":
        missing = [name for name in error.validator_value if name not in error.instance]
        return [f"missing required argument '{where + '.' if where else ''}{n}'" for n in missing]
    if error.validator == "additionalProperties" and error.validator_value is False:
        known = error.schema.get("properties") or {}
        unknown = [name for name in error.instance if name not in known]
        return [f"unknown argument '{where + '.' if where else ''}{n}'" for n in unknown]
    message = error.message if len(error.message) <= 200 else error.message[:200] + "…"
    return [f"argument '{where}': {message}" if where else message]
