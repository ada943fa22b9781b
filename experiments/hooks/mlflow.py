"""MLflow (mlflow.org), by its package."""

import dataclasses
import importlib
import re
from typing import Any, ClassVar

from experiments import storage
from experiments.hooks.base import Hook, numbers


@dataclasses.dataclass(kw_only=True)
class Mlflow(Hook):
    """Logs the config and the numbers of rows to a run there, which a resume goes on.

    Attributes:
      experiment: which it belongs to.
      uri: of a server, or of a database as sqlite:///mlflow.db; '': as MLflow is set
        up.
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
        known = storage.read_json(file) if storage.exists(file) else None
        # A resumed run has that one's name and config, which cannot be changed there.
        name = None if known else storage.run_title(run.path)
        active = mlflow.start_run(run_id=known, run_name=name)
        storage.write_json(file, active.info.run_id)
        if not known:
            mlflow.log_params(run.config)

    def row(self, row):
        # Other characters are refused there, such as those of bleu(tokenize='char').
        found = {}
        for name, number in numbers(row).items():
            allowed = re.sub(r'[^\w ./-]', '_', name)
            found[allowed] = number
        self._mlflow.log_metrics(found, step=row['step'])

    def end(self, result):
        self._mlflow.end_run('FINISHED' if result else 'KILLED')
