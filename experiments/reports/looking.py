"""A trained run, opened to look into it: by a notebook, a report or `experiments.look`.

    from experiments.reports import looking

    run = looking.open_run('runs/wmt_small')
    text = 'My doctor forgets to close my useful box.'
    run.translate(text)
    run.attention(text)['attention to the source']  # altair.Chart: a notebook shows it
    run.alignment(text)['mean of all layers']
    run.importance()
    run.heads()['Heads: largest weight'].save('heads.svg')
    run.curves()['loss']['steps']

This imports JAX; the rest of a report does not.
"""

import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import altair as alt
import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from experiments.data.tokenizer import Tokenizer
from experiments.errors import UserError
from experiments.evaluation.translator import Translator, check_lengths
from experiments.reports import arms, curves, pictures
from experiments.reports.arms import Study
from experiments.runs import reading, trained_run
from experiments.runtime import compilation, mesh
from flaxformer_lite import introspection
from flaxformer_lite.layers.scanned_stack import unstack_layers
from flaxformer_lite.models.base import Model
from flaxformer_lite.training.batch import Batch, make_batch
from flaxformer_lite.training.loss import loss_sums

PAIRS = 100  # of an evaluation set, for the figures of heads
MOST_TOKENS = 128  # of a text whose attention is drawn
STATS = ('entropy', 'distance', 'largest', 'diagonal', 'previous')
Grid = list[list[float]]  # a number by layer and head


class Attended(NamedTuple):
    """The weights of all heads for one sentence.

    Attributes:
      source, output: the texts.
      queries, keys: the pieces on the axes, by attention.
      weights: by attention and layer, HTS. An attention that does not hold its weights
        is left out.
    """

    source: str
    output: str
    queries: dict[str, list[str]]
    keys: dict[str, list[str]]
    weights: dict[str, list[np.ndarray]]


class Inspection(NamedTuple):
    """What is known of a run's attention and heads.

    Attributes:
      path: the run's directory.
      steps: the checkpoints whose mean was taken.
      sentences: with their weights.
      stats: the figures of `STATS`, by attention and name.
      importance: by attention, by how much the loss of a token, in nats, rises where a
        head is switched off and all else stays.
      loss: of a token, with all heads.
      pairs: how many sentences the figures are of; without any there are none.
      note: why there are no weights and figures of an attention; empty if all are
        there.
    """

    path: Path
    steps: Sequence[int]
    sentences: list[Attended]
    stats: dict[str, dict[str, Grid]]
    importance: dict[str, Grid]
    loss: float
    pairs: int
    note: str


def open_run(path: Path | str, pairs: int = PAIRS, of: str = '') -> 'Look':
    """Opens the run in a directory; it may still be training.

    Args:
      path: the run's directory.
      pairs: of how many pairs of an evaluation set the figures of heads are; 0 for no
        such figures.
      of: the name of that set; empty: `test`, or else the first that was scored.

    Raises:
      UserError: as `trained_run.open_trained`; or no checkpoint, or a file of the
        pairs, can be read.
    """
    compilation.use_cache()
    return Look(Path(path), pairs, of)


