"""What a tool is: its parameters, the input schema made from them, and the argument check."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

JsonObject = dict[str, Any]

_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}


class Param(NamedTuple):
    """One parameter of a tool."""

    name: str
    type: str
    description: str = ""
    required: bool = True
    choices: tuple[str, ...] = ()

    def schema(self) -> JsonObject:
        """JSON Schema of the parameter."""
        schema: JsonObject = {"type": self.type}
        if self.choices:
            schema["enum"] = list(self.choices)
        if self.description:
            schema["description"] = self.description
        return schema


class Image(NamedTuple):
    """An image as a tool returns it: no text goes with it."""

    data: bytes
    mime_type: str


class ApplicationError(Exception):
    """An application said no; the client gets a *successful* result with an error field."""


class ArgumentError(Exception):
    """The arguments do not fit the tool's schema."""


class Tool(NamedTuple):
    """A tool of one app.

    ``envelope`` names the one required object that holds all arguments (``request``), or is
    empty for flat arguments. ``run`` gets checked arguments without the envelope and returns
    text, an object (sent as JSON), or an :class:`Image`.
    """

    name: str
    description: str
    params: tuple[Param, ...]
    run: Callable[[JsonObject], str | JsonObject | Image]
    envelope: str = ""
    read_only: bool = True
    output_schema: JsonObject | None = None

    def input_schema(self) -> JsonObject:
        """JSON Schema of the arguments, envelope included."""
        body: JsonObject = {
            "type": "object",
            "properties": {param.name: param.schema() for param in self.params},
            "required": [param.name for param in self.params if param.required],
        }
        if not self.envelope:
            return body
        return {"type": "object", "properties": {self.envelope: body}, "required": [self.envelope]}

    def described(self, public_name: str) -> JsonObject:
        """The tool as ``tools/list`` shows it."""
        described: JsonObject = {
            "name": public_name,
            "description": self.description,
            "inputSchema": self.input_schema(),
            "annotations": {"readOnlyHint": self.read_only},
        }
        if self.output_schema is not None:
            described["outputSchema"] = self.output_schema
        return described

    def checked(self, arguments: Mapping[str, Any]) -> JsonObject:
        """The arguments without the envelope. Raises :class:`ArgumentError`."""
        if self.envelope:
            inner = arguments.get(self.envelope)
            if not isinstance(inner, dict):
                raise ArgumentError(f"{self.envelope!r} is required and must be an object")
            arguments = inner
        given = {name: value for name, value in arguments.items() if value is not None}
        for param in self.params:
            if param.name in given:
                _check_value(param, given[param.name])
            elif param.required:
                raise ArgumentError(f"{param.name!r} is a required property")
        unknown = sorted(set(given) - {param.name for param in self.params})
        if unknown:
            raise ArgumentError(f"unexpected properties: {', '.join(map(repr, unknown))}")
        return given


def _check_value(param: Param, value: Any) -> None:
    types = _PYTHON_TYPES[param.type]
    is_stray_bool = isinstance(value, bool) and bool not in types
    if not isinstance(value, types) or is_stray_bool:
        raise ArgumentError(f"{param.name!r}: {value!r} is not of type {param.type!r}")
    if param.choices and value not in param.choices:
        raise ArgumentError(f"{param.name!r}: {value!r} is not one of {list(param.choices)}")
