"""Names and keywords that scripts of the older ART library use, as thin layers over ours. docs/migrating.md lists them.

Nothing of ours imports this package; ``art`` reaches it when a script asks for one of its names.
"""

from art.compat.training import train_and_log, translate

__all__ = ["train_and_log", "translate"]
