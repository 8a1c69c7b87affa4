"""What the model is shown of tools, and what happens to its calls."""

from __future__ import annotations

import json
from typing import Any

import pytest

from skyrl_apex_plugin.tito import schema as schemas
from skyrl_apex_plugin.tito.tools import CheckedCall, Correction, ToolCatalogue


def catalogue(schema: dict[str, Any] | None, name: str = "tool") -> ToolCatalogue:
    return ToolCatalogue([{"name": name, "description": "d", "inputSchema": schema}])


def dispatched(schema: dict[str, Any] | None, arguments: Any) -> Any:
    checked = catalogue(schema).check("tool", arguments)
    assert isinstance(checked, CheckedCall), checked
    return checked.arguments


def correction(schema: dict[str, Any] | None, arguments: Any) -> str:
    checked = catalogue(schema).check("tool", arguments)
    assert isinstance(checked, Correction), checked
    return checked.text


def one(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"value": schema}, "required": ["value"]}


ENVELOPE = {
    "type": "object",
    "$defs": {
        "Request": {
            "type": "object",
            "properties": {
                "action": {"$ref": "#/$defs/Action"},
                "tab_index": {"type": "integer"},
                "next": {"$ref": "#/$defs/Request"},
            },
            "required": ["action"],
            "additionalProperties": False,
        },
        "Action": {"enum": ["read_tab", "write"]},
        "Unused": {"type": "string"},
    },
    "properties": {"request": {"$ref": "#/$defs/Request"}},
    "required": ["request"],
}


def test_missing_required_argument_is_named_and_not_dispatched() -> None:
    schema = {"type": "object", "properties": {"expr": {"type": "string"}}, "required": ["expr"]}
    assert "missing required argument 'expr'" in correction(schema, {})


def test_a_stringified_object_is_repaired() -> None:
    schema = one({"type": "object"})
    # One required object alone would be an envelope: a second parameter makes it plain.
    schema["properties"]["other"] = {"type": "integer"}
    assert dispatched(schema, {"value": '{"city":"Oslo"}'}) == {"value": {"city": "Oslo"}}


def test_a_string_that_looks_like_json_stays_a_string() -> None:
    assert dispatched(one({"type": "string"}), {"value": '{"city":"Oslo"}'}) == {
        "value": '{"city":"Oslo"}'
    }


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        ({"type": "array", "items": {"type": "integer"}}, "[1, 2]", [1, 2]),
        ({"type": ["array", "null"], "items": {"type": "string"}}, '["a"]', ["a"]),
        ({"anyOf": [{"type": "array"}, {"type": "null"}]}, "[]", []),
        # Ambiguous: the string is itself valid.
        ({"anyOf": [{"type": "string"}, {"type": "array"}]}, "[1]", "[1]"),
        ({"type": ["string", "object"]}, "{}", "{}"),
        ({}, "[1]", "[1]"),
        # A container inside a stringified container.
        (
            {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "array"}}}},
            '[{"a": "[1]"}]',
            [{"a": [1]}],
        ),
    ],
)
def test_containers_are_repaired_only_where_the_schema_leaves_no_doubt(
    schema: dict[str, Any], value: str, expected: Any
) -> None:
    full = {"type": "object", "properties": {"value": schema, "n": {"type": "integer"}}}
    assert dispatched(full, {"value": value}) == {"value": expected}


def test_scalars_in_strings_are_not_guessed() -> None:
    assert "argument 'value'" in correction(one({"type": "integer"}), {"value": "5"})
    assert "argument 'value'" in correction(one({"type": "array"}), {"value": "not json"})


def test_a_repaired_container_must_itself_fit() -> None:
    schema = one({"type": "array", "items": {"type": "integer"}})
    assert "argument 'value'" in correction(schema, {"value": '["a"]'})


def test_an_envelope_is_taken_off_for_the_model_and_put_on_again() -> None:
    tools = catalogue(ENVELOPE)
    (spec,) = tools.for_model
    shown = spec["function"]["parameters"]
    assert set(shown["properties"]) == {"action", "tab_index", "next"}
    assert shown["required"] == ["action"]
    checked = tools.check("tool", {"action": "read_tab", "tab_index": 0})
    assert isinstance(checked, CheckedCall)
    assert checked.arguments == {"request": {"action": "read_tab", "tab_index": 0}}


