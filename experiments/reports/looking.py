"""A trained run, opened to look into it: by a notebook, a report or `experiments.look`.

    from experiments.reports import looking

    run = looking.open_run('runs/wmt_small')
    text = 'My doctor forgets to close my useful box.'
    run.translate(text)
    run.attention(text)['attention to the source']  # altair.Chart: a notebook shows it
    run.alignment(text)['mean of all layers']
    run.importance().save('heads.svg')
    run.entropy()
    run.curves()['loss']['steps']

This imports JAX; the rest of a report does not.
"""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import altair as alt
import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from experiments.data.tokenizers.base import Tokenizer
from experiments.errors import UserError
from experiments.evaluation.opened_run import OpenedRun, pairs_batch
from experiments.reports import arms, figures, pictures
from experiments.reports.arms import Study
from experiments.runs import reading
from experiments.runtime import compilation
from flaxformer_lite import introspection
from flaxformer_lite.layers.scanned_stack import unstack_layers
from flaxformer_lite.models.base import Model
from flaxformer_lite.training.batch import Batch
from flaxformer_lite.training.loss import loss_sums

PAIRS = 100  # of an evaluation set, for the figures of heads
MOST_TOKENS = 128  # of a text whose attention is drawn
Grid = list[list[float]]  # a number by layer and head


class Attended(NamedTuple):
    """The weights of all heads for one sentence.

    Attributes:
      source: the text.
      queries, keys: the pieces on the axes, by attention.
      weights: by attention and layer, HTS. An attention that does not hold its weights,
        such as the blockwise one, is left out.
    """

    source: str
    queries: dict[str, list[str]]
    keys: dict[str, list[str]]
    weights: dict[str, list[np.ndarray]]


class Inspection(NamedTuple):
    """What is known of a run's attention and heads.

    Attributes:
      path: the run's directory.
      steps: the checkpoints whose mean was taken.
      sentences: with their weights.
      entropy: of the weights of each head, in nats, by attention.
      importance: by attention, by how much the loss of a token, in nats, rises where a
        head is switched off and all else stays.
    """

    path: Path
    steps: Sequence[int]
    sentences: list[Attended]
    entropy: dict[str, Grid]
    importance: dict[str, Grid]


def open_run(path: Path | str, pairs: int = PAIRS) -> 'Look':
    """Opens the run in a directory; it may still be training.

    Args:
      path: the run's directory.
      pairs: of how many pairs of the evaluation set `test`, or else of the first that
        was scored, the figures of heads are; 0 for no such figures.

    Raises:
      UserError: as `trained_run.open_trained`; or no checkpoint, or a file of the
        pairs, can be read.
    """
    return Look(Path(path), pairs)


