"""Which directories a sandbox's root is made of."""

from __future__ import annotations

from pathlib import Path

import pytest

from skyrl_apex_local.images import Image, find_image, installed_name
from skyrl_apex_local.rootfs import plan_root


def make_image(tmp_path: Path, *files: str) -> Image:
    for name in files:
        path = tmp_path / "image" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return Image(tmp_path / "image")


def plan(tmp_path: Path, image: Image | None, **options: object) -> dict[str, tuple[str, str]]:
    """Mount target to the kind of mount and its source."""
    backing = tmp_path / "backing"
    backing.mkdir()
    given: dict[str, object] = {"python_paths": [], "writable": (), **options}
    arguments = plan_root(backing, image=image, **given)  # type: ignore[arg-type]
    mounts = {}
    for position, part in enumerate(arguments):
        if part in ("--bind", "--ro-bind"):
            source, target = arguments[position + 1 : position + 3]
            mounts[target] = (part, source)
    return mounts


def test_the_system_is_read_only_and_users_are_not_the_hosts(tmp_path: Path) -> None:
    mounts = plan(tmp_path, None)
    assert mounts["/usr"] == ("--ro-bind", "/usr")
    assert mounts["/etc/passwd"][1].startswith(str(tmp_path))
    assert not {"/home", "/etc", "/etc/shadow", "/var", "/root/.ssh"} & set(mounts)
    assert {target for target, (kind, _) in mounts.items() if kind == "--bind"} == {
        *("/filesystem", "/.apps_data", "/logs", "/tests", "/solution", "/tmp", "/var/tmp"),
        *("/var/lib/apex", "/root", "/workspace", "/dev/shm"),
    }


def test_private_directories_start_with_what_the_image_has(tmp_path: Path) -> None:
    image = make_image(tmp_path, "filesystem/a/b.txt", "app/tools/start.sh", "opt/state/x")
    mounts = plan(tmp_path, image, writable=["/opt/state"])
    assert mounts["/app"] == ("--ro-bind", str(tmp_path / "image/app"))
    for target, file in (("/filesystem", "a/b.txt"), ("/opt/state", "x")):
        kind, source = mounts[target]
        assert kind == "--bind"
        assert Path(source).is_relative_to(tmp_path / "backing")
        assert (Path(source) / file).exists()


def test_a_mount_below_an_image_directory_leaves_its_neighbours_visible(tmp_path: Path) -> None:
    image = make_image(tmp_path, "bin/sh", "var/tmp/x", "var/cache/y")
    mounts = plan(tmp_path, image)
    assert "/usr" not in mounts
    assert mounts["/var/cache"] == ("--ro-bind", str(tmp_path / "image/var/cache"))
    assert mounts["/var/tmp"][0] == "--bind"
    assert "/var" not in mounts


def test_an_image_that_would_replace_half_of_the_system_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has usr/ but no /bin/sh"):
        plan(tmp_path, make_image(tmp_path, "usr/lib/x.so"))


def test_python_is_bound_at_its_own_path_unless_the_system_has_it(tmp_path: Path) -> None:
    mounts = plan(tmp_path, None, python_paths=[Path("/usr/local"), tmp_path])
    assert mounts[str(tmp_path)] == ("--ro-bind", str(tmp_path))
    assert "/usr/local" not in mounts


def test_an_option_names_an_image_before_the_images_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APEX_IMAGES_DIR", str(tmp_path))
    installed = tmp_path / installed_name("reg.example/a/b:1")
    installed.mkdir()
    assert installed.name == "reg.example@a@b@1"
    assert find_image("reg.example/a/b:1", {}).directory == installed
    (tmp_path / "other").mkdir()
    chosen = find_image("reg.example/a/b:1", {"reg.example/a/b:1": str(tmp_path / "other")})
    assert chosen.directory == tmp_path / "other"
