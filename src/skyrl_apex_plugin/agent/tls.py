"""One TLS context for all HTTP clients of a process."""

from __future__ import annotations

import functools
import ssl


@functools.cache
def shared_tls() -> ssl.SSLContext:
    """A verifying context. Building one reads the system's certificates: about 20 ms and half a
    megabyte, which every client of every trial would pay again."""
    return ssl.create_default_context()
