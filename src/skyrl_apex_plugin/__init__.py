"""RL training of knowledge-work agents on stock SkyRL and stock harbor.

Importing this package imports nothing heavy: no torch, ray, vllm, litellm or modal.
"""

__version__ = "0.1.0"
