"""Runs inside the sandbox: rewrites ``nullable`` of the schema files it is given.

Standard library only. A file without the fault is left as it is.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def relax(schema: Any) -> Any:
    """``schema`` with every ``"nullable": true`` said in JSON Schema."""
    if isinstance(schema, list):
        return [relax(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: relax(value) for name, value in schema.items()}
    if found.get("nullable") is not True:
        return found
    del found["nullable"]
    kind = found.get("type")
    if isinstance(kind, str):
        found["type"] = [kind, "null"]
        if isinstance(found.get("enum"), list) and None not in found["enum"]:
            found["enum"].append(None)
        return found
    return {"anyOf": [found, {"type": "null"}]} if kind is None else found


def main(paths: list[str]) -> None:
    for path in paths:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
        relaxed = relax(document)
        if relaxed == document:
            continue
        temporary = f"{path}.apex"
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(relaxed, file, indent=1)
        os.replace(temporary, path)


if __name__ == "__main__":
    main(sys.argv[1:])
