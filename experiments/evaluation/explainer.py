"""A translation and what led to it: search, alternatives, attention of each head."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from experiments import storage
from experiments.config import search
from experiments.data.packing import power_of_two
from experiments.errors import UserError
from experiments.evaluation.opened_run import OpenedRun
from experiments.evaluation.translator import check_lengths
from experiments.runtime import compilation, mesh
from flaxformer_lite import generation, introspection
from flaxformer_lite.decoding import SearchTrace
from flaxformer_lite.decoding.strategies.base import Strategy
from flaxformer_lite.layers.scanned_stack import unstack_layers
from flaxformer_lite.models.base import Model
from flaxformer_lite.ops.top_k import top_k_indices
from flaxformer_lite.training.batch import (
    Batch,
    make_batch,
    pad_source,
    source_and_inputs,
)

MOST_TOKENS = 64  # of a source, with its end
ALTERNATIVES = 8  # for each token of a translation
_SMALLEST_ROOM = 32  # tokens


class Explainer:
    """Translates sentences with a run, and tells how each translation came about.

    Sentences are padded to few lengths, for each of which a program is compiled when it
    is first needed. To switch a head or a layer off compiles nothing.

    Args:
      run: whose model it is.

    Attributes:
      run: the same.
      switches: what can be switched off, by its place in the masks that
        `introspection.ablation_masks` makes: heads, as
        `decoder/layer_1/cross_attention/heads/3`, and layers, as
        `decoder/layer_drop_1/keep/0`.

    Raises:
      UserError: the run's sources are vectors, or it has no checkpoint to read.
    """

    def __init__(self, run: OpenedRun):
        if run.tokenizer.reads_vectors:
            raise UserError(
                f'{run.path}: its sources are vectors, and only sentences can be shown'
            )
        self.run = run
        self._own = search.make(run.config.evaluation, run.tokenizer.forced_first)
        # Heads and layers are switched off one by one, also where they are scanned.
        self._model = run.model.with_separate_layers()
        self._variables = unstack_layers(run.variables)
        masks = jax.device_get(introspection.ablation_masks(self._model))
        self._masks: Any = flatten_dict(masks, sep='/')
        self.switches = [
            f'{path}/{i}'
            for path, mask in self._masks.items()
            for i in range(mask.size)
        ]
        self._inspect = compilation.Program(jax.jit(self._inspected))

    def example(self) -> str:
        """The first source that the run has scored; '' if it has saved none."""
        folder = self.run.path / 'translations'
        for file in sorted(folder.glob('*.source.txt')):
            with storage.as_user_error('read', file):
                lines = file.read_text('utf-8').splitlines()
            if lines:
                return lines[0]
        return ''

    def strategy(self, beams: int) -> Strategy:
        """A search for so many results, with the config's length penalty if it has one.

        For one result it is greedy.
        """
        if beams == 1:
            return generation.as_strategy('greedy')
        alpha = getattr(self._own.strategy, 'alpha', 0.6)
        return generation.as_strategy(f'beam(beams={beams}, alpha={alpha})')

    def explain(
        self, text: str, strategy: Strategy, off: Sequence[str] = (), rank: int = 0
    ) -> dict[str, Any]:
        """A sentence's translations, and all that led to one of them.

        Args:
          text: the sentence.
          strategy: of the search; one that draws nothing.
          off: those of `switches` that are off.
          rank: which of the search's results is looked into; 0 is the best.

        Returns:
          As JSON can have it:
            texts: the results of the search, best first.
            nodes: their numbers in the tree.
            tree: the hypotheses of the search, each with the number of the one that it
              continues (−1 of the first), its last piece, its score as
              `SearchTrace.hypotheses` has it, and whether it ended.
            source: the sentence's pieces.
            tokens: of the result, each with its piece, its probability, and the
              likeliest in its place with theirs.
            attention: by name, as `introspection.Record` has them: the pieces that are
              queries and keys, and by layer and head the weights in thousandths. A
              query of the decoder is the piece that it writes.

        Raises:
          UserError: the text is blank or too long, or `off` names what is not there.
        """
        source = self._encode(text)
        variables = self._ablated(off)
        trace = self._trace(variables, strategy, source)
        end = self._model.special_tokens.end
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
        results = [ids for ids, _ in trace.result.of_row(end, 0)]
        if not results:
            raise UserError('the logits are not numbers: there is no translation')
        target = results[max(0, min(rank, len(results) - 1))]
        return {
            'texts': self.run.tokenizer.decode([list(ids) for ids in results]),
            'nodes': [numbers[ids] for ids in results],
            'tree': tree,
            **self._look_inside(variables, source, target),
        }

    def _encode(self, text: str) -> list[int]:
        if not text.strip():
            raise UserError('the sentence is blank: type one')
        tokenizer = self.run.tokenizer
        # Half of a surrogate pair, which JSON may have, is no text.
        text = text.encode(errors='replace').decode()
        ids = tokenizer.with_end(tokenizer.encode([text])[0])
        if len(ids) > MOST_TOKENS:
            raise UserError(
                f'the sentence has {len(ids)} tokens with its end, more than the '
                f'{MOST_TOKENS} that can be shown: give a shorter one'
            )
        check_lengths(self._model, [len(ids)])
        return ids

    def _ablated(self, off: Sequence[str]) -> Any:
        """The model's variables with some heads and layers switched off."""
        masks = jax.tree.map(np.copy, self._masks)
        for name in off:
            if name not in self.switches:
                raise UserError(f'the model has no {name!r} to switch off')
            path, _, index = name.rpartition('/')
            masks[path].flat[int(index)] = 0
        placed = _placed(unflatten_dict(masks, sep='/'))
        return {**self._variables, 'ablation_masks': placed}

    def _trace(
        self, variables: Any, strategy: Strategy, source: Sequence[int]
    ) -> SearchTrace:
        """The search for a sentence's translation."""
        extra = self.run.config.evaluation.extra_length
        choice = self._own._replace(strategy=strategy)
        program = _traced_search(self._model, choice, extra)
        padding = self._model.special_tokens.padding
        source_BS = pad_source([source], padding, length=_room(len(source)))
        # As `Translator` has it: the end of the source is not counted.
        max_len_B = np.array([len(source) - 1 + extra], np.int32)
        arrays = _placed((source_BS, max_len_B))
        return jax.device_get(program(variables, *arrays))

    def _inspected(self, variables: Any, batch: Batch) -> Any:
        """The weights of a pair; probabilities of its labels; the likeliest tokens."""
        seen = introspection.record(self._model, variables, batch, missing_ok=True)
        logits_BTV: Any = self._model.apply(variables, *source_and_inputs(batch))
        p_TV = jax.nn.softmax(logits_BTV[0])
        labels_T1 = batch['labels'][0][:, None]
        p_T1 = jnp.take_along_axis(p_TV, labels_T1, 1)
        alternatives = min(ALTERNATIVES, p_TV.shape[1])
        likeliest_TK = top_k_indices(p_TV, alternatives)
        p_TK = jnp.take_along_axis(p_TV, likeliest_TK, 1)
        return seen.weights, p_T1[:, 0], likeliest_TK, p_TK

    def _look_inside(
        self, variables: Any, source: Sequence[int], target: Sequence[int]
    ) -> dict[str, Any]:
        """What happens in the model when it writes a target."""
        special = self._model.special_tokens
        longest = max(len(source), len(target))
        length = _room(longest)
        batch = make_batch(
            [source], [target], special.start, special.padding, length=length
        )
        seen = self._inspect(variables, _placed(batch))
        weights, *found = jax.device_get(seen)
        of_source, of_target = self.run.tokenizer.sides
        read = of_source.pieces(list(source))
        pieces = of_target.pieces([special.start, *target])
        by_token = [x_T.tolist() for x_T in found]
        tokens = []
        # What follows the target is padding.
        for piece, p, others, p_K in zip(pieces[1:], *by_token, strict=False):
            likeliest = zip(of_target.pieces(others), p_K, strict=True)
            tokens.append({'piece': piece, 'p': p, 'likeliest': list(likeliest)})
        attention = self._attention(weights, read, pieces, length)
        return {'source': read, 'tokens': tokens, 'attention': attention}

    def _attention(
        self, weights: Any, read: list[str], target: list[str], length: int
    ) -> dict[str, Any]:
        """The weights without padding, and the pieces that they are of.

        The decoder reads a piece of the target, start included, to write the next one.
        """
        pieces = {'encoder': read, 'decoder': target[:-1]}
        written = {'encoder': read, 'decoder': target[1:]}
        places = {stack: np.arange(len(of)) for stack, of in pieces.items()}
        if list(self._model.stacks()) == ['decoder']:
            # It reads both, the target behind the padding of the source.
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


@functools.lru_cache(maxsize=16)
def _traced_search(
    model: Model, choice: search.Search, extra_length: int
) -> compilation.Program:
    """The compiled search for the translation of a sentence, with all its steps."""

    def trace(variables, source_BS, max_len_B):
        length = source_BS.shape[1] - 1 + extra_length
        settings = generation.Settings(*choice, length, model.special_tokens)
        inputs = generation.decode_inputs(
            model, settings, variables, source_BS, max_len_B
        )
        return choice.strategy.search(inputs).trace()

    return compilation.Program(jax.jit(trace))


def _placed(tree: Any) -> Any:
    return jax.device_put(tree, mesh.of().everywhere())


def _room(tokens: int) -> int:
    """The length that so many tokens are padded to: a power of two."""
    return max(_SMALLEST_ROOM, power_of_two(tokens))
