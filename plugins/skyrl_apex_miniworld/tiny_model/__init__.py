"""A model of 2M parameters that works in the sample world: tokenizer, template and warm-up.

``python -m skyrl_apex_miniworld.tiny_model OUT`` makes it from nothing on a CPU. It calls tools
and solves a part of the tasks; what it lacks are choices between plausible ways, which is what
reinforcement learning then teaches it.
"""

from __future__ import annotations

from pathlib import Path


def checkpoint() -> Path:
    """Folder of the checkpoint that ships: weights, configuration, tokenizer, chat template."""
    return Path(__file__).parents[1] / "checkpoint"