class Look:
    """What can be seen in a run: its translations, attention, heads and curves.

    Attributes:
      path: the run's directory.
      trained: its config, tokenizer, model (with separate layers) and checkpoints.
      variables: the mean of the checkpoints that its config wants scored.
      steps: of these checkpoints.
      pairs: sources and references of the evaluation set, if it was scored yet.
    """

    def __init__(self, path: Path, pairs: int, of: str):
        self.path = path
        trained = trained_run.open_trained(path)
        variables, self.steps, _ = trained_run.average(
            trained.config, trained.checkpoints, trained.model
        )
        # What is looked at are single layers, also of a model that scans them.
        self.trained = trained._replace(model=trained.model.with_separate_layers())
        self.variables = unstack_layers(variables)
        self.pairs = reading.read_pairs(path, of)[:pairs]

    def translate(self, text: str) -> str:
        """The run's own translation, decoded as its config says.

        Raises:
          UserError: as `check_text`.
        """
        (translation,) = self.translate_all([text])
        return translation

    def translate_all(self, texts: Sequence[str]) -> list[str]:
        """The translations of several texts, which is faster than one after another.

        Raises:
          UserError: as `check_text`.
        """
        for text in texts:
            self.check_text(text)
        found = self._translator(self.variables, list(texts))
        return [hypotheses[0].text for hypotheses in found]

    def attention(self, text: str, target: str = '') -> dict[str, alt.TopLevelMixin]:
        """The weights of all layers and heads, by the name of the attention.

        Args:
          text: a source.
          target: what the decoder writes; empty: the run's own translation.

        Raises:
          UserError: as `check_text`; or no attention of the model holds its weights.
        """
        (sentence,) = self.attend([self._pair(text, target)])
        if not sentence.weights:
            raise UserError(f'{self.path}: {self.note}')
        return {x.title: x.chart for x in pictures.weights(sentence, 1)}

    def alignment(self, text: str, target: str = '') -> dict[str, alt.TopLevelMixin]:
        """Source × translation, of each layer, after the mean of several.

        Args:
          text, target: as `attention`.

        Raises:
          UserError: as `check_text`; or the model has no attention to the source that
            holds its weights.
        """
        (sentence,) = self.attend([self._pair(text, target)])
        found = pictures.alignment_figures(sentence, 1)
        if not found:
            raise UserError(f'{self.path}: {pictures.no_alignment(self.note)}')
        return {name: figure.chart for name, figure in found.items()}

    def heads(self) -> dict[str, alt.TopLevelMixin]:
        """Statistics of all heads on pairs of an evaluation set, by their title.

        Empty where no attention holds its weights, and where the run has no pairs yet.
        """
        return {x.title: x.chart for x in pictures.statistics(self.inspect([]))}

    def importance(self) -> alt.TopLevelMixin | None:
        """What each head is worth.

        None where the model has no heads, and where the run has no pairs yet.
        """
        figure = pictures.importance(self.inspect([]))
        return None if figure is None else figure.chart

    def curves(self) -> dict[str, dict[str, alt.TopLevelMixin]]:
        """Loss, BLEU, learning rate and gradient norm, each by steps, tokens and time.

        Raises:
          UserError: a file of the run cannot be read.
        """
        found = {}
        for name, figures in curves.curves(self.study()).items():
            found[name] = {axis: figure.chart for axis, figure in figures.items()}
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
        count = self.count_tokens(text)
        most = min(MOST_TOKENS, self.trained.model.max_length or MOST_TOKENS)
        if count > most:
            shown = text if len(text) <= 60 else f'{text[:60]}…'
            raise UserError(
                f'{name}={shown!r} has {count} tokens with its end, more than the '
                f'{most} that can be shown: give a shorter one'
            )

    def count_tokens(self, text: str) -> int:
        """The tokens of a text, its end included."""
        return len(self.trained.tokenizer.encode([text])[0]) + 1

    @functools.cached_property
    def note(self) -> str:
        """Which attentions do not hold their weights; empty if all do."""
        batch = pairs_batch(self.trained.tokenizer, [('', '')])
        return pictures.note(without_weights(self.trained.model, self.variables, batch))

    def attend(self, outputs: Sequence[tuple[str, str]]) -> list[Attended]:
        """The weights for sources and what the decoder writes, in one batch.

        Raises:
          UserError: one is longer than the model's positions.
        """
        if not outputs:
            return []
        model = self.trained.model
        check_lengths(model, [self.count_tokens(x) for pair in outputs for x in pair])
        return attended(model, self.variables, self.trained.tokenizer, outputs)

    def inspect(self, outputs: Sequence[tuple[str, str]]) -> Inspection:
        """All that figures of attention and heads are drawn from.

        Args:
          outputs: the sentences to show, each with what the decoder writes.

        Raises:
          UserError: as `attend`.
        """
        importance, loss, stats = self._heads
        return Inspection(
            self.path,
            self.steps,
            self.attend(outputs),
            stats,
            importance,
            loss,
            len(self.pairs),
            self.note,
        )

    @functools.cached_property
    def _heads(self) -> tuple[dict[str, Grid], float, dict[str, dict[str, Grid]]]:
        if not self.pairs:
            return {}, math.nan, {}
        model = self.trained.model
        batch = pairs_batch(self.trained.tokenizer, self.pairs)
        importance, loss = head_importance(model, self.variables, batch)
        return importance, loss, head_stats(model, self.variables, batch)

    @functools.cached_property
    def _translator(self) -> Translator:
        config = self.trained.config.evaluation
        return Translator(self.trained.model, self.trained.tokenizer, config)

    def _pair(self, text: str, target: str) -> tuple[str, str]:
        self.check_text(text)
        if target.strip():
            self.check_text(target, 'target')
            return text, target
        return text, self.translate(text)


