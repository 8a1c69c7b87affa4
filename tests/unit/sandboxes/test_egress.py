"""Which hosts a network policy lets through, and which addresses no policy does."""

from __future__ import annotations

import asyncio

import pytest
from harbor.models.task.config import NetworkMode, NetworkPolicy

from skyrl_apex_local.egress import Refused, check_host, resolve_public


def allow(*hosts: str) -> NetworkPolicy:
    return NetworkPolicy(network_mode=NetworkMode.ALLOWLIST, allowed_hosts=list(hosts))


@pytest.mark.parametrize(
    ("host", "entries"),
    [
        ("pypi.org", ["pypi.org"]),
        ("PyPI.org.", ["pypi.org"]),
        ("files.pypi.org", ["*.pypi.org"]),
        ("a.b.pypi.org", ["x.org", "*.pypi.org"]),
        ("93.184.216.34", ["93.184.216.34"]),
        ("93.184.216.34", ["93.184.0.0/16"]),
        ("2606:2800::1", ["2606:2800::/32"]),
    ],
)
def test_listed(host: str, entries: list[str]) -> None:
    check_host(host, allow(*entries))


@pytest.mark.parametrize(
    ("host", "entries"),
    [
        ("evil.org", ["pypi.org"]),
        ("pypi.org.evil.org", ["pypi.org", "*.pypi.org"]),
        ("notpypi.org", ["*.pypi.org", "pypi.org"]),
        ("pypi.org", ["*.pypi.org"]),
        ("93.185.0.1", ["93.184.0.0/16"]),
        ("pypi.org", ["93.184.0.0/16"]),
        ("[", ["pypi.org"]),
    ],
)
def test_not_listed(host: str, entries: list[str]) -> None:
    with pytest.raises(Refused, match="not on the task's allow-list"):
        check_host(host, allow(*entries))


def test_no_network_lets_nothing_through() -> None:
    with pytest.raises(Refused, match="allows no network"):
        check_host("pypi.org", NetworkPolicy(network_mode=NetworkMode.NO_NETWORK))


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "localhost", "0.0.0.0", "::1", "10.1.2.3", "192.168.0.1", "172.16.5.5"),
        *("169.254.169.254", "::ffff:127.0.0.1", "fe80::1", "fd00::1", "2130706433", "0x7f.1"),
        "100.64.0.1",
    ],
)
async def test_addresses_of_the_host_and_of_private_networks_are_never_reached(host: str) -> None:
    with pytest.raises(Refused):
        await resolve_public(host, 80)


async def test_one_private_address_among_public_ones_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def answers(*_: object, **__: object) -> list[tuple[object, ...]]:
        return [(0, 0, 0, "", (address, 80)) for address in ("10.0.0.1", "93.184.216.34")]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", answers)
    assert await resolve_public("rebinding.example", 80) == [("93.184.216.34", 80)]
