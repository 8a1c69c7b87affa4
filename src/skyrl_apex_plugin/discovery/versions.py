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
    with_skyrl: str | None = None
    """The releases of skyrl beside which this row holds; ``None``: any."""
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

    def belongs_to(self, skyrl: str | None) -> bool:
        """Whether this row is the one written for a release of skyrl."""
        if self.with_skyrl is None or skyrl is None:
            return False
        return SpecifierSet(self.with_skyrl).contains(skyrl, prereleases=True)

    def was_seen(self, found: str) -> bool:
        """Whether the tests ran with a version; a local part such as ``+cpu`` does not matter."""
        return found.partition("+")[0] in self.seen


@cache
def known_packages() -> tuple[KnownPackage, ...]:
    """The whole table, in its order."""
    text = (files(__package__) / "versions.toml").read_text(encoding="utf-8")
    rows = tomllib.loads(text)["package"]
    return tuple(KnownPackage(**{**row, "seen": tuple(row["seen"])}) for row in rows)


def packages_beside(skyrl: str | None) -> tuple[KnownPackage, ...]:
    """The rows that hold beside a release of skyrl, one for each package.

    Where none fits the release, or no skyrl is installed (``None``), a package's first row holds.
    """
    chosen: dict[str, KnownPackage] = {}
    for row in known_packages():
        if row.name not in chosen or row.belongs_to(skyrl):
            chosen[row.name] = row
    return tuple(chosen.values())