def pairs_batch(tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]]) -> Batch:
    """Sources and targets as one batch, a pair a row."""
    sources = tokenizer.encode([source for source, _ in pairs])
    targets = tokenizer.encode_target([target for _, target in pairs])
    special = tokenizer.special_tokens
    last = [] if tokenizer.source_end is None else [tokenizer.source_end]
    batch = make_batch(
        [ids + last for ids in sources],
        [[*ids, special.end] for ids in targets],
        special.start,
        special.padding,
    )
    return jax.device_put(batch, mesh.of().everywhere())


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
    read = _pieces(tokenizer, batch['source'], batch['source_segments'])
    written = _pieces(tokenizer, batch['inputs'], batch['target_segments'])
    found = [Attended(source, output, {}, {}, {}) for source, output in outputs]
    for kind, layers in weights.items():
        for i, sentence in enumerate(found):
            own = read[i] if kind == 'encoder' else written[i]
            if layers[0].shape[2] == len(read[i]) + len(written[i]):
                own = np.append(read[i], written[i])  # one stack reads both
            keys = read[i] if kind == pictures.CROSS else own
            sentence.queries[kind] = own[own != ''].tolist()
            sentence.keys[kind] = keys[keys != ''].tolist()
            sentence.weights[kind] = []
            for layer_BHTS in layers:
                own_HTS = np.asarray(layer_BHTS[i], np.float64)[:, own != '']
                sentence.weights[kind].append(own_HTS[:, :, keys != ''])
    return found


def _pieces(tokenizer: Tokenizer, ids: jax.Array, segments: jax.Array) -> np.ndarray:
    """How tokens are written, row by row; padding as nothing."""
    # The start token may be that of padding.
    rows = [tokenizer.pieces(row) for row in np.asarray(ids).tolist()]
    return np.where(np.asarray(segments) > 0, np.array(rows), '')


def without_weights(model: Model, variables: Any, batch: Batch) -> list[str]:
    """The attentions that do not hold their weights, by shapes alone."""

    def record(variables: Any, batch: Batch) -> Any:
        return introspection.record(model, variables, batch, missing_ok=True)

    found = jax.eval_shape(record, variables, batch)
    return [kind for kind in found.heads if kind not in found.weights]


def head_stats(
    model: Model, variables: Any, batch: Batch
) -> dict[str, dict[str, Grid]]:
    """The figures of `STATS`, by attention; those without weights are left out.

    Args:
      model, variables, batch: as `introspection.attention_stats`.
    """

    def head_statistics(variables: Any, batch: Batch) -> Any:
        # What is not asked for, the gradients, is not computed.
        found = introspection.attention_stats(model, variables, batch, missing_ok=True)
        return {
            kind: {name: figures[name] for name in STATS}
            for kind, figures in found.items()
            if 'entropy' in figures
        }

    found = _run_once(head_statistics, variables, batch)
    return jax.tree.map(np.ndarray.tolist, found)


def head_importance(
    model: Model, variables: Any, batch: Batch
) -> tuple[dict[str, Grid], float]:
    """What each head of each layer is worth, and the loss with all of them.

    Args:
      model, variables, batch: as `introspection.record`.
    """

    def ablated_loss(masks: Any, variables: Any, batch: Batch) -> jax.Array:
        sums = loss_sums(model, variables | {'ablation_masks': masks}, batch)
        return sums.loss / sums.tokens  # without smoothing, in nats

    # Placed as the other arrays are, so that one program serves all masks.
    placed = jax.tree.leaves(variables)[0].sharding
    masks = jax.device_put(introspection.ablation_masks(model), placed)
    program = compilation.compiled(jax.jit(ablated_loss), masks, variables, batch)
    whole = float(program(masks, variables, batch))
    flat: Any = flatten_dict(masks)
    by_kind: dict[str, dict[int, list[float]]] = {}
    for path, mask_H in flat.items():
        if path[-1] != 'heads':
            continue
        stack, layer, module, _ = path
        rises = []
        for head in range(len(mask_H)):
            without_H = jax.device_put(mask_H.at[head].set(0.0), placed)
            changed = unflatten_dict(flat | {path: without_H})
            rises.append(float(program(changed, variables, batch)) - whole)
        kind = stack + introspection.ATTENTION_SUFFIXES[module]
        number = int(layer.removeprefix('layer_'))
        by_kind.setdefault(kind, {})[number] = rises
    grids = {}
    for kind, layers in by_kind.items():
        grids[kind] = [layers[number] for number in sorted(layers)]
    return grids, whole


def _run_once(function: Any, *arguments: Any) -> Any:
    """The result of a function on the host, by a program that is soon compiled."""
    program = compilation.compiled(jax.jit(function), *arguments, once=True)
    return jax.device_get(program(*arguments))
