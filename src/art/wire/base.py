"""The common base of all wire models."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Name = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^\.*[A-Za-z0-9_-][A-Za-z0-9._-]*$")]
"""The name of a project, a model or a rollout. It is also the name of a directory: no separators, and not dots alone."""

Step = Annotated[int, Field(ge=0, lt=2**31)]
"""A policy version."""


class Wire(BaseModel):
    """A model that crosses the wire. Unknown fields are errors, so that typos do not pass silently."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())
