"""Waiting for the experiment, and ending it in order when the user does not want to."""

from __future__ import annotations

from typing import Any

import ray

from .launch import interruptible, undisturbed

INTERRUPTED = 130
"""Exit status of a run that was stopped, as shells have it."""

GRACE_SECONDS = 30.0
"""How long a cancelled experiment may take to stop its trials and sandboxes."""


def run_to_the_end(task: Any, *arguments: Any) -> Any:
    """Start a remote experiment and return its result. Ctrl-C and SIGTERM cancel it: its event
    loop stops every trial with its sandbox, and Ray goes down with its processes only then.

    Raises ``SystemExit`` then, and whatever the experiment raised otherwise.

    :param task: the remote function; ``arguments`` are its own.
    """
    experiment = None
    with interruptible():
        try:
            experiment = task.remote(*arguments)
            return ray.get(experiment)
        except KeyboardInterrupt:
            if experiment is not None:
                ray.cancel(experiment)
                ray.wait([experiment], timeout=GRACE_SECONDS)
            raise SystemExit(INTERRUPTED) from None
        finally:
            with undisturbed():
                ray.shutdown()
