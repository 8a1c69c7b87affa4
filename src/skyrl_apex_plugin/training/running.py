"""Waiting for the experiment, and ending it in order when the user does not want to."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import ray

GRACE_SECONDS = 30.0
"""How long a cancelled experiment may take to stop its trials and sandboxes."""


def run_to_the_end(experiment: Any) -> Any:
    """The result of a remote experiment. Ctrl-C and SIGTERM cancel it: its event loop stops every
    trial with its sandbox, and Ray goes down with its processes only then.

    :param experiment: the object reference of the experiment's task.
    """
    with _terminated_like_interrupted():
        try:
            return ray.get(experiment)
        except KeyboardInterrupt:
            ray.cancel(experiment)
            ray.wait([experiment], timeout=GRACE_SECONDS)
            raise
        finally:
            ray.shutdown()


@contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
