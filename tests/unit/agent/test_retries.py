"""What a server may say about when to ask again."""

from __future__ import annotations

import pytest

from skyrl_apex_plugin.agent.retries import retry_after


@pytest.mark.parametrize("value", ["nan", "NaN", "inf", "-inf", "1e999", "soon", ""])
def test_a_wait_that_is_no_time_is_not_taken(value: str) -> None:
    assert retry_after(value) is None


def test_seconds_and_dates_are_taken() -> None:
    assert retry_after("2.5") == 2.5
    assert retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0