def test_a_model_that_puts_the_envelope_on_itself_is_understood() -> None:
    call = {"action": "write"}
    assert dispatched(ENVELOPE, {"request": call}) == {"request": call}
    assert dispatched(ENVELOPE, {"request": json.dumps(call)}) == {"request": call}


def test_references_stay_valid_and_unused_definitions_go() -> None:
    shown = catalogue(ENVELOPE).for_model[0]["function"]["parameters"]
    for reference in schemas.references(shown):
        schemas.follow(reference, shown)
    assert set(shown["$defs"]) == {"Action", "Request"}
    wrong = {"action": "read_tab", "next": {"action": "fly"}}
    assert "argument 'next.action'" in correction(ENVELOPE, wrong)


def test_pointers_into_the_envelope_are_rewritten() -> None:
    schema = {
        "type": "object",
        "properties": {
            "input": {
                "type": "object",
                "properties": {
                    "first": {"type": "integer"},
                    "second": {"$ref": "#/properties/input/properties/first"},
                },
            }
        },
        "required": ["input"],
    }
    shown = catalogue(schema).for_model[0]["function"]["parameters"]
    assert shown["properties"]["second"] == {"$ref": "#/properties/first"}
    assert dispatched(schema, {"second": 3}) == {"input": {"second": 3}}


@pytest.mark.parametrize(
    "schema",
    [
        one({"type": "array", "items": {"type": "integer"}}),
        {"type": "object", "properties": {"request": {"type": "object"}}},
        {**one({"type": "object"}), "properties": {"value": {"type": "object"}, "b": {}}},
        one({"type": ["object", "null"]}),
        one({"$ref": "#/$defs/Missing"}),
    ],
    ids=["array", "optional", "two properties", "nullable", "dangling reference"],
)
def test_what_is_no_envelope_stays_as_it_is(schema: dict[str, Any]) -> None:
    assert catalogue(schema).for_model[0]["function"]["parameters"] == schema


def test_a_single_array_parameter_is_dispatched_flat() -> None:
    schema = {"type": "object", "properties": {"ids": {"type": "array"}}, "required": ["ids"]}
    assert dispatched(schema, {"ids": [1]}) == {"ids": [1]}


def test_an_unknown_tool_gets_close_matches() -> None:
    tools = ToolCatalogue([{"name": "files_read"}, {"name": "files_write"}, {"name": "mail_send"}])
    text = tools.check("file_read", {})
    assert isinstance(text, Correction) and "'files_read'" in text.text
    without_prefix = tools.check("send", {})
    assert isinstance(without_prefix, Correction) and "'mail_send'" in without_prefix.text
    far = tools.check("zzz", {})
    assert isinstance(far, Correction) and "files_read, files_write, mail_send" in far.text


@pytest.mark.parametrize("arguments", [None, "", "{}", {}])
def test_no_arguments_come_in_several_forms(arguments: Any) -> None:
    assert dispatched(None, arguments) == {}


@pytest.mark.parametrize("arguments", [[1], "[1]", 3, "{broken"])
def test_arguments_that_are_no_object_are_corrected(arguments: Any) -> None:
    assert "must be a JSON object" in correction(None, arguments)


def test_unions_nullable_and_unknown_arguments() -> None:
    union = {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    assert dispatched(one(union), {"value": None}) == {"value": None}
    nullable = {"type": "string", "nullable": True}
    assert dispatched(one(nullable), {"value": None}) == {"value": None}
    closed = {**one({"type": "integer"}), "additionalProperties": False}
    assert "unknown argument 'extra'" in correction(closed, {"value": 1, "extra": 2})


@pytest.mark.parametrize(
    "schema", [{"type": "nonsense"}, one({"$ref": "https://example.com/schema.json"})]
)
def test_an_unusable_schema_leaves_the_check_to_the_server(schema: dict[str, Any]) -> None:
    assert dispatched(schema, {"value": 1, "other": 2}) == {"value": 1, "other": 2}


@pytest.mark.parametrize("broken", [{"type": "str"}, {"$ref": "#/$defs/Lost"}])
def test_a_required_argument_is_missed_in_an_unusable_schema_too(broken: dict[str, Any]) -> None:
    schema = one(broken)
    assert "missing required argument 'value'" in correction(schema, {})
    assert "missing required argument 'value'" in correction(schema, None)
    assert dispatched(schema, {"value": 1}) == {"value": 1}
    assert dispatched({**schema, "required": "value"}, {}) == {}


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two tools are called 'a'"):
        ToolCatalogue([{"name": "a"}, {"name": "a"}])
