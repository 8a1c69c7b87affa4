"""The contract of sandbox backends, beyond harbor's: checks for it, and cleaning up.

A backend is a harbor ``BaseEnvironment`` whose class also has

- ``async get_tunnel_url(port: int) -> str``: an ``http://`` or ``https://`` URL that reaches a
  port inside, the same one on every call;
- ``async snapshot(paths, target_path) -> None``: a gzip tar of the paths, written inside;
- optionally the class method ``async leftovers() -> list[Leftover]``: what killed runs left.

``start`` leaves nothing behind when it fails or is cancelled; ``stop`` may be called again.
"""
