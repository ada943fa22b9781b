"""A trained run, opened to look into it: by a notebook, a report or `experiments.look`.

    from experiments.reports.display import interactive
    from experiments.reports.inside import looking

    run = looking.open_run('runs/wmt_small')
    text = 'My doctor forgets to close my useful box.'
    run.translate(text)
    heads = run.attention(text)['attention to the source']
    interactive.figure(heads)  # a plotly.graph_objects.Figure, which a notebook shows
    interactive.figure(heads.one(1, 2))  # layer 1, head 2, large
    interactive.figure(run.alignment(text)['mean of all layers'])
    interactive.figure(run.importance())
    for figure in run.heads().values():
        interactive.figure(figure).show()
    interactive.figure(run.curves()['loss']['steps'])

This imports JAX; the rest of a report does not.
"""

import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.errors import UserError
from experiments.evaluation.translator import Translator, check_lengths
from experiments.reports import arms
from experiments.reports.arms import Study
from experiments.reports.display import curves
from experiments.reports.display.charts import Chart, Heatmaps
from experiments.reports.inside import alignment, attended, heads, pictures
from experiments.reports.inside.attended import Attended
from experiments.reports.inside.heads import Importance, Inspection
from experiments.runs import reading, trained_run
from experiments.runtime import compilation
from flaxformer_lite.layers.scanned_stack import unstack_layers

PAIRS = 100  # of an evaluation set, for the figures of heads
MOST_TOKENS = 128  # of a text whose attention is drawn


def open_run(path: Path | str, pairs: int = PAIRS, of: str = '') -> 'Look':
    """Opens the run in a directory; it may still be training.

    Args:
      path: the run's directory.
      pairs: of how many pairs of an evaluation set the figures of heads are; 0 for no
        such figures.
      of: the name of that set; empty: `test`, or else the first that was scored.

    Raises:
      UserError: as `trained_run.open_trained`; or no checkpoint can be read.
    """
    compilation.use_cache()
    return Look(Path(path), pairs, of)


