"""Ports for Modal sandboxes that harbor creates.

A tunnel exists only for ports named when the sandbox is created, and harbor's creation names
none. harbor calls ``Sandbox.create`` through its module's name ``Sandbox``: that name is made to
stand for a thin wrapper, which adds what :func:`creating_with` says for the calls under it and
passes everything else through. harbor's own arguments, retries included, stay harbor's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from harbor.environments import modal as harbor_modal

_extra: ContextVar[Mapping[str, Any] | None] = ContextVar("skyrl_apex_modal_extra", default=None)


class _Creation:
    """``Sandbox.create``, callable in both of Modal's ways, with the further arguments."""

    def __init__(self, create: Any) -> None:
        self._create = create

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._create(*args, **kwargs, **(_extra.get() or {}))

    async def aio(self, *args: Any, **kwargs: Any) -> Any:
        return await self._create.aio(*args, **kwargs, **(_extra.get() or {}))


class SandboxWithExtras:
    """Stands for Modal's ``Sandbox`` class where harbor looks it up."""

    def __init__(self, original: Any) -> None:
        self._original = original

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._original, name)
        return _Creation(value) if name in ("create", "_experimental_create") else value


@contextmanager
def creating_with(**extra: Any) -> Iterator[None]:
    """Sandboxes that this task creates through harbor meanwhile get these further arguments."""
    if not isinstance(harbor_modal.Sandbox, SandboxWithExtras):
        harbor_modal.Sandbox = SandboxWithExtras(harbor_modal.Sandbox)
    token = _extra.set(extra)
    try:
        yield
    finally:
        _extra.reset(token)
