"""The common base of all wire models."""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler
from pydantic_core import CoreSchema

Name = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^\.*[A-Za-z0-9_-][A-Za-z0-9._-]*$")]
"""The name of a project, a model or a rollout. It is also the name of a directory: no separators, and not dots alone."""

Step = Annotated[int, Field(ge=0, lt=2**31)]
"""A policy version."""


def _without_example(schema: dict[str, Any]) -> None:
    """Leave Python's examples out of what other languages read, such as the OpenAPI description."""
    if "description" in schema:
        schema["description"] = schema["description"].partition("\n\n>>> ")[0]


class Wire(BaseModel):
    """A model that crosses the wire. Unknown fields are errors: a typing mistake must not pass in silence."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=(), json_schema_extra=_without_example)


class WireEnum(StrEnum):
    """A choice of words that crosses the wire."""

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = handler(core_schema)
        _without_example(handler.resolve_ref_schema(schema))
        return schema
