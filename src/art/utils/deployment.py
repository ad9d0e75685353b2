"""Not offered, and an ``ImportError`` that says so: ART deploys to no hosted service.

``art export`` writes what every host takes; ``art serve`` serves on a machine of your own.
"""

raise ImportError(
    "art.utils.deployment is not here: ART deploys to no hosted service. `art export PROJECT/NAME` writes a checkpoint as a PEFT "
    "adapter or as whole weights, which every host takes; `art serve` serves it on a machine of your own."
)
