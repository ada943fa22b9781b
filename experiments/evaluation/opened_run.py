"""The Python interface to a trained run."""

import copy
import dataclasses
import functools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax

from experiments.checkpoints import base
from experiments.checkpoints.checkpoints import Checkpoints, Mean
from experiments.config import check, load, schema, user_modules
from experiments.config.decoding import decoding_options
from experiments.data import sources
from experiments.data.sources.base import Pair, Source
from experiments.errors import UserError, check_texts, prefix_errors, user_errors
from experiments.evaluation import sets
from experiments.evaluation.scorer import ScoredToken, Scorer, check_pairs
from experiments.evaluation.sets import Pairs
from experiments.evaluation.translator import Translator
from experiments.runs import directory, environment, trained_run
from experiments.runtime import accelerators, mesh
from flaxformer_lite import introspection
from flaxformer_lite.config import builder
from flaxformer_lite.interventions import Interventions, as_pytree
from flaxformer_lite.introspection import Record
from flaxformer_lite.models.base import Model
from flaxformer_lite.training.batch import Batch, make_batch


class OpenedRun:
    """A trained run, possibly still in training.

    Args:
      path: The run's directory.
      trust_code: Allows modules of a package that contains the run, and commands of
        its metrics.
      step: Selects one checkpoint. Defaults to the average that the config asks for.
      dtype: Replaces `model.dtype`, such as 'bfloat16'. Parameters stay float32.

    Attributes:
      decoding: The options that the config asks for.

    Raises:
      UserError: The run has no checkpoint, or not that of `step`, or can't be opened.
    """

    _interventions: Interventions | None = None

    def __init__(
        self,
        path: Path | str,
        trust_code: bool = False,
        step: int | None = None,
        dtype: str = '',
    ):
        if dtype:
            schema.check_value('dtype', schema.fields()['model.dtype'].kind, dtype)
        accelerators.check()
        self.path = path = Path(path)
        stored = directory.read_config(path)
        user_modules.check_stored(path, trust_code)
        environment.check_modules(path)
        with prefix_errors(path / directory.CONFIG):
            config = load.from_dict(stored)
            if dtype:
                model_config = dataclasses.replace(config.model, dtype=dtype)
                config = dataclasses.replace(config, model=model_config)
            self.config = config
            self.decoding = decoding_options(config.evaluation)
        self.checkpoints = self._open_checkpoints()
        self.tokenizer = trained_run.open_tokenizer(config.tokenizer, path)
        self.model = self._build_model()
        if self.model.dense.trained_parameters:
            base.check(self.checkpoints)
        self._step = step
        if step is not None:
            trained_run.check_step(self.checkpoints, step)

    def _open_checkpoints(self) -> Checkpoints:
        checkpoints = Checkpoints(self.path / trained_run.CHECKPOINTS)
        if not checkpoints.steps():
            raise UserError(
                f'{self.path} has no complete checkpoint yet. Let the run train longer.'
            )
        checkpoints.scores = trained_run.dev_scores(checkpoints, self.config)
        return checkpoints

    def _build_model(self) -> Model:
        vocabulary = self.tokenizer
        with prefix_errors(self.path), user_errors():
            model = builder.build(
                self.config.model,
                vocabulary.vocab_size,
                vocabulary.special_tokens,
                vocabulary.source_vocab_size,
            )
            check.check_backend(self.config)
            mesh.abstract_variables(model)
        return model

    @functools.cached_property
    def mean(self) -> Mean:
        # Under a user's jit, this thread would trace; a new one loads concrete arrays.
        with ThreadPoolExecutor(1) as pool:
            loaded = pool.submit(
                trained_run.average,
                self.config,
                self.checkpoints,
                self.model,
                step=self._step,
            )
            return loaded.result()

    @property
    def variables(self) -> Any:
        """The variables for `model.apply`: {'params': …}, float32."""
        return self.mean.variables

    @functools.cached_property
    def data(self) -> Source:
        return sources.load(self.config.data)

    @property
    def evaluation_sets(self) -> dict[str, Pairs]:
        return sets.select(self.data.evaluation(), '', 'data')

    def translate(self, lines: Sequence[str]) -> list[str]:
        """Translates lines as the config asks; blank lines stay blank.

        Raises:
          UserError: `lines` is a string, or a line has more tokens than the model has
            positions.
        """
        check_texts('lines', lines)
        hypotheses = self._translator(
            self.variables, lines, interventions=self._interventions
        )
        return [best_first[0].text for best_first in hypotheses]

    def score(self, pairs: Sequence[Pair]) -> list[list[ScoredToken]]:
        """Returns each target's tokens with their log-probabilities."""
        return list(self._scorer(self.variables, pairs, self._interventions))

    # These objects cache their compiled programs.

    @functools.cached_property
    def _translator(self) -> Translator:
        tokens = self.config.evaluation.batch_tokens
        return Translator(self.model, self.tokenizer, self.decoding, tokens)

    @functools.cached_property
    def _scorer(self) -> Scorer:
        tokens = self.config.evaluation.batch_tokens
        return Scorer(self.model, self.tokenizer, tokens)

    @functools.cached_property
    def _recorder(self) -> Any:
        static = ('model', 'missing_ok', 'names')
        return jax.jit(introspection.record, static_argnames=static)

    def batch(self, pairs: Sequence[Pair], length: int | None = None) -> Batch:
        """Returns the arrays of pairs, with a pair per row, on all devices.

        The functions of `flaxformer_lite` take them, with `model` and `variables`.
        `tokenizer.pieces` and `tokenizer.decode` turn a row of tokens back into text.

        Args:
          length: Length of all rows, as for `make_batch`. Batches to compare, as in
            patching, need the same one. Defaults to the longest row.

        Raises:
          UserError: `pairs` is empty, or a single string or pair.
          ValueError: As `make_batch`.
        """
        check_pairs(pairs)
        if not pairs:
            raise UserError('pairs: is empty. Pass at least one (source, target).')
        tokenizer = self.tokenizer
        source_ids, target_ids = tokenizer.encode_pairs(pairs)
        special = tokenizer.special_tokens
        batch = make_batch(
            [tokenizer.with_end(ids) for ids in source_ids],
            [[*ids, special.eos] for ids in target_ids],
            special.bos,
            special.padding,
            length=length,
        )
        return jax.device_put(batch, mesh.make_mesh().everywhere())

    def record(
        self, pairs: Sequence[Pair], names: Sequence[str] | None = None
    ) -> Record:
        """Records the model's internal values, with a pair per row.

        Attention that does not store its weights has no entry.

        Args:
          names: Names of `Record.values` to keep, as in `intervene`. Defaults to all.
        """
        return self._recorder(
            self.model,
            self.variables,
            self.batch(pairs),
            missing_ok=True,
            names=None if names is None else tuple(names),
            interventions=self._interventions,
        )

    def intervene(self, interventions: Interventions) -> 'OpenedRun':
        """Returns the same run with functions that change activations.

            without = run.intervene({'decoder/layer_1/cross_attention/z': set_to(0.0)})
            without.translate(['My box.'])

        Its `translate`, `score` and `record` apply the functions. It shares parameters
        and compiled programs with this run, which stays unchanged.

        Args:
          interventions: Functions by name, as in `flaxformer_lite.intervene`. They
            replace this run's functions of the same name.
        """
        # The copy shares properties that are already cached.
        _ = self.mean, self._translator, self._scorer, self._recorder
        other = copy.copy(self)
        own_functions = self._interventions or {}
        functions = as_pytree({**own_functions, **interventions})
        everywhere = mesh.make_mesh().everywhere()
        other._interventions = jax.device_put(functions, everywhere)
        return other
