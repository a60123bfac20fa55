"""Sandboxes whose namespaces and mounts bubblewrap makes, one `bwrap` for each.

For hosts that refuse raw namespaces to this service but let `bwrap` make them (it may be set-uid there). Inside, the same init as
of the namespaces backend closes the remaining doors: rlimits, capabilities, no-new-privileges, the filter. Control groups
are the same, too.
"""

from temper.sandbox.engine.bubblewrap.backend import BubblewrapBackend

__all__ = ["BubblewrapBackend"]
