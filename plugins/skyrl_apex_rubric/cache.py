"""Judgements on disk: the same question to the same judge is paid for once."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import uuid
from pathlib import Path
from typing import Any

from .prompt import BadReply, Judgement, read_reply

logger = logging.getLogger(__name__)


class JudgementCache:
    """One small JSON file for each question, written atomically; safe between processes."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def key(self, **question: Any) -> str:
        """Digest of everything that a judgement depends on."""
        text = json.dumps(question, sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def get(self, key: str) -> Judgement | None:
        """The stored judgement, or ``None``. A damaged file counts as absent, with a warning."""
        path = self._path(key)
        try:
            return read_reply(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (BadReply, UnicodeDecodeError) as error:
            logger.warning("judgement cache: %s is damaged and is asked for again: %s", path, error)
            return None

    def put(self, key: str, judgement: Judgement) -> None:
        """Store a judgement. Only whole, valid ones are ever stored; faults never are."""
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        document = {"rationale": judgement.rationale, "is_criteria_true": judgement.met}
        temporary.write_text(json.dumps(document), encoding="utf-8")
        os.replace(temporary, path)

    def _path(self, key: str) -> Path:
        return self._directory / key[:2] / f"{key}.json"
