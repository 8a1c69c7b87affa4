"""Waiting for the experiment, and ending it in order when the user does not want to."""

from __future__ import annotations

from typing import Any

import ray

from .launch import interruptible, undisturbed

INTERRUPTED = 130
"""Exit status of a run that was stopped, as shells have it."""

GRACE_SECONDS = 30.0
"""How long a cancelled experiment may take to stop its trials and sandboxes."""


def run_to_the_end(experiment: Any) -> Any:
    """The result of a remote experiment. Ctrl-C and SIGTERM cancel it: its event loop stops every
    trial with its sandbox, and Ray goes down with its processes only then.

    Raises ``SystemExit`` then, and whatever the experiment raised otherwise.

    :param experiment: the object reference of the experiment's task.
    """
    with interruptible():
        try:
            return ray.get(experiment)
        except KeyboardInterrupt:
            with undisturbed():
                ray.cancel(experiment)
                ray.wait([experiment], timeout=GRACE_SECONDS)
            raise SystemExit(INTERRUPTED) from None
        finally:
            with undisturbed():
                ray.shutdown()
