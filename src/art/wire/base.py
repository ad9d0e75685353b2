"""The common base of all wire models."""

from pydantic import BaseModel, ConfigDict


class Wire(BaseModel):
    """A model that crosses the wire. Unknown fields are errors: a typing mistake must not pass in silence."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())
