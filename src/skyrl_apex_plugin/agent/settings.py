"""The agent's settings: keyword arguments of the agent and keys of ``apex.agent`` alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self, get_args

Mode = Literal["tito", "chat"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareSettings:
    """How a world is started (``prepare.*``)."""

    start_command: str = "/app/tools/start.sh"
    """Run with the task's slug where the image has it; other images start by themselves."""
    port: int = 8000
    gateway_url: str | None = None
    """The gateway's address, for sandboxes without tunnels."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Extra environment of the world: interface mode, flags of single servers."""
    offline: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By required key: the environment that puts its server into offline mode. Used, and allowed,
    only when the key is missing."""
    apt_packages: tuple[str, ...] = ()
    pip_packages: tuple[str, ...] = ()
    permissions: Mapping[str, str] = field(default_factory=dict)
    """Path to mode (``{"/filesystem": "a+rwX"}``), applied recursively."""
    apps: Mapping[str, Any] | None = None
    """Body of ``POST /apps``, for gateways that serve no tools before it."""
    servers: tuple[str, ...] = ()
    """Names of the servers whose tools must show, instead of those that are declared elsewhere."""
    servers_file: str = "/app/mcp.json"
    """A file of the image whose ``mcpServers`` declare them, where nothing else does."""
    snapshot_paths: tuple[str, ...] = ("/filesystem", "/.apps_data")
    snapshot_target: str = "/var/lib/apex/initial_snapshot.tar.gz"
    step_timeout_sec: float = 120.0
    """Limit of each preparation step; packages get five times as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """Times are seconds, sizes tokens. See ``docs/agent.md`` for each key."""

    mode: Mode | None = None
    """``tito`` (token IDs in and out, needs ``tokenizer``) or ``chat``; by default ``tito`` when
    a tokenizer is given."""
    tokenizer: str | None = None
    renderer: str = "auto"
    sampler: Mapping[str, Any] = field(default_factory=lambda: {"name": "completions"})
    max_turns: int = 100
    turn_max_tokens: int = 4096
    max_context: int = 32768
    temperature: float = 1.0
    top_p: float = 1.0
    timeout_sec: float | None = None
    tool_timeout_sec: float = 180.0
    tool_timeouts: Mapping[str, float] = field(default_factory=dict)
    tool_output_max_tokens: int = 8192
    read_only_tools: tuple[str, ...] = ()
    reconnect_timeout_sec: float = 60.0
    budget_warning_tokens: int | None = None
    extra_prompt: str = ""
    use_hints: bool = False
    final_answer_tool: str | None = None
    max_corrections: int = 3
    world_start_timeout_sec: float = 330.0
    prepare: PrepareSettings = field(default_factory=PrepareSettings)
    api_base: str | None = None
    """Chat mode: an OpenAI-compatible endpoint, spoken to without litellm."""
    images: bool = False
    """Chat mode: the model takes images."""
    rollout_details: bool = True
    """Whether harbor's result carries every turn's prompt: it grows with turns times context."""

    @classmethod
    def from_kwargs(cls, kwargs: Mapping[str, Any]) -> Self:
        """Build settings from JSON-able keyword arguments.

        :raises ValueError: an unknown key, or a value out of range; names the known keys.
        """
        values = _known(cls, kwargs, "agent")
        prepare = values.get("prepare")
        if isinstance(prepare, Mapping):
            values["prepare"] = PrepareSettings(
                **_tuples(PrepareSettings, _known(PrepareSettings, prepare, "agent.prepare"))
            )
        settings = cls(**_tuples(cls, values))
        settings._check()
        return settings

    @property
    def resolved_mode(self) -> Mode:
        return self.mode or ("tito" if self.tokenizer else "chat")

    def _check(self) -> None:
        if self.mode is not None and self.mode not in get_args(Mode):
            raise ValueError(f"agent.mode={self.mode!r}; known: {', '.join(get_args(Mode))}")
        if self.resolved_mode == "tito" and not self.tokenizer:
            raise ValueError("agent.mode='tito' needs agent.tokenizer, the path of a tokenizer")
        if "name" not in self.sampler or self.sampler.keys() - {"name", "kwargs"}:
            raise ValueError(
                f'agent.sampler={dict(self.sampler)!r}; expected {{"name": …, "kwargs": {{…}}}}'
            )
        for name in ("max_turns", "turn_max_tokens", "max_context", "tool_output_max_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"agent.{name}={getattr(self, name)!r}; expected at least 1")
        for name in ("tool_timeout_sec", "world_start_timeout_sec", "timeout_sec"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"agent.{name}={value!r}; expected more than 0 seconds")


def _known(cls: type[Any], values: Mapping[str, Any], where: str) -> dict[str, Any]:
    names = {item.name for item in fields(cls)}
    unknown = sorted(values.keys() - names)
    if unknown:
        raise ValueError(f"unknown {where} keys {unknown}; known: {', '.join(sorted(names))}")
    return dict(values)


def _tuples(cls: type[Any], values: dict[str, Any]) -> dict[str, Any]:
    """JSON has no tuples; fields annotated as tuples take its lists."""
    listed = {item.name for item in fields(cls) if str(item.type).startswith("tuple")}
    return {
        name: tuple(value) if name in listed and value is not None else value
        for name, value in values.items()
    }
