"""MLflow."""

import dataclasses
import importlib
import re
from typing import Any, ClassVar

from experiments import storage
from experiments.hooks.base import Hook, numbers, saved_id


@dataclasses.dataclass(kw_only=True)
class Mlflow(Hook):
    """Logs the config and the rows' numbers to MLflow (mlflow.org); a resume continues.

    Attributes:
      uri: A server, or a database such as sqlite:///mlflow.db; '' uses MLflow's
        settings.
    """

    package: ClassVar[str] = 'mlflow'

    experiment: str = 'flaxformer_lite'
    uri: str = ''

    def start(self, run):
        mlflow: Any = importlib.import_module(self.package)
        self._mlflow = mlflow
        if self.uri:
            mlflow.set_tracking_uri(self.uri)
        mlflow.set_experiment(self.experiment)
        file = run.path / 'mlflow.json'
        known = saved_id(file)
        # A resumed run keeps its name and config, which MLflow can't change.
        name = None if known else storage.run_title(run.path)
        active = mlflow.start_run(run_id=known, run_name=name)
        storage.write_json(file, active.info.run_id)
        if not known:
            mlflow.log_params(run.config)

    def row(self, row):
        # MLflow rejects other characters, such as those of bleu(tokenize='char').
        found = {}
        for name, number in numbers(row).items():
            allowed = re.sub(r'[^\w ./-]', '_', name)
            found[allowed] = number
        self._mlflow.log_metrics(found, step=row['step'])

    def end(self, result):
        self._mlflow.end_run('FINISHED' if result else 'KILLED')