class Look:
    """What can be seen in a run: its translations, attention, heads and curves.

    Figures are of `display.charts`; `display.interactive.figure` and
    `display.paper.draw` draw them. What is computed is kept, so that to ask again costs
    nothing.

    Attributes:
      path: the run's directory.
      trained: its config, tokenizer, model (with separate layers) and checkpoints.
      variables: the mean of the checkpoints that its config wants scored.
      steps: of these checkpoints.
    """

    def __init__(self, path: Path, pairs: int = PAIRS, of: str = ''):
        self.path = path
        trained = trained_run.open_trained(path)
        variables, self.steps, _ = trained_run.average(
            trained.config, trained.checkpoints, trained.model
        )
        # What is looked at are single layers, also of a model that scans them.
        self.trained = trained._replace(model=trained.model.with_separate_layers())
        self.variables = unstack_layers(variables)
        self._most_pairs = pairs
        self._set = of
        self._translations: dict[str, str] = {}
        self._attended: dict[tuple[str, str], Attended] = {}

    def translate(self, text: str) -> str:
        """The run's own translation, decoded as its config says.

        Raises:
          UserError: as `check`.
        """
        (translation,) = self.translate_all([text])
        return translation

    def translate_all(self, texts: Sequence[str]) -> list[str]:
        """The translations of several texts, which is faster than one after another.

        Raises:
          UserError: as `check`.
        """
        for text in texts:
            self.check(text)
        new = [text for text in dict.fromkeys(texts) if text not in self._translations]
        found = self._translator(self.variables, new) if new else []
        for text, hypotheses in zip(new, found, strict=True):
            self._translations[text] = hypotheses[0].text
        return [self._translations[text] for text in texts]

    def attention(self, text: str, target: str = '') -> dict[str, Heatmaps]:
        """The weights of all layers and heads, by the name of the attention.

        Args:
          text: a source.
          target: what the decoder writes; empty: the run's own translation.

        Raises:
          UserError: as `check`; or no attention of the model holds its weights.
        """
        (sentence,) = self.attend([self._pair(text, target)])
        if not sentence.weights:
            raise UserError(f'{self.path}: {self.note}')
        return {figure.title: figure for figure in pictures.weights(sentence, 1)}

    def alignment(self, text: str, target: str = '') -> dict[str, Heatmaps]:
        """Source × translation, of each layer, after the mean of several.

        Args:
          text, target: as `attention`.

        Raises:
          UserError: as `check`; or the model has no attention to the source that holds
            its weights.
        """
        (sentence,) = self.attend([self._pair(text, target)])
        found = alignment.figures(sentence)
        if not found:
            raise UserError(f'{self.path}: {alignment.missing(self.note)}')
        return found

    def heads(self) -> dict[str, Heatmaps]:
        """Statistics of all heads on pairs of an evaluation set, by their title.

        Empty where no attention holds its weights, and where the run has no pairs yet.

        Raises:
          UserError: the run's pairs cannot be read.
        """
        found = pictures.statistics(self.inspect([]))
        return {figure.title: figure for figure in found}

    def importance(self) -> Heatmaps | None:
        """What each head is worth, measured and estimated.

        None where the model has no heads, and where the run has no pairs yet.

        Raises:
          UserError: the run's pairs cannot be read.
        """
        return pictures.importance(self.inspect([]))

    def curves(self) -> dict[str, dict[str, Chart]]:
        """Loss, BLEU, learning rate and gradient norm, each by steps, tokens and time.

        Raises:
          UserError: a file of the run cannot be read.
        """
        return curves.curves(self.study())

    def study(self) -> Study:
        """The run as a report of one run reads it."""
        return arms.study([reading.read_run(self.path)], None)

    def check(self, text: str, name: str = 'text') -> None:
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
        count = self.count(text)
        model_most = self.trained.model.max_length or MOST_TOKENS
        most = min(MOST_TOKENS, model_most)
        if count > most:
            shown = text if len(text) <= 60 else f'{text[:60]}…'
            reason = 'can be shown'
            if model_most < MOST_TOKENS:
                reason = 'the model has positions for'
            raise UserError(
                f'{name}={shown!r} has {count} tokens with its end, more than the '
                f'{most} that {reason}: give a shorter one'
            )

    def count(self, text: str) -> int:
        """The tokens of a text, its end included."""
        return len(self.trained.tokenizer.encode([text])[0]) + 1

    @functools.cached_property
    def note(self) -> str:
        """Which attentions do not hold their weights; empty if all do."""
        batch = attended.pairs_batch(self.trained.tokenizer, [('', '')])
        kinds = attended.without_weights(self.trained.model, self.variables, batch)
        return pictures.note(kinds)

    @functools.cached_property
    def pairs(self) -> list[tuple[str, str]]:
        """Sources and references of the evaluation set, if it was scored yet."""
        return reading.read_pairs(self.path, self._set)[: self._most_pairs]

    def attend(self, outputs: Sequence[tuple[str, str]]) -> list[Attended]:
        """The weights for sources and what the decoder writes, in one batch.

        Raises:
          UserError: one is longer than the model's positions.
        """
        new = [pair for pair in outputs if pair not in self._attended]
        lengths = [self.count(text) for pair in new for text in pair]
        check_lengths(self.trained.model, lengths)
        found = attended.attend(
            self.trained.model, self.variables, self.trained.tokenizer, new
        )
        self._attended |= zip(new, found, strict=True)
        return [self._attended[pair] for pair in outputs]

    def inspect(self, outputs: Sequence[tuple[str, str]]) -> Inspection:
        """All that figures of attention and heads are drawn from.

        Args:
          outputs: the sentences to show, each with what the decoder writes.

        Raises:
          UserError: as `attend`; or the run's pairs cannot be read.
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
    def _heads(self) -> tuple[Importance, float, Any]:
        if not self.pairs:
            return Importance({}, {}), math.nan, {}
        model = self.trained.model
        batch = attended.pairs_batch(self.trained.tokenizer, self.pairs)
        importance, loss = heads.head_importance(model, self.variables, batch)
        return importance, loss, heads.head_stats(model, self.variables, batch)

    @functools.cached_property
    def _translator(self) -> Translator:
        config = self.trained.config.evaluation
        return Translator(self.trained.model, self.trained.tokenizer, config)

    def _pair(self, text: str, target: str) -> tuple[str, str]:
        self.check(text)
        if target.strip():
            self.check(target, 'target')
            return text, target
        return text, self.translate(text)
