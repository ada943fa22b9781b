"""Explains a translation: search, alternatives, attention, logit lens, and edits."""

import functools
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments import storage
from experiments.data.packing import power_of_two
from experiments.errors import UserError, prefix_errors
from experiments.evaluation.opened_run import OpenedRun
from experiments.evaluation.translator import check_lengths
from experiments.runtime import compilation, mesh
from flaxformer_explain import edits as editing
from flaxformer_explain import explanations
from flaxformer_explain.attributions import word_of_piece
from flaxformer_lite import generation, introspection
from flaxformer_lite.decoding import SearchTrace
from flaxformer_lite.decoding.strategies.base import Strategy
from flaxformer_lite.interventions import Interventions, intervene
from flaxformer_lite.interventions.context import with_separate_layers
from flaxformer_lite.models.base import Model
from flaxformer_lite.ops.top_k import top_k_indices
from flaxformer_lite.training.batch import (
    Batch,
    make_batch,
    pad_source,
    source_and_inputs,
)

MOST_TOKENS = 64  # maximum source length, including EOS
ALTERNATIVES = 8  # alternatives to each token of a translation
_MIN_LENGTH = 32  # minimum padded length, in tokens
_NO_EDITS: Mapping[str, Any] = MappingProxyType({})


class Explainer:
    """Translates sentences with a run, and explains each translation.

    Each of few padded lengths compiles once.

    Attributes:
      switches: The names of `edits.Editor`.
    """

    def __init__(self, run: OpenedRun):
        if run.tokenizer.reads_vectors:
            raise UserError(
                f'{run.path}: the sources are vectors. Only text can be shown.'
            )
        self.run = run
        # Layers change separately, even if they are scanned or shared.
        self._model, self._variables = with_separate_layers(run.model, run.variables)
        batch = self._batch([], [], _MIN_LENGTH)
        self._editor = editing.Editor(self._model, self._variables, batch)
        self.switches = self._editor.names
        self._inspect = compilation.Program(jax.jit(self._inspected))
        recorded = functools.partial(editing.record, self._model)
        self._record = compilation.Program(jax.jit(recorded))
        self._searches: dict[Any, compilation.Program] = {}

    def example(self) -> str:
        """Returns the run's first scored source, if any is saved."""
        folder = self.run.path / 'translations'
        for file in sorted(folder.glob('*.source.txt')):
            with storage.as_user_error('read', file):
                lines = file.read_bytes().decode().splitlines()
            if lines:
                return lines[0]
        return ''

    def strategy(self, beams: int) -> Strategy:
        """Returns greedy or beam search, with the config's length penalty or 0.6."""
        if beams == 1:
            return generation.as_strategy('greedy')
        alpha = getattr(self.run.decoding.strategy, 'alpha', 0.6)
        return generation.as_strategy(f'beam(beams={beams}, alpha={alpha})')

    def explain(
        self,
        text: str,
        strategy: Strategy,
        edits: Mapping[str, Any] = _NO_EDITS,
        other: str = '',
        rank: int = 0,
    ) -> dict[str, Any]:
        """Translates a sentence and explains one of the translations.

        Args:
          strategy: A deterministic search strategy.
          edits: For names of `switches`, a factor of the activation, or 'patch' to take
            it from the same tokens of another sentence.
          other: The sentence to patch from.
          rank: The search result to explain; 0 is the best.

        Returns:
          A JSON serializable dict:
            texts: Results of the search, best first.
            nodes: Their indices in `tree`.
            tree: Hypotheses, each with the index of its parent (−1 for the root), its
              last piece, its score (`SearchTrace.hypotheses`), and whether it ended.
            source: Pieces of the sentence.
            tokens: Pieces of the explained result, each with its probability and the
              likeliest alternatives.
            first_word: Index in `tokens` of the first with a letter or digit; 0 without
              any.
            attention: As in `introspection.Record`, with the pieces of queries and
              keys, and weights by layer and head in thousandths. A decoder query is the
              piece that it predicts.
            lens: Before the first decoder layer and after each, the likeliest piece of
              each token and its probability (`logit_lens`).
        """
        source = self._encode(text)
        donor = None
        self._editor.check(edits)
        if editing.PATCH in edits.values():
            with prefix_errors('sentence to patch from'):
                donor = self._donor(other, strategy)
        functions = self._functions(edits, donor)
        (first,) = self.run.tokenizer.first_tokens([text])
        trace = self._trace(functions, strategy, source, first)
        end = self._model.special_tokens.eos
        hypotheses = trace.hypotheses(end)
        numbers = {ids: i for i, ids in enumerate(hypotheses)}
        of_target = self.run.tokenizer.sides[1]
        tree = [
            {
                'parent': numbers[ids[:-1]] if ids else -1,
                'piece': ''.join(of_target.pieces(list(ids[-1:]))),
                'score': score,
                'ended': ids[-1:] == (end,),
            }
            for ids, score in hypotheses.items()
        ]
        results = self._results(trace)
        target = results[max(0, min(rank, len(results) - 1))]
        return {
            'texts': self.run.tokenizer.decode([list(ids) for ids in results]),
            'nodes': [numbers[ids] for ids in results],
            'tree': tree,
            **self._look_inside(functions, source, target),
        }

    def _results(self, trace: SearchTrace) -> list[tuple[int, ...]]:
        end = self._model.special_tokens.eos
        results = [ids for ids, _ in trace.result.of_row(end, 0)]
        if not results:
            raise UserError('the logits are NaN. Choose another checkpoint.')
        return results

    def _encode(self, text: str) -> list[int]:
        if not text.strip():
            raise UserError('the sentence is blank. Enter a sentence.')
        tokenizer = self.run.tokenizer
        # JSON may contain half of a surrogate pair, which is not valid text.
        text = text.encode(errors='replace').decode()
        ids = tokenizer.with_end(tokenizer.encode([text])[0])
        if len(ids) > MOST_TOKENS:
            raise UserError(
                f'the sentence has {len(ids)} tokens, including the end token. Shorten '
                f'it to {MOST_TOKENS}.'
            )
        check_lengths(self._model, [len(ids)])
        return ids

    def _functions(
        self, edits: Mapping[str, Any], donor: editing.Donor | None
    ) -> Interventions:
        return _on_devices(self._editor.functions(edits, donor))

    def _donor(self, text: str, strategy: Strategy) -> editing.Donor:
        source = self._encode(text)
        functions = self._functions({}, None)
        (first,) = self.run.tokenizer.first_tokens([text])
        trace = self._trace(functions, strategy, source, first)
        target, *_ = self._results(trace)
        # A single length, so that all sentences compile once.
        length = _padded_length(MOST_TOKENS + self.run.decoding.extra_length)
        batch = self._batch(source, target, length)
        values = self._record(self._variables, _on_devices(batch))
        lengths = {'encoder': len(source), 'decoder': len(target)}
        return editing.Donor(values, jax.tree.map(np.int32, lengths))

    def _batch(
        self, source: Sequence[int], target: Sequence[int], length: int
    ) -> Batch:
        special = self._model.special_tokens
        return make_batch(
            [source], [target], special.bos, special.padding, length=length
        )

    def _trace(
        self,
        functions: Interventions | None,
        strategy: Strategy,
        source: Sequence[int],
        first: int | None,
    ) -> SearchTrace:
        usual = self.run.decoding
        processors = (*generation.forced_prefix(first), *usual.processors)
        options = usual._replace(strategy=strategy, processors=processors)
        if options not in self._searches:
            self._searches[options] = _traced_search(self._model, options)
        padding = self._model.special_tokens.padding
        source_BS = pad_source([source], padding, length=_padded_length(len(source)))
        # As in `Translator`, without the EOS of the source.
        max_len_B = np.array([len(source) - 1 + usual.extra_length], np.int32)
        arrays = _on_devices((source_BS, max_len_B))
        search = self._searches[options]
        return jax.device_get(search(self._variables, functions, *arrays))

    def _inspected(self, variables: Any, functions: Any, batch: Batch) -> Any:
        with intervene(functions):
            seen = introspection.record(
                self._model, variables, batch, missing_ok=True, names=()
            )
            logits_BTV: Any = self._model.apply(variables, *source_and_inputs(batch))
            # A recurrent decoder has no layers.
            lens_LBTV = logits_BTV[None][:0]
            if self._model.stacks():
                lens_LBTV = explanations.logit_lens(self._model, variables, batch)
        p_TV = jax.nn.softmax(logits_BTV[0])
        labels_T1 = batch['labels'][0][:, None]
        p_T1 = jnp.take_along_axis(p_TV, labels_T1, 1)
        alternatives = min(ALTERNATIVES, p_TV.shape[1])
        likeliest_TK = top_k_indices(p_TV, alternatives)
        p_TK = jnp.take_along_axis(p_TV, likeliest_TK, 1)
        lens_LTV = jax.nn.softmax(lens_LBTV[:, 0])
        lens = lens_LTV.argmax(-1), lens_LTV.max(-1)
        return seen.weights, lens, p_T1[:, 0], likeliest_TK, p_TK

    def _look_inside(
        self,
        functions: Interventions,
        source: Sequence[int],
        target: Sequence[int],
    ) -> dict[str, Any]:
        special = self._model.special_tokens
        length = _padded_length(max(len(source), len(target)))
        batch = self._batch(source, target, length)
        seen = self._inspect(self._variables, functions, _on_devices(batch))
        weights, lens, *found = jax.device_get(seen)
        of_source, of_target = self.run.tokenizer.sides
        read = of_source.pieces(list(source))
        pieces = of_target.pieces([special.bos, *target])
        by_token = [x_T.tolist() for x_T in found]
        tokens = []
        # Padding follows the target.
        for piece, p, others, p_K in zip(pieces[1:], *by_token, strict=False):
            likeliest = zip(of_target.pieces(others), p_K, strict=True)
            tokens.append({'piece': piece, 'p': p, 'likeliest': list(likeliest)})
        layers = [
            list(zip(of_target.pieces(ids_T), p_T, strict=True))[: len(target)]
            for ids_T, p_T in zip(*(x_LT.tolist() for x_LT in lens), strict=True)
        ]
        attention = self._attention(weights, read, pieces, length)
        words = word_of_piece(of_target, target)
        return {
            'source': read,
            'tokens': tokens,
            'first_word': next((i for i, word in enumerate(words) if word >= 0), 0),
            'attention': attention,
            'lens': layers,
        }

    def _attention(
        self, weights: Any, read: list[str], target: list[str], length: int
    ) -> dict[str, Any]:
        pieces = {'encoder': read, 'decoder': target[:-1]}
        written = {'encoder': read, 'decoder': target[1:]}
        places = {stack: np.arange(len(of)) for stack, of in pieces.items()}
        if list(self._model.stacks()) == ['decoder']:
            # A decoder-only model reads both, with the target after the padded source.
            pieces['decoder'] = read + target[:-1]
            written['decoder'] = read + target[1:]
            places['decoder'] = np.append(places['encoder'], length + places['decoder'])
        attention = {}
        for kind, layers in weights.items():
            queries = kind.removesuffix(' cross')
            keys = queries if queries == kind else 'encoder'
            rows, columns = places[queries][:, None], places[keys]
            by_layer = []
            for weights_BHTS in layers:
                weights_HTS = weights_BHTS[0][:, rows, columns]
                thousandths = np.rint(1000 * weights_HTS).astype(int)
                by_layer.append(thousandths.tolist())
            attention[kind] = {
                'queries': written[queries],
                'keys': pieces[keys],
                'weights': by_layer,
            }
        return attention


def _traced_search(
    model: Model,
    options: generation.DecodingOptions,
) -> compilation.Program:
    def trace(variables, functions, source_BS, max_len_B):
        inputs = generation.decode_inputs(
            model,
            options,
            variables,
            source_BS,
            max_len_B,
            interventions=functions,
        )
        return options.strategy.search(inputs).trace()

    return compilation.Program(jax.jit(trace))


def _on_devices(tree: Any) -> Any:
    return jax.device_put(tree, mesh.make_mesh().everywhere())


def _padded_length(tokens: int) -> int:
    return max(_MIN_LENGTH, power_of_two(tokens))
