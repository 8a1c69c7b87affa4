"""Mail: one meta-tool over the .eml files below ``/Mail``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..tool import JsonObject, Param, Tool
from ..world import World
from .meta import meta_tool, needed

if TYPE_CHECKING:
    from email.message import EmailMessage

FOLDER = "/Mail"
_FIELDS = ("mails", "from", "subject", "body", "attachments")


def tools(world: World) -> list[Tool]:
    """``mailbox`` and ``mailbox_schema``."""

    def names() -> list[str]:
        return [name for name in world.files.files(FOLDER) if name.endswith(".eml")]

    def list_mails(_: JsonObject) -> JsonObject:
        return {"mails": [_head(world, name) for name in names()]}

    def search(request: JsonObject) -> JsonObject:
        wanted = needed(request, "text").lower()
        hits = [name for name in names() if wanted in _text(world, name).lower()]
        return {"mails": [_head(world, name) for name in hits]}

    def read(request: JsonObject) -> JsonObject:
        message = _message(world, needed(request, "path"))
        return {
            "from": message["from"],
            "subject": message["subject"],
            "body": _body(message),
            "attachments": None,
        }

    return meta_tool(
        "mailbox",
        "Read mail.",
        {"list": list_mails, "search": search, "read": read},
        (Param("text", "string", required=False), Param("path", "string", required=False)),
        _FIELDS,
    )


def _message(world: World, name: str) -> EmailMessage:
    # Imported here: a quarter of the gateway's start, for a tool that few trials use.
    import email.policy
    from email.message import EmailMessage

    with open(world.files.existing(name), "rb") as file:
        message = email.message_from_binary_file(file, policy=email.policy.default)
    assert isinstance(message, EmailMessage)
    return message


def _body(message: EmailMessage) -> str:
    part = message.get_body(("plain",))
    return "" if part is None else str(part.get_content()).strip()


def _text(world: World, name: str) -> str:
    message = _message(world, name)
    return f"{message['from']}\n{message['subject']}\n{_body(message)}"


def _head(world: World, name: str) -> JsonObject:
    message = _message(world, name)
    return {"path": name, "from": message["from"], "subject": message["subject"]}
