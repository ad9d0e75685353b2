"""Which served model a caller of the data plane means, by its key and by the name that it asks for."""

import re
from collections.abc import Mapping

from art_backend.errors import BadRequestError, NotFoundError
from art_backend.gateway.ports import Identity, ServedModel
from art_backend.serving.policies import ServedPolicy

_VERSION = re.compile(r"[0-9]{1,9}")


class ServedModels:
    """The gateway's ``ModelDirectory``.

    Args:
        policies: What is served, by project and name; it changes as models come and go.
    """

    def __init__(self, policies: Mapping[tuple[str, str], ServedPolicy]) -> None:
        self._policies = policies

    def resolve(self, identity: Identity, requested: str) -> tuple[ServedModel, int | None]:
        """See ``ModelDirectory.resolve``."""
        name, at, version = requested.rpartition("@")
        step: int | None = None
        if at and _VERSION.fullmatch(version):
            step = int(version)
        else:
            name = requested
        found = [
            p
            for p in self._reachable(identity)
            if name in (p.name, f"{p.project}/{p.name}", p.host.settings.served_name)
        ]
        if not found:
            raise NotFoundError(
                f"No model {requested!r} for this key. Models: {self.list_names(identity)}.", param="model"
            )
        exact = [p for p in found if name != p.host.settings.served_name]
        if not exact:
            return found[0], 0  # the base model's own name
        if len(exact) > 1:
            names = [f"{p.project}/{p.name}" for p in exact]
            raise BadRequestError(
                f"Model {requested!r} exists in several projects; name one of {names}.", param="model"
            )
        return exact[0], identity.step if step is None else step

    def list_names(self, identity: Identity) -> list[str]:
        """See ``ModelDirectory.list_names``."""
        names: list[str] = []
        for policy in self._reachable(identity):
            prefix = f"{policy.project}/" if identity.kind == "service" else ""
            names += [f"{prefix}{policy.name}", f"{prefix}{policy.name}@{policy.step}"]
        return names + sorted({p.host.settings.served_name for p in self._reachable(identity)})

    def _reachable(self, identity: Identity) -> list[ServedPolicy]:
        if identity.kind == "service":
            return list(self._policies.values())
        policy = self._policies.get((identity.project or "", identity.model or ""))
        return [policy] if policy else []
