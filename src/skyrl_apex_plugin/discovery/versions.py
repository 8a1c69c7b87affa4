"""Which versions of other packages fit together; the facts are in ``versions.toml``."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files

from packaging.specifiers import SpecifierSet


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownPackage:
    """What is known of the versions of one package."""

    name: str
    works: str
    """Version specifier."""
    install: str
    """The command that brings a version which works."""
    seen: tuple[str, ...] = ()
    """Versions that the tests ran with."""
    extra: str | None = None
    """The extra of this distribution that needs the package; ``None``: always needed."""
    why: str = ""
    """What happens outside of ``works``."""

    @property
    def installed(self) -> str | None:
        """The installed version, if any."""
        try:
            return version(self.name)
        except PackageNotFoundError:
            return None

    def fits(self, found: str) -> bool:
        """Whether a version is inside ``works``."""
        return SpecifierSet(self.works).contains(found, prereleases=True)

    def was_seen(self, found: str) -> bool:
        """Whether the tests ran with a version; a local part such as ``+cpu`` does not matter."""
        return found.partition("+")[0] in self.seen


@cache
def known_packages() -> tuple[KnownPackage, ...]:
    """The table, in its order."""
    text = (files(__package__) / "versions.toml").read_text(encoding="utf-8")
    rows = tomllib.loads(text)["package"]
    return tuple(KnownPackage(**{**row, "seen": tuple(row["seen"])}) for row in rows)
