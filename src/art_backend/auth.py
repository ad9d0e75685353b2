"""API keys, and what each gives access to.

- The *service key* opens everything. Data-plane calls with it are not captured.
- A *model key* opens the data plane of one model; its calls are captured as ambient turns. It is derived from the
  service's secret, so registering again, also after a restart, gives the same key.
- A *rollout key* opens the data plane of one rollout and nothing else. ``store/captures`` makes and finds those.
"""

import hashlib
import hmac
import secrets
from pathlib import Path

from art_backend.errors import ForbiddenError, StorageFailedError, UnauthorizedError
from art_backend.gateway.ports import Identity
from art_backend.store.captures import CaptureStore
from art_backend.store.private import private_file

SECRET_BYTES = 32
_MODEL_PREFIX = "art-m-"
_MISSING = "No API key. Send it as 'Authorization: Bearer KEY' (or 'x-api-key: KEY')."
_UNKNOWN = "The service does not know this API key."


class Keyring:
    """Turns keys into identities.

    Args:
        service_key: Opens everything.
        secret_path: File of the secret that model keys are derived from; made on first use, readable by its owner only.
    """

    def __init__(self, service_key: str, secret_path: Path, captures: CaptureStore) -> None:
        self._service_key = service_key
        self._captures = captures
        self._secret = _load_secret(secret_path)
        self._models: dict[str, tuple[str, str]] = {}

    def issue_model_key(self, project: str, name: str) -> str:
        """Return the key of a model; the same model always has the same key."""
        digest = hmac.new(self._secret, f"{project}/{name}".encode(), hashlib.sha256).hexdigest()
        key = f"{_MODEL_PREFIX}{digest[:40]}"
        self._models[key] = (project, name)
        return key

    def require_service(self, key: str | None) -> None:
        """Check that ``key`` opens the control plane.

        Raises:
            UnauthorizedError: No key, or an unknown one.
            ForbiddenError: A key that only opens the data plane.
        """
        if self.identify(key).kind != "service":
            raise ForbiddenError("This key opens the data plane only. Use the service's key for the control API.")

    def opens_service(self, key: str | None) -> bool:
        """Whether it is the service's key."""
        return key is not None and hmac.compare_digest(key.encode(), self._service_key.encode())

    def identify(self, key: str | None, rollout: str | None = None) -> Identity:
        """Name the caller of the data plane.

        Args:
            rollout: Id from a ``/r/{rollout}/v1`` URL. The key must be that rollout's own, or the service's.

        Raises:
            UnauthorizedError: No key, an unknown one, or one of another rollout.
        """
        if not key:
            raise UnauthorizedError(_MISSING)
        if self.opens_service(key):
            return self._rollout_identity(rollout) if rollout else Identity("service")
        if rollout is None and (model := self._models.get(key)):
            return Identity("model", project=model[0], model=model[1])
        info = self._captures.find_by_key(key)
        if info is None or (rollout is not None and info.id != rollout):
            raise UnauthorizedError(_UNKNOWN if rollout is None else f"This API key does not open rollout {rollout!r}.")
        return Identity("rollout", project=info.project, model=info.model, rollout=info.id, step=info.step)

    def _rollout_identity(self, rollout: str) -> Identity:
        info = self._captures.get(rollout)
        return Identity("rollout", project=info.project, model=info.model, rollout=info.id, step=info.step)


def _load_secret(path: Path) -> bytes:
    if path.exists():
        secret = path.read_bytes()
        if len(secret) != SECRET_BYTES:
            raise StorageFailedError(
                f"{path} has {len(secret)} bytes instead of {SECRET_BYTES}; the keys of all models are derived from it. Restore it "
                "from a backup, or delete it: every model then gets a new key."
            )
        return secret
    path.parent.mkdir(parents=True, exist_ok=True)
    secret = secrets.token_bytes(SECRET_BYTES)
    partial = path.with_suffix(".partial")
    private_file(partial)
    partial.write_bytes(secret)
    partial.replace(path)
    return secret
