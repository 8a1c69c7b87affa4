"""``skyrl-apex data`` apart from extraction: pack, validate, stats, sample, pull."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from skyrl_apex_miniworld.build import draw_split
from skyrl_apex_miniworld.tasks import write_task
from skyrl_apex_plugin.cli.data import data
from skyrl_apex_plugin.data.dataset import TaskDataset
from skyrl_apex_plugin.data.picture import histogram
from skyrl_apex_plugin.data.shards import read_rows, write_shard


def run(*arguments: Any) -> Result:
    return CliRunner().invoke(data, [str(each) for each in arguments])


@pytest.fixture
def tasks(make_task: Any, tmp_path: Path) -> Path:
    make_task("a", criteria=3)
    make_task(
        "b",
        criteria=1,
        world_short_name="investment-banking-07",
        world_id="w2",
        ecr_image="registry/bank:1",
        needs_snapshot=True,
    )
    return tmp_path / "tasks"


def test_packing_is_reproducible_and_goes_there_and_back(tasks: Path, tmp_path: Path) -> None:
    assert run("pack", tasks, tmp_path / "one.parquet").exit_code == 0
    (tasks / "a/instruction.md").touch()  # times do not count
    assert run("pack", tasks, tmp_path / "two.parquet").exit_code == 0
    assert (tmp_path / "one.parquet").read_bytes() == (tmp_path / "two.parquet").read_bytes()
    assert run("extract", tmp_path / "one.parquet", tmp_path / "out").exit_code == 0
    for path in tasks.rglob("*"):
        back = tmp_path / "out" / path.relative_to(tasks)
        assert back.stat().st_mode & 0o100 == path.stat().st_mode & 0o100
        assert path.is_dir() or back.read_bytes() == path.read_bytes()
    assert run("pack", tmp_path / "out", tmp_path / "three.parquet").exit_code == 0
    assert (tmp_path / "one.parquet").read_bytes() == (tmp_path / "three.parquet").read_bytes()


def test_a_file_of_several_names_is_packed_under_each(tasks: Path, tmp_path: Path) -> None:
    (tasks / "a/tests/again.md").hardlink_to(tasks / "a/instruction.md")
    (tasks / "b/tests/again.md").hardlink_to(tasks / "a/instruction.md")
    assert run("pack", tasks, tmp_path / "s.parquet").exit_code == 0
    assert run("extract", tmp_path / "s.parquet", tmp_path / "out").exit_code == 0
    for name in ("a/instruction.md", "a/tests/again.md", "b/tests/again.md"):
        assert (tmp_path / "out" / name).read_text() == "Do a.\n"


@pytest.mark.parametrize("target", ["/etc/passwd", "../../x", "tests/../task.toml"])
def test_pack_takes_no_link_that_extract_refuses(tasks: Path, tmp_path: Path, target: str) -> None:
    (tasks / "b/link").symlink_to(target)
    (tmp_path / "s.parquet").write_text("the old one")
    result = run("pack", tasks, tmp_path / "s.parquet")
    assert result.exit_code == 1 and f"b: member 'link' links to {target!r}" in result.stderr
    assert (tmp_path / "s.parquet").read_text() == "the old one"
    assert {path.name for path in tmp_path.iterdir()} == {"tasks", "s.parquet"}


def test_places_that_cannot_be_written_are_named(tasks: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("")
    run("pack", tasks, tmp_path / "s.parquet")
    for arguments in (
        ["pack", tasks, blocked / "s.parquet"],
        ["pull", tmp_path / "s.parquet", blocked / "out"],
        ["stats", tasks, "--picture", blocked / "stats.svg"],
        ["validate", tmp_path / "s.parquet", "--cache-dir", blocked / "cache"],
    ):
        result = run(*arguments)
        assert result.exit_code == 1 and isinstance(result.exception, SystemExit), result.exception
        assert str(blocked) in result.stderr and result.stderr.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} == {"tasks", "s.parquet", "blocked"}


def test_two_packs_at_once_do_not_mix(tasks: Path, tmp_path: Path) -> None:
    target = tmp_path / "s.parquet"

    def rows() -> Iterator[tuple[str, bytes]]:
        yield "outer", b"1"
        write_shard(target, [("inner", b"2")])
        yield "outer-too", b"3"

    assert write_shard(target, rows()) == 2
    assert [row.path for row in read_rows(target)] == ["outer", "outer-too"]


def test_a_dataset_reads_a_shard_through_the_cache(tasks: Path, tmp_path: Path) -> None:
    shard = tmp_path / "s.parquet"
    run("pack", tasks, shard)
    dataset = TaskDataset([shard], cache_dir=tmp_path / "cache")
    assert [dataset[i]["uid"] for i in range(len(dataset))] == ["a", "b"]
    directory = Path(dataset[0]["env_extras"]["task_dir"])
    (directory / "mark").touch()
    TaskDataset([shard], cache_dir=tmp_path / "cache")
    assert (directory / "mark").exists(), "a whole shard is not extracted again"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(ValueError, match="not a parquet file"):
        TaskDataset([shard], cache_dir=tmp_path / "cache")


def test_valid_tasks_pass_and_images_are_listed_by_world(tasks: Path, make_task: Any) -> None:
    result = run("validate", tasks)
    assert result.exit_code == 0, result.output
    assert "world law-01: registry/world:1" in result.output
    assert "2 tasks, 0 errors, 0 warnings" in result.output
    make_task("c", ecr_image="registry/world:2")
    assert "registry/world:1, registry/world:2  (2 images for one world)" in (
        run("validate", tasks).output
    )


def edit(path: Path, **changes: Any) -> None:
    document = json.loads(path.read_text())
    target = document[0] if isinstance(document, list) else document
    for key, value in changes.items():
        if value is KeyError:
            del target[key]
        else:
            target[key] = value
    path.write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("archipelago.json", {"task_id": ""}, "task_id is ''"),
        ("archipelago.json", {"task_name": 3}, "task_name is 3"),
        ("archipelago.json", {"task_slug": KeyError}, "task_slug is None"),
        ("archipelago.json", {"world_id": None}, "world_id is None"),
        ("archipelago.json", {"world_short_name": KeyError}, "world_short_name is None"),
        ("archipelago.json", {"ecr_image": KeyError}, "ecr_image is None"),
        ("archipelago.json", {"required_env_keys": "A"}, "required_env_keys is 'A'"),
        ("archipelago.json", {"required_env_keys": ["NOT_SET_KEY"]}, "key NOT_SET_KEY is not in"),
        ("archipelago.json", {"needs_snapshot": "no"}, "needs_snapshot is 'no'"),
        ("archipelago.json", {"mcp_servers": "files"}, "mcp_servers is 'files'"),
        ("archipelago.json", {"mcp_servers": [1]}, "mcp_servers is [1]"),
        ("tests/verifiers.json", {"verifier_id": KeyError}, "entry 0: verifier_id is missing"),
        ("tests/verifiers.json", {"verifier_values": {}}, "criteria is None"),
        ("tests/verifiers.json", {"verifier_values": "x"}, "verifier_values is 'x'"),
        ("tests/verifiers.json", {"verifier_index": "x"}, "verifier_index is 'x'"),
        ("tests/verifiers.json", {"verifier_id": "a-1"}, "'a-1' appears twice"),
        ("tests/verifiers.json", {"verifier_dependencies": ["zzz"]}, "depends on 'zzz'"),
    ],
)
def test_every_field_is_checked(tasks: Path, file: str, changes: Any, message: str) -> None:
    edit(tasks / "a" / file, **changes)
    result = run("validate", tasks)
    assert result.exit_code == 1
    assert f"error: a: {file}: " in result.output and message in result.output


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("archipelago.json", "{", "is not JSON"),
        ("archipelago.json", None, "is missing"),
        ("instruction.md", " \n", "is empty"),
        ("instruction.md", None, "is missing"),
        ("task.toml", "[verifier", "error: a: task.toml"),
        ("task.toml", '[agent]\ntimeout_sec = "soon"\n', "agent.timeout_sec"),
        ("task.toml", '[verifier.env]\nK = "${NOT_SET_KEY}"\n', "forwards NOT_SET_KEY"),
        ("task.toml", '[environment.env]\nK = "${not.set}"\n', "forwards not.set"),
        ("tests/test.sh", None, "tests/test.sh: is missing"),
        ("tests/verifiers.json", "[]", "has no criteria"),
        ("tests/verifiers.json", "{}", "holds a dict"),
        ("tests/golden_responses.json", "{}", "holds a dict"),
        ("tests/golden_responses.json", "[" * 200_000, "is not JSON"),
        ("task.toml", b"\xff", "error: a: task.toml"),
        *(
            (file, content, f"error: a: {file}")
            for file in ("archipelago.json", "instruction.md", "tests/verifiers.json")
            for content in (b"\xff", Path())
        ),
    ],
)
def test_every_file_is_checked(tasks: Path, file: str, content: Any, message: str) -> None:
    path = tasks / "a" / file
    put(path, content)
    result = run("validate", tasks)
    assert result.exit_code == 1 and message in result.output


def put(path: Path, content: str | bytes | Path | None) -> None:
    """Leave ``content`` at ``path``, where a path stands for a directory."""
    path.unlink()
    if isinstance(content, Path):
        path.mkdir()
    elif content is not None:
        path.write_bytes(content.encode() if isinstance(content, str) else content)


UNREADABLE: list[Any] = [b"\xff", Path()]


@pytest.mark.parametrize(
    ("file", "content"),
    [("instruction.md", content) for content in UNREADABLE]
    + [
        (file, content)
        for file in ("archipelago.json", "tests/verifiers.json")
        for content in (*UNREADABLE, "{", "[1]", "[" * 200_000)
    ],
    ids=lambda value: f"{value!s:.30}",
)
def test_what_cannot_be_read_is_named_in_one_line(tasks: Path, file: str, content: Any) -> None:
    put(tasks / "a" / file, content)
    for command in (["stats"], ["sample", 2]):
        result = run(*command, tasks)
        assert result.exit_code == 1 and isinstance(result.exception, SystemExit), result.exception
        assert str(tasks / "a") in result.stderr and result.stderr.count("\n") == 1


def test_values_of_a_criterion_are_an_object(tasks: Path) -> None:
    edit(tasks / "a/tests/verifiers.json", verifier_values="a text")
    for command in (["stats"], ["sample", 2]):
        stderr = run(*command, tasks).stderr
        assert "a/tests/verifiers.json: verifier_values of entry 0 is no object" in stderr


def test_the_sample_world_passes_strictly(tmp_path: Path) -> None:
    for task in draw_split(0, held_out=True).tasks:
        write_task(task, "registry/world:1", tmp_path / task.slug)
    result = run("validate", tmp_path, "--strict")
    assert result.exit_code == 0 and "0 errors, 0 warnings" in result.output, result.output


def test_a_warning_fails_strictly(tasks: Path) -> None:
    (tasks / "a/tests/golden_responses.json").unlink()
    assert run("validate", tasks).exit_code == 0
    assert run("validate", tasks, "--strict").exit_code == 1


def test_keys_are_looked_for_and_never_shown(tasks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "s3cret-value")
    edit(tasks / "a/archipelago.json", required_env_keys=["SOME_KEY"])
    result = run("validate", tasks, "--json")
    assert result.exit_code == 0 and "s3cret-value" not in result.output
    assert json.loads(result.output)["tasks"] == 2


def test_statistics_as_table_json_and_picture(tasks: Path, tmp_path: Path) -> None:
    table = run("stats", tasks, "--picture", tmp_path / "stats.svg").output
    assert "investment-banking" in table and "with snapshots" in table
    svg = ElementTree.fromstring((tmp_path / "stats.svg").read_text())
    assert "2 tasks in 2 worlds" in "".join(svg.itertext())
    figures = json.loads(run("stats", tasks, "--json").output)
    assert figures["kinds"] == {"law": 1, "investment-banking": 1}
    assert figures["criteria"] == {"least": 1, "median": 2, "p90": 3, "greatest": 3}


def test_histogram_covers_every_value() -> None:
    assert histogram([1, 1, 2]) == [("1", 2), ("2", 1)]
    wide = histogram(list(range(100)), bins=8)
    assert sum(count for _, count in wide) == 100 and wide[-1][0] == "91 to 103"


def test_sample_is_seeded_and_filtered(tasks: Path) -> None:
    assert run("sample", 1, tasks).output == run("sample", 1, tasks).output
    shown = run("sample", 9, tasks, "--where", 'world_kind == "law"').output
    assert "Do a." in shown and "Criterion 2" in shown and "Do b." not in shown
    lines = run("sample", 9, tasks, "--json").output.splitlines()
    assert {json.loads(line)["task_id"] for line in lines} == {"a", "b"}
    assert "not an expression" in run("sample", 1, tasks, "--where", "((").stderr
    nothing = run("sample", 1, tasks, "--where", 'world_kind == "none"')
    assert nothing.exit_code == 1 and "no task matches" in nothing.stderr


@pytest.mark.parametrize(
    "text",
    [
        "criteria / 0",
        "criteria % 0",
        "10.0 ** 400",
        "world_kind|round",
        "[]|random > 1",
        "task_id + 1",
        "'%d' % task_id",
        "'{x}'.format()",
        "task_id|sum",
        "nobody",
        "task_id.x.y",
    ],
)
def test_an_expression_that_fails_is_shown_with_what_it_may_use(tasks: Path, text: str) -> None:
    result = run("sample", 1, tasks, "--where", text)
    assert result.exit_code == 1 and isinstance(result.exception, SystemExit), result.exception
    assert f"--where={text!r}: " in result.stderr and "Known names: criteria" in result.stderr


def test_a_curriculum_that_gives_no_order_is_named(tasks: Path) -> None:
    with pytest.raises(ValueError, match=r"curriculum='.*' gives no order"):
        TaskDataset([tasks], curriculum="criteria if criteria > 2 else task_id")


def test_pull_from_local_shards(tasks: Path, tmp_path: Path) -> None:
    run("pack", tasks / "a", tmp_path / "shards/one.parquet")
    run("pack", tasks / "b", tmp_path / "shards/more/two.parquet")
    result = run("pull", tmp_path / "shards", tmp_path / "out")
    assert result.exit_code == 0 and "2 tasks extracted" in result.output
    assert run("validate", tmp_path / "out").exit_code == 0
    assert "OWNER/NAME" in run("pull", tmp_path / "nowhere", tmp_path / "out").stderr


class Hub(BaseHTTPRequestHandler):
    """The three requests that huggingface_hub makes for a dataset snapshot."""

    files: dict[str, bytes] = {}  # noqa: RUF012
    commit = "0" * 40

    def do_GET(self) -> None:
        if self.path.startswith("/api/datasets/acme/tasks"):
            names = [{"rfilename": name} for name in self.files]
            listed = [
                {"type": "file", "path": n, "size": len(d), "oid": "x"}
                for n, d in self.files.items()
            ]
            document: Any = (
                listed
                if "/tree/" in self.path
                else {"id": "acme/tasks", "sha": self.commit, "siblings": names}
            )
            self._send(json.dumps(document).encode(), "application/json")
        elif self.path.startswith("/datasets/acme/tasks/resolve/"):
            self._send(self.files[self.path.rpartition("/")[2]], "application/octet-stream")
        else:
            self.send_error(404)

    do_HEAD = do_GET

    def _send(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.send_header("etag", f'"{len(body)}"')
        self.send_header("x-repo-commit", self.commit)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


Pull = Callable[[], "subprocess.CompletedProcess[str]"]


@pytest.fixture
def pull(tmp_path: Path) -> Iterator[Pull]:
    """Pulls ``acme/tasks`` of :class:`Hub` into ``out``."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    Thread(target=server.serve_forever, daemon=True).start()
    script = (
        "from skyrl_apex_plugin.cli.main import main; "
        f"main(['data', 'pull', 'acme/tasks', {str(tmp_path / 'out')!r}])"
    )
    env = {
        **os.environ,
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_DISABLE_XET": "1",
    }
    yield lambda: subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True
    )
    server.shutdown()