class Look:
    """What can be seen in a run: its translations, attention, heads and curves.

    Attributes:
      path: the run's directory.
      trained: its config, tokenizer, model (with separate layers) and checkpoints.
      variables: the mean of the checkpoints that its config wants scored.
      steps: of these checkpoints.
      pairs: sources and references of the evaluation set, if it was scored yet.
      on_progress: is told of how many layers, and of how many in all, the heads are
        measured.
    """

    def __init__(self, path: Path, pairs: int):
        self.path = path
        self.on_progress: Callable[..., None] = lambda done, total, unit: None
        self._run = run = OpenedRun(path)
        self.steps = run.mean.steps
        # What is looked at are single layers, also of a model that scans them.
        self.trained = run.trained._replace(model=run.model.with_separate_layers())
        self.variables = unstack_layers(run.variables)
        self.pairs = reading.read_pairs(path)[:pairs]

    def translate(self, text: str) -> str:
        """The run's own translation, decoded as its config says.

        Raises:
          UserError: as `check_text`.
        """
        return self.translate_all([text])[0]

    def translate_all(self, texts: Sequence[str]) -> list[str]:
        """The translations of several texts, which is faster than one after another.

        Raises:
          UserError: as `check_text`.
        """
        for text in texts:
            self.check_text(text)
        return self._run.translate(texts)

    def attention(self, text: str, target: str = '') -> dict[str, alt.TopLevelMixin]:
        """The weights of all layers and heads, by the name of the attention.

        Args:
          text: a source.
          target: what the decoder writes; empty: the run's own translation.

        Raises:
          UserError: as `check_text`.
        """
        (sentence,) = self.attend([self._pair(text, target)])
        return {x.title: x.chart for x in pictures.weights(sentence, 1)}

    def alignment(self, text: str, target: str = '') -> dict[str, alt.TopLevelMixin]:
        """Source × translation, of each layer, after the mean of several.

        Empty where the model has no attention to the source that holds its weights.

        Args:
          text, target: as `attention`.

        Raises:
          UserError: as `check_text`.
        """
        (sentence,) = self.attend([self._pair(text, target)])
        found = pictures.alignment_figures(sentence, 1)
        return {name: figure.chart for name, figure in found.items()}

    def entropy(self) -> alt.TopLevelMixin | None:
        """How far each head spreads its weights, on pairs of an evaluation set.

        None where no attention holds its weights, and where the run has no pairs yet.
        """
        figure = pictures.entropy(self.inspect([]))
        return figure and figure.chart

    def importance(self) -> alt.TopLevelMixin | None:
        """What each head is worth.

        None where the model has no heads, and where the run has no pairs yet.
        """
        figure = pictures.importance(self.inspect([]))
        return figure and figure.chart

    def curves(self) -> dict[str, dict[str, alt.TopLevelMixin]]:
        """Loss, score, learning rate and gradient norm, each by steps, tokens and time.

        Raises:
          UserError: a file of the run cannot be read.
        """
        found = {}
        for name, by_axis in figures.curves(self.study()).items():
            found[name] = {axis: figure.chart for axis, figure in by_axis.items()}
        return found

    def study(self) -> Study:
        """The run as a report of one run reads it."""
        return arms.study([reading.read_run(self.path)], None)

    def check_text(self, text: str, name: str = 'text') -> None:
        """Refuses what is no sentence, or too long to be shown.

        Args:
          name: what messages call the text.

        Raises:
          UserError: the text is blank, not UTF-8, or longer than `MOST_TOKENS` or than
            the model's positions.
        """
        try:
            text.encode()
        except UnicodeEncodeError:
            raise UserError(
                f'{name}={text!r} is not UTF-8: give it in that encoding'
            ) from None
        if not text.strip():
            raise UserError(f'{name}={text!r} is blank: give a sentence')
        count = len(self.trained.tokenizer.encode([text])[0]) + 1
        most = min(MOST_TOKENS, self.trained.model.max_length or MOST_TOKENS)
        if count > most:
            raise UserError(
                f'{name}={text[:60]!r} has {count} tokens with its end, more than the '
                f'{most} that can be shown: give a shorter one'
            )

    def attend(self, outputs: Sequence[tuple[str, str]]) -> list[Attended]:
        """The weights for sources and what the decoder writes, in one batch."""
        if not outputs:
            return []
        trained = self.trained
        return attended(trained.model, self.variables, trained.tokenizer, outputs)

    def inspect(self, outputs: Sequence[tuple[str, str]]) -> Inspection:
        """All that figures of attention and heads are drawn from.

        Args:
          outputs: the sentences to show, each with what the decoder writes.
        """
        return Inspection(self.path, self.steps, self.attend(outputs), *self._heads)

    @functools.cached_property
    def _heads(self) -> tuple[dict[str, Grid], dict[str, Grid]]:
        """Entropy and importance."""
        if not self.pairs:
            return {}, {}
        batch = pairs_batch(self.trained.tokenizer, self.pairs)
        known = (self.trained.model, self.variables, batch)
        return head_entropy(*known), head_importance(*known, self.on_progress)

    def _pair(self, text: str, target: str) -> tuple[str, str]:
        self.check_text(text)
        if target.strip():
            self.check_text(target, 'target')
            return text, target
        return text, self.translate(text)


