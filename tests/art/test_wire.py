"""What other languages read of the contract."""

import enum
import inspect

import pytest
from pydantic import BaseModel, TypeAdapter

from art import wire

TYPES = [value for value in vars(wire).values() if isinstance(value, type) and issubclass(value, BaseModel | enum.Enum)]


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.__name__)
def test_a_schema_describes_its_type_without_examples_in_python(kind):
    schema = TypeAdapter(kind).json_schema()
    assert schema["description"] == inspect.cleandoc(kind.__doc__).partition("\n\n>>> ")[0]
    assert ">>>" not in str(schema)
