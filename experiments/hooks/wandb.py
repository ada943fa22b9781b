"""Weights & Biases."""

import dataclasses
import importlib
from typing import Any, ClassVar

from experiments import storage
from experiments.hooks.base import Hook, numbers, saved_id


@dataclasses.dataclass(kw_only=True)
class Wandb(Hook):
    """Logs the config and the rows' numbers to Weights & Biases; a resume continues.

    Attributes:
      entity: The user or team that owns the project; '' uses wandb's settings.
      offline: Whether to keep it in `wandb/` of the run's directory, for `wandb sync`.
    """

    package: ClassVar[str] = 'wandb'

    project: str = 'flaxformer_lite'
    entity: str = ''
    offline: bool = False

    def start(self, run):
        wandb: Any = importlib.import_module(self.package)
        file = run.path / 'wandb.json'
        known = saved_id(file)
        self._run: Any = wandb.init(
            project=self.project,
            entity=self.entity or None,
            mode='offline' if self.offline else None,
            dir=run.path,
            name=storage.run_title(run.path),
            id=known,
            resume='allow',
            config=dict(run.config),
            allow_val_change=True,  # such as train.steps, which may be raised
            settings=wandb.Settings(console='off'),
        )
        storage.write_json(file, self._run.id)
        # With its own step count, wandb would drop repeated rows.
        self._run.define_metric('*', step_metric='step')

    def row(self, row):
        self._run.log({'step': row['step'], **numbers(row)})

    def end(self, result):
        self._run.finish(exit_code=int(result is None))
