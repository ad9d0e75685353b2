"""Structures that end a process that compiles them, or keep it busy."""

import json

from art_backend.tokens.grammar import Structure


def chain(length, link):
    """A schema of definitions, each of which refers to the next."""
    definitions = {f"d{i}": link({"$ref": f"#/$defs/d{i + 1}"}) for i in range(length)}
    return {"$defs": {**definitions, f"d{length}": {"type": "string"}}, "$ref": "#/$defs/d0"}


def objects(length):
    return chain(length, lambda next_one: {"type": "object", "properties": {"a": next_one}, "required": ["a"]})


def rules(length, name="r"):
    lines = [f"start: {name}0", *(f"{name}{i}: {name}{i + 1}" for i in range(length)), f'{name}{length}: "a"']
    return "\n".join(lines) + "\n"


FLAT = {
    "2000 references": Structure("json", json.dumps(objects(2000))),
    "2000 links of allOf": Structure("json", json.dumps(chain(2000, lambda next_one: {"allOf": [next_one]}))),
    "4000 rules": Structure("grammar", rules(4000)),
    "4000 terminals": Structure("grammar", rules(4000, "R")),
}
"""More than the limits allow."""

DEEP = {
    "300 references": Structure("json", json.dumps(objects(300))),
    "400 links of allOf": Structure("json", json.dumps(chain(400, lambda next_one: {"allOf": [next_one]}))),
    "1500 rules": Structure("grammar", rules(1500)),
    "1500 terminals": Structure("grammar", rules(1500, "R")),
    "a schema within a grammar": Structure("grammar", f"start: %json {json.dumps(objects(1000))}"),
}
"""Within the limits, and deadly on a small stack."""
