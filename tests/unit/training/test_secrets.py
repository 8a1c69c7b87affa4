"""What is printed and written of a configuration that holds secrets."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from skyrl_apex_plugin.cli.train import _shown
from skyrl_apex_plugin.training.secrets import redacted, redacted_setting

VALUE = "sk-123/+x"


@pytest.mark.parametrize(
    "name",
    [
        "api_key", "apiKey", "API_KEY", "apikey", "x-api-key", "AWS_SECRET_ACCESS_KEY",
        "secret_key", "access_key", "private_key", "passwd", "password", "passphrase", "token",
        "hf_token", "client_secret", "credentials", "Authorization", "api_keys",
    ],
)  # fmt: skip
@pytest.mark.parametrize("value", [VALUE, [VALUE], {"a": VALUE}, {"a": [{"b": VALUE}]}])
def test_nothing_under_a_secrets_name_is_shown(name: str, value: Any) -> None:
    assert VALUE not in str(redacted({"x": [{name: value}]}))
    assert VALUE not in redacted_setting(f"apex.sampler.kwargs.{name}={value}")
    assert VALUE not in redacted_setting(f"+apex.sampler.kwargs={{{name}: {value}}}")
    assert VALUE not in redacted_setting(f"apex.sampler.kwargs.{name}.a={VALUE}")


def test_a_number_is_secret_too_unless_it_counts_tokens() -> None:
    kept = {"max_tokens": 7, "add_bos_token": True, "api_key": None, "token": ""}
    assert redacted(kept) == kept
    assert redacted({"password": 1234}) == {"password": "***"}


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://u:pw@host/v1", "http://***@host/v1"),
        ("https://u:p@w@host", "https://***@host"),
        ("http://host/v1?api_key=sk-1&n=2", "http://host/v1?api_key=***&n=2"),
        ("http://host/a@b", "http://host/a@b"),
        ("a@b.example", "a@b.example"),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    assert redacted({"base_url": [url]}) == {"base_url": [shown]}
    assert redacted_setting(f"a.base_url={url}") == f"a.base_url={shown}"


@pytest.mark.parametrize(
    "setting",
    [
        "trainer.lr=1e-6",
        "a.b=[x,y]",
        "a.b={max_tokens: 5, c: off}",
        "a.max_tokens=2048",
        "a.api_key_env=MY_KEY",
        "a.b='not: [yaml'",
        "--flag",
        "a.b=",
        "a.b=null",
    ],
)
def test_other_settings_are_shown_as_they_were_written(setting: str) -> None:
    assert redacted_setting(setting) == setting


def test_the_printed_command_line_holds_no_secret() -> None:
    secret = [f"apex.sampler.kwargs.api_key={VALUE}", f"apex.sampler.kwargs={{api_key:{VALUE}}}"]
    shown = _shown(["/usr/bin/python", "-m", "skyrl", "a.b=1", *secret])
    assert VALUE not in shown
    assert shlex.split(shown)[:4] == ["python", "-m", "skyrl", "a.b=1"]
