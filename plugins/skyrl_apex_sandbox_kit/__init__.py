"""What sandbox backends share: paced creation, ownership and leftovers, exec that ends what it
started. Standard library only. Backends of other packages may use it, and need not.
"""

from .creation import CreationLimiter, TooMany, limiter_for
from .leftovers import Leftover
from .owner import OWNER_LABEL, is_alive, owner_is_gone, owner_label, process_identity
from .remote import exec_and_kill, snapshot_command, start_or_undo
from .world import LOG_DIRECTORIES, image_of_task

__all__ = [
    "LOG_DIRECTORIES",
    "OWNER_LABEL",
    "CreationLimiter",
    "Leftover",
    "TooMany",
    "exec_and_kill",
    "image_of_task",
    "is_alive",
    "limiter_for",
    "owner_is_gone",
    "owner_label",
    "process_identity",
    "snapshot_command",
    "start_or_undo",
]
