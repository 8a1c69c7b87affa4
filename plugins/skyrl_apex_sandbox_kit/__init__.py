"""What sandbox backends share: paced creation, and a form for what killed runs leave behind.

Standard library only. Backends of other packages may use it, and need not.
"""

from .creation import CreationLimiter, TooMany, limiter_for
from .leftovers import Leftover

__all__ = ["CreationLimiter", "Leftover", "TooMany", "limiter_for"]
