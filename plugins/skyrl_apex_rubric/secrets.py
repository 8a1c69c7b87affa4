"""Keys of a judge, kept out of every text that is shown or stored."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

SECRET = re.compile(
    r"((api|access|secret|private|auth)[-_. ]?key|token|secret|passw(or)?d|passphrase"
    r"|credential|authorization)s?$",
    re.IGNORECASE,
)
"""Names whose texts are secret, in settings as in the environment."""
SHORTEST = 4
"""Characters; a shorter value is no key, and taking it out would spoil any text."""
SHORTEST_OF_ENVIRONMENT = 8
"""The same for values that only their names tell of: not every ``…_TOKEN=true`` is a key."""
USERINFO = re.compile(r"(?<=://)[^/\s?#]+(?=@)")
"""User and password of a URL."""
HIDDEN = "***"


class Scrubber:
    """Takes known secrets out of texts, in the spellings that a reply or an error may hold."""

    def __init__(self, secrets: Iterable[str]) -> None:
        spellings = {each for secret in secrets for each in _spellings(secret)}
        found = sorted((each for each in spellings if len(each) >= SHORTEST), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, found))) if found else None

    def __call__(self, text: str) -> str:
        return self._pattern.sub(HIDDEN, text) if self._pattern else text


def _spellings(secret: str) -> Iterator[str]:
    bare = re.sub(r"^(Bearer|Basic|Token) +", "", secret.strip(), flags=re.IGNORECASE)
    for each in (secret.strip(), bare):
        yield from (each, json.dumps(each)[1:-1], repr(each)[1:-1], ascii(each)[1:-1], quote(each))


def basic_authorization(user: str, password: str) -> list[str]:
    """What an ``Authorization: Basic`` header of a URL's user and password holds."""
    pair = f"{user}:{password}".encode()
    return [password or user, base64.b64encode(pair).decode()]


def secrets_in(settings: Any, *, inside: bool = False) -> Iterator[str]:
    """Texts under a name that means a secret, and what URLs hold of them, at any depth."""
    if isinstance(settings, Mapping):
        for name, value in settings.items():
            yield from secrets_in(value, inside=inside or bool(SECRET.search(str(name))))
    elif isinstance(settings, list | tuple):
        for value in settings:
            yield from secrets_in(value, inside=inside)
    elif isinstance(settings, str):
        for login in USERINFO.findall(settings):
            yield from (login, login.partition(":")[2])
        if inside:
            yield settings


def secrets_of(env: Mapping[str, str]) -> list[str]:
    return [each for each in secrets_in(env) if len(each) >= SHORTEST_OF_ENVIRONMENT]


def without_secrets(settings: Any, *, inside: bool = False) -> Any:
    """``settings`` with those texts hidden."""
    if isinstance(settings, Mapping):
        return {
            name: without_secrets(value, inside=inside or bool(SECRET.search(str(name))))
            for name, value in settings.items()
        }
    if isinstance(settings, list | tuple):
        return [without_secrets(value, inside=inside) for value in settings]
    if isinstance(settings, str):
        return HIDDEN if inside else USERINFO.sub(HIDDEN, settings)
    return settings