def test_pull_from_a_hub(tasks: Path, tmp_path: Path, pull: Pull) -> None:
    run("pack", tasks, tmp_path / "train.parquet")
    Hub.files = {"train.parquet": (tmp_path / "train.parquet").read_bytes(), "README.md": b"hi"}
    done = pull()
    assert done.returncode == 0, done.stderr
    assert "2 tasks extracted" in done.stdout
    assert run("validate", tmp_path / "out").exit_code == 0
    assert not list((tmp_path / "out").rglob("README.md")), "only shards are fetched"


def test_a_shard_that_a_revision_renamed_is_not_read_twice(
    tasks: Path, tmp_path: Path, pull: Pull, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("pack", tasks, tmp_path / "train.parquet")
    content = (tmp_path / "train.parquet").read_bytes()
    Hub.files = {"train.parquet": content, "gone.parquet": b""}
    assert pull().returncode == 1, "an empty file is no shard"
    fetched = tmp_path / "out/.skyrl-apex/shards"
    (fetched / "mine.parquet").write_bytes(content)
    Hub.files = {"part-0.parquet": content}
    monkeypatch.setattr(Hub, "commit", "1" * 40)
    done = pull()
    assert done.returncode == 0 and "2 tasks extracted" in done.stdout, done.stderr
    left = {path.name for path in fetched.glob("*.parquet")}
    assert left == {"part-0.parquet", "mine.parquet"}, "what was not pulled is not removed"
    Hub.files = {"README.md": b"hi"}
    assert "'acme/tasks' has no parquet shard" in pull().stderr
