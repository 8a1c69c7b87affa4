"""The Modal sandbox against a fake SDK; on both harbor versions (``test_harbor26``)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from fake_modal import FakeModal
from harbor.environments import modal as harbor_modal
from harbor.models.task.config import NetworkMode, NetworkPolicy

from skyrl_apex_modal.environment import ApexModalEnvironment
from skyrl_apex_plugin.sandboxes.conformance import CHECKS, NotOffered, SandboxMaker
from skyrl_apex_sandbox_kit import OWNER_LABEL, owner_label

pytestmark = pytest.mark.usefixtures("bwrap")

ECR = "123456789012.dkr.ecr.us-east-1.amazonaws.com/worlds/bank:7"
WORLD = {
    "environment/Dockerfile": "FROM scratch\n",
    "archipelago.json": json.dumps({"ecr_image": ECR}),
    "task.toml": "[agent]\ntimeout_sec = 3600\n[verifier]\ntimeout_sec = 600\n",
}


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> FakeModal:
    fake = FakeModal()
    for name, value in fake.names.items():
        monkeypatch.setattr(harbor_modal, name, value)
    harbor_modal._ENV_SECRET_CACHE.clear()
    return fake


@pytest.fixture
def maker(cloud: FakeModal, tmp_path: Path) -> SandboxMaker:
    return SandboxMaker(ApexModalEnvironment, tmp_path, files=WORLD)


@pytest.mark.parametrize("name", CHECKS)
async def test_contract(name: str, cloud: FakeModal, maker: SandboxMaker) -> None:
    try:
        await CHECKS[name](maker)
    except NotOffered as refusal:
        pytest.skip(str(refusal))
    assert cloud.live == []
    assert {sandbox.terminations for sandbox in cloud.sandboxes} <= {1}, (
        "one delete for each create"
    )


async def test_the_ecr_image_is_pulled_with_its_secret_and_the_port_is_open(
    cloud: FakeModal, maker: SandboxMaker
) -> None:
    async with maker.running(registry_secret="aws", labels={"team": "blue"}):
        [sandbox] = cloud.live
    image = sandbox.options["image"]
    assert image.kind == "ECR image"
    assert image.arguments == (ECR,)
    assert image.options["secret"].arguments == ("aws",)
    assert list(sandbox.options["encrypted_ports"]) == [8000]
    tags = sandbox.options["tags"]
    assert tags["team"] == "blue"
    assert tags[OWNER_LABEL] == owner_label()


async def test_a_forced_build_does_not_build_the_placeholder(
    cloud: FakeModal, maker: SandboxMaker
) -> None:
    environment = maker.make()
    await environment.start(force_build=True)
    assert cloud.sandboxes[0].options["image"].kind == "ECR image"
    await environment.stop(delete=True)


async def test_no_network_keeps_the_tunnel(cloud: FakeModal, maker: SandboxMaker) -> None:
    policy = NetworkPolicy(network_mode=NetworkMode.NO_NETWORK)
    async with maker.running(network_policy=policy) as environment:
        [sandbox] = cloud.live
        assert not sandbox.options["block_network"]
        assert sandbox.options["outbound_cidr_allowlist"] == []
        assert sandbox.options["outbound_domain_allowlist"] == []
        assert await environment.get_tunnel_url(8000)  # type: ignore[attr-defined]


async def test_other_sandboxes_of_harbor_get_no_ports(
    cloud: FakeModal, maker: SandboxMaker, tmp_path: Path
) -> None:
    plain = SandboxMaker(
        harbor_modal.ModalEnvironment, tmp_path / "plain", task={"docker_image": "x"}
    )
    async with maker.running(), plain.running():
        ports = [list(sandbox.options.get("encrypted_ports", ())) for sandbox in cloud.live]
    assert ports == [[8000], []]


async def test_a_port_that_was_not_opened_is_named(maker: SandboxMaker) -> None:
    async with maker.running() as environment:
        with pytest.raises(ValueError, match="port 9000 has no tunnel"):
            await environment.get_tunnel_url(9000)  # type: ignore[attr-defined]


async def test_a_lifetime_that_is_too_short_is_refused_before_anything_is_created(
    cloud: FakeModal, maker: SandboxMaker
) -> None:
    with pytest.raises(ValueError, match=r"may take 4200 s.*set it to 5100 or more"):
        async with maker.running(sandbox_timeout_secs=5000):
            pass
    assert cloud.sandboxes == []
    async with maker.running(sandbox_timeout_secs=5100):
        assert len(cloud.live) == 1
    with pytest.raises(ValueError, match="may take 9000 s"):
        async with maker.running(sandbox_timeout_secs=5100, trial_time_sec=9000):
            pass


async def test_harbors_own_retry_still_works(cloud: FakeModal, maker: SandboxMaker) -> None:
    cloud.fail_next = 1
    async with maker.running():
        assert list(cloud.live[0].options["encrypted_ports"]) == [8000]


async def test_too_many_is_waited_out(
    cloud: FakeModal, maker: SandboxMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.refuse_next = 3  # harbor itself tries twice, then the limiter pauses
    async with maker.running():
        assert len(cloud.live) == 1


async def test_a_start_that_fails_or_is_cancelled_deletes_what_it_created(
    cloud: FakeModal, maker: SandboxMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = maker.make()
    starting = asyncio.create_task(environment.start(force_build=False))
    while not cloud.sandboxes:  # noqa: ASYNC110
        await asyncio.sleep(0)
    starting.cancel()
    await asyncio.wait([starting])
    assert starting.cancelled()
    await environment.stop(delete=True)
    assert [sandbox.terminations for sandbox in cloud.sandboxes] == [1]

    async def fail(*_: object, **__: object) -> None:
        raise OSError("no directories today")

    monkeypatch.setattr(ApexModalEnvironment, "ensure_dirs", fail)
    with pytest.raises(OSError, match="no directories today"):
        async with maker.running():
            pass
    assert [sandbox.terminations for sandbox in cloud.sandboxes] == [1, 1]


async def test_leftovers_are_those_of_dead_processes_of_this_machine(
    cloud: FakeModal, maker: SandboxMaker
) -> None:
    async with maker.running(), maker.running(), maker.running():
        machine, _, _ = owner_label().rpartition(".")
        cloud.live[0].options["tags"][OWNER_LABEL] = f"{machine}.999999-1"
        cloud.live[1].options["tags"][OWNER_LABEL] = "another-machine.999999-1"
        found = await ApexModalEnvironment.leftovers()
        assert [each.name for each in found] == ["sb-0"]
        await found[0].remove()
        assert [sandbox.terminations for sandbox in cloud.sandboxes] == [1, 0, 0]
        cloud.sandboxes[0].terminations = 0  # the environment deletes it once more at the end
