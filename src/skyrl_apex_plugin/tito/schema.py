"""JSON Schemas of tools: references, envelopes, and normal forms."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

DEFINITIONS = ("$defs", "definitions")

JSON_TYPES = frozenset({"null", "boolean", "object", "array", "number", "integer", "string"})
DEEPEST = 8
"""How far unions are looked into; schemas may go in circles."""

Schema = dict[str, Any]


def resolve(schema: Any, root: Mapping[str, Any]) -> Any:
    """``schema``, or what its chain of local references (``#/…``) leads to.

    :raises KeyError: a reference that leads nowhere, leaves the document, or goes in a circle.
    """
    seen: set[str] = set()
    while isinstance(schema, Mapping) and isinstance(schema.get("$ref"), str):
        reference = schema["$ref"]
        if reference in seen:
            raise KeyError(f"{reference} refers to itself")
        seen.add(reference)
        target = follow(reference, root)
        siblings = {key: value for key, value in schema.items() if key != "$ref"}
        schema = {**target, **siblings} if isinstance(target, Mapping) else target
    return schema


def follow(reference: str, root: Mapping[str, Any]) -> Any:
    """What a local JSON pointer (``#/$defs/Name``) points to. Raises ``KeyError``."""
    if reference != "#" and not reference.startswith("#/"):
        raise KeyError(f"{reference} leaves the document")
    node: Any = root
    for part in reference.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        try:
            node = node[int(name)] if isinstance(node, list) else node[name]
        except (KeyError, IndexError, ValueError, TypeError):
            raise KeyError(f"{reference} leads nowhere") from None
    return node


def references(schema: Any) -> Iterator[str]:
    """Every ``$ref`` in ``schema``, definitions included."""
    if isinstance(schema, Mapping):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"]
        for value in schema.values():
            yield from references(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from references(value)


def envelope_of(schema: Mapping[str, Any]) -> str | None:
    """The name of the one property that wraps all arguments (``request``, ``input``, …).

    A schema is an envelope when its only property is required and, references followed, an
    object. A single array or scalar parameter is none.
    """
    properties = schema.get("properties")
    if not isinstance(properties, Mapping) or len(properties) != 1:
        return None
    ((name, inner),) = properties.items()
    if name not in (schema.get("required") or ()) or schema.get("patternProperties"):
        return None
    try:
        inner = resolve(inner, schema)
    except KeyError:
        return None
    is_object = isinstance(inner, Mapping) and (
        inner.get("type") == "object" or ("type" not in inner and "properties" in inner)
    )
    return str(name) if is_object else None


def flatten(schema: Mapping[str, Any]) -> tuple[Schema, str | None]:
    """The schema that the model sees, and the envelope that was taken off (or ``None``).

    The inner object's schema becomes the root: definitions move along, pointers into the envelope
    are rewritten, definitions that nothing refers to any more are dropped. A schema whose
    references would not all resolve afterwards is left as it is.
    """
    plain: Schema = copy.deepcopy(dict(schema))
    envelope = envelope_of(schema)
    if envelope is None or "#" in references(schema):
        return plain, None
    flat: Schema = copy.deepcopy(dict(resolve(schema["properties"][envelope], schema)))
    flat.setdefault("type", "object")
    for key in DEFINITIONS:
        merged = {**plain.get(key, {}), **flat.get(key, {})}
        if merged:
            flat[key] = merged
    prefix = f"#/properties/{envelope.replace('~', '~0').replace('/', '~1')}"
    flat = _rewrite_references(flat, lambda ref: _strip(ref, prefix))
    flat = prune_definitions(flat)
    try:
        for reference in references(flat):
            follow(reference, flat)
    except KeyError:
        return plain, None
    return flat, envelope


def prune_definitions(schema: Schema) -> Schema:
    """``schema`` without the definitions that nothing reachable refers to."""
    body = {key: value for key, value in schema.items() if key not in DEFINITIONS}
    kept: dict[str, dict[str, Any]] = {key: {} for key in DEFINITIONS}
    waiting = list(references(body))
    while waiting:
        parts = waiting.pop().split("/")
        if len(parts) < 3 or parts[1] not in DEFINITIONS:
            continue
        group, name = parts[1], parts[2].replace("~1", "/").replace("~0", "~")
        if name in kept[group] or name not in schema.get(group, {}):
            continue
        kept[group][name] = schema[group][name]
        waiting.extend(references(schema[group][name]))
    return {**body, **{key: value for key, value in kept.items() if value}}


def normalise(schema: Any) -> Any:
    """OpenAPI's ``nullable`` as JSON Schema says it, everywhere in ``schema``."""
    if isinstance(schema, list):
        return [normalise(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    plain = {key: normalise(value) for key, value in schema.items()}
    if plain.get("nullable") is True:
        del plain["nullable"]
        if isinstance(plain.get("type"), str):
            plain["type"] = [plain["type"], "null"]
            if "enum" in plain and None not in plain["enum"]:
                plain["enum"] = [*plain["enum"], None]
        else:
            plain = {"anyOf": [plain, {"type": "null"}]}
    return plain


def types(schema: Any, root: Mapping[str, Any], depth: int = DEEPEST) -> frozenset[str]:
    """The JSON types that values may have, as far as the schema says; a ``number`` may be whole.

    :param root: the document that references are followed in, in :func:`normalise`'s form.
    """
    try:
        schema = resolve(schema, root)
    except KeyError:
        return JSON_TYPES
    if not isinstance(schema, Mapping) or depth == 0:
        return JSON_TYPES
    found = JSON_TYPES
    if "type" in schema:
        declared = schema["type"]
        names = declared if isinstance(declared, list) else [declared]
        found &= {name for name in names if isinstance(name, str)}
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list) and all(
        value is None or isinstance(value, str) for value in values
    ):
        found &= {"null" if value is None else "string" for value in values}
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            found &= frozenset().union(*(types(one, root, depth - 1) for one in schema[key]))
    if isinstance(schema.get("allOf"), list):
        found = found.intersection(*(types(one, root, depth - 1) for one in schema["allOf"]))
    return found


def describe(name: str, schema: Any, root: Mapping[str, Any]) -> str:
    """A parameter in a few words: ``tab_index (integer, required)``'s first part."""
    try:
        found = resolve(schema, root)
    except KeyError:
        return name
    if not isinstance(found, Mapping):
        return name
    if "enum" in found:
        return f"{name} (one of {', '.join(repr(value) for value in found['enum'][:8])})"
    kind = found.get("type")
    if isinstance(kind, list):
        kind = " or ".join(map(str, kind))
    return f"{name} ({kind})" if kind else name


def _strip(reference: str, prefix: str) -> str:
    if reference == prefix:
        return "#"
    return "#" + reference[len(prefix) :] if reference.startswith(prefix + "/") else reference


def _rewrite_references(node: Any, change: Callable[[str], str]) -> Any:
    if isinstance(node, list):
        return [_rewrite_references(item, change) for item in node]
    if not isinstance(node, Mapping):
        return node
    return {
        key: change(value)
        if key == "$ref" and isinstance(value, str)
        else _rewrite_references(value, change)
        for key, value in node.items()
    }