def attended(
    model: Model,
    variables: Any,
    tokenizer: Tokenizer,
    outputs: Sequence[tuple[str, str]],
) -> list[Attended]:
    """The weights for each sentence, without padding.

    Args:
      model, variables: as `introspection.record`.
      tokenizer: of the run.
      outputs: each sentence with what the decoder writes; at least one.
    """
    batch = pairs_batch(tokenizer, outputs)

    def attention_weights(variables: Any, batch: Batch) -> Any:
        return introspection.record(model, variables, batch, missing_ok=True).weights

    weights = _run_once(attention_weights, variables, batch)
    of_source, of_target = tokenizer.sides
    read = _pieces(of_source, batch['source'], batch['source_segments'])
    written = _pieces(of_target, batch['inputs'], batch['target_segments'])
    found = [Attended(source, {}, {}, {}) for source, _ in outputs]
    for kind, layers in weights.items():
        for i, sentence in enumerate(found):
            own = read[i] if kind == 'encoder' else written[i]
            if layers[0].shape[2] == len(read[i]) + len(written[i]):
                own = np.append(read[i], written[i])  # one stack reads both
            keys = read[i] if kind == pictures.CROSS else own
            is_query = own != ''
            is_key = keys != ''
            sentence.queries[kind] = own[is_query].tolist()
            sentence.keys[kind] = keys[is_key].tolist()
            sentence.weights[kind] = []
            for layer_BHTS in layers:
                weights_HTS = np.asarray(layer_BHTS[i], np.float64)
                weights_HTS = weights_HTS[:, is_query][:, :, is_key]
                sentence.weights[kind].append(weights_HTS)
    return found


def _pieces(tokenizer: Tokenizer, ids: jax.Array, segments: jax.Array) -> np.ndarray:
    """How tokens are written, row by row; padding as nothing."""
    # The start token may be that of padding.
    rows = [tokenizer.pieces(row) for row in np.asarray(ids).tolist()]
    return np.where(np.asarray(segments) > 0, np.array(rows), '')


def head_entropy(model: Model, variables: Any, batch: Batch) -> dict[str, Grid]:
    """The entropy of heads by attention; those without weights are left out.

    Args:
      model, variables, batch: as `introspection.attention_stats`.
    """

    def entropy(variables: Any, batch: Batch) -> Any:
        # What is not asked for, the gradients, is not computed.
        found = introspection.attention_stats(model, variables, batch, missing_ok=True)
        return {
            kind: figures['entropy']
            for kind, figures in found.items()
            if 'entropy' in figures
        }

    return jax.tree.map(np.ndarray.tolist, _run_once(entropy, variables, batch))


def head_importance(
    model: Model, variables: Any, batch: Batch, on_progress: Callable[..., None]
) -> dict[str, Grid]:
    """What each head of each layer is worth: without it the loss rises so much.

    Args:
      model, variables, batch: as `introspection.record`.
      on_progress: is told how many layers are done, of how many: (1, 6, 'layers').
    """

    def ablated_loss(masks: Any, variables: Any, batch: Batch) -> jax.Array:
        ablated = variables | {'ablation_masks': masks}
        sums = loss_sums(model, ablated, batch, loss='cross_entropy(label_smoothing=0)')
        return sums.loss / sums.tokens  # in nats

    # Placed as the other arrays are, so that one program serves all masks.
    placed = jax.tree.leaves(variables)[0].sharding
    masks = jax.device_put(introspection.ablation_masks(model), placed)
    program = compilation.compiled(jax.jit(ablated_loss), masks, variables, batch)
    whole = float(program(masks, variables, batch))
    flat: Any = flatten_dict(masks)
    paths = [path for path in flat if path[-1] == 'heads']
    grids: dict[str, Grid] = {}
    paths.sort(key=lambda path: int(path[1].removeprefix('layer_')))
    for done, path in enumerate(paths):
        on_progress(done, len(paths), 'layers')
        stack, _, module, _ = path
        rises = []
        for head in range(len(flat[path])):
            without_H = jax.device_put(flat[path].at[head].set(0.0), placed)
            changed = unflatten_dict(flat | {path: without_H})
            rises.append(float(program(changed, variables, batch)) - whole)
        grids.setdefault(stack + introspection.ATTENTION_SUFFIXES[module], []).append(
            rises
        )
    return grids


def _run_once(function: Any, *arguments: Any) -> Any:
    """The result of a function on the host, by a program that is soon compiled."""
    program = compilation.compiled(jax.jit(function), *arguments, once=True)
    return jax.device_get(program(*arguments))
