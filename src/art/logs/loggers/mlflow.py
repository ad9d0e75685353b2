"""MLflow: an experiment per project, a run per model.

Rows go to ``MLFLOW_TRACKING_URI``, or else to ``mlflow.db`` beside the project's models:
``mlflow ui --backend-store-uri sqlite:///.art/PROJECT/mlflow.db`` shows them.
"""

import math
import os
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from art.errors import MissingExtraError

_TAG = "art.model"
_BATCH = 1000
"""Metrics that the protocol takes at once."""


class MlflowLogger:
    """The MLflow run of one model, found again by a tag.

    Args:
        directory: The model's directory, ``{base_path}/{project}/models/{name}``.

    Raises:
        MissingExtraError: MLflow is not installed.

    >>> art.Model(name="player", project="games", report_metrics=["mlflow"]).report_metrics  # opened at the first log
    ['mlflow']
    """

    def __init__(self, project: str, name: str, directory: Path) -> None:
        try:
            mlflow: Any = import_module("mlflow")
            self._entities: Any = import_module("mlflow.entities")
        except ModuleNotFoundError as error:
            raise MissingExtraError("MLflow", "mlflow") from error
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if not uri:
            store = directory.parent.parent.absolute() / "mlflow.db"
            store.parent.mkdir(parents=True, exist_ok=True)
            uri = f"sqlite:///{store}"
        self._client: Any = mlflow.MlflowClient(tracking_uri=uri)
        self._run_id = self._find_or_create(project, name)

    def log(self, row: Mapping[str, float], step: int) -> None:
        now = int(time.time() * 1000)
        metrics = [
            self._entities.Metric(name, float(value), now, step) for name, value in row.items() if math.isfinite(value)
        ]
        for start in range(0, len(metrics), _BATCH):
            self._client.log_batch(self._run_id, metrics=metrics[start : start + _BATCH])

    def _find_or_create(self, project: str, name: str) -> str:
        experiment = self._client.get_experiment_by_name(project)
        experiment_id = experiment.experiment_id if experiment else self._client.create_experiment(project)
        quoted = name.replace("'", "\\'")
        runs = self._client.search_runs([experiment_id], filter_string=f"tags.`{_TAG}` = '{quoted}'", max_results=1)
        if runs:
            return runs[0].info.run_id
        return self._client.create_run(experiment_id, run_name=name, tags={_TAG: name}).info.run_id
