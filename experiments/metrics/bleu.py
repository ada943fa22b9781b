"""BLEU as sacreBLEU computes it."""

import dataclasses
import re
from typing import Annotated, ClassVar

from experiments.errors import UserError
from experiments.metrics._sacrebleu import SacreBleu
from flaxformer_lite.validation import Choices, Range, Size

# For languages that don't separate all words by spaces, by ISO 639-1 and 639-3 code.
_TOKENIZERS = {
    'zh': 'zh',
    'zho': 'zh',
    'ja': 'ja-mecab',
    'jpn': 'ja-mecab',
    'ko': 'ko-mecab',
    'kor': 'ko-mecab',
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bleu(SacreBleu):
    """BP · exp(1/N Σₙ log pₙ), in percent, from the clipped n-gram precisions pₙ.

        BP = min(1, exp(1 − r/c)),  pₙ = Σ min(count, count in a reference) / Σ count

    Papineni et al. 2002. c is the length of the translations, r that of the references
    closest in length.

    Attributes:
      tokenize: SacreBLEU's tokenizer. 'language' selects one for the target language.
        Flores101 and flores200 are downloaded on first use.
      smooth_method: How to smooth pₙ = 0 (Chen and Cherry 2014).
      smooth_value: For floor and add-k. Defaults to 0.1 and 1.
      max_ngram_order: N.
      effective_order: Limits N to the longest n with any n-grams, as for single
        sentences.
    """

    unsigned: ClassVar[tuple[str, ...]] = ('max_ngram_order',)

    tokenize: Annotated[
        str,
        Choices(
            *('language', '13a', 'intl', 'zh', 'ja-mecab', 'ko-mecab', 'char'),
            *('flores101', 'flores200', 'none'),
        ),
    ] = 'language'
    lowercase: bool = False
    smooth_method: Annotated[str, Choices('exp', 'floor', 'add-k', 'none')] = 'exp'
    smooth_value: Annotated[float | None, Range(at_least=0)] = None
    max_ngram_order: Size = 4
    effective_order: bool = False

    def __post_init__(self):
        super().__post_init__()
        has_value = self.smooth_method in ('floor', 'add-k')
        if self.smooth_value is not None and not has_value:
            raise ValueError(
                f'smooth_value={self.smooth_value} applies only to smooth_method floor '
                f'and add-k, not to {self.smooth_method}. Leave it out.'
            )

    @property
    def tokenizer(self) -> str:
        if self.tokenize != 'language':
            return self.tokenize
        code = re.split('[-_]', self.language.lower())[0]  # of zh-CN and zho_Hans
        return _TOKENIZERS.get(code, '13a')

    def check_installed(self):
        try:
            self.make_scorer()
        # A dictionary or a file from the network may be missing. sacreBLEU exits the
        # process if a download fails.
        except (Exception, SystemExit) as error:
            if getattr(error, 'name', None) == 'sacrebleu':
                raise  # the command reports the missing extra
            reason = ' '.join(str(error).split())
            raise UserError(
                f'evaluation.metrics: {self.name} cannot use its tokenizer '
                f'{self.tokenizer}: {reason}. Or choose another, as in '
                '--config.evaluation.metrics=\'[bleu(tokenize="char"), chrf]\'.'
            ) from None

    def make_scorer(self):
        from sacrebleu.metrics.bleu import BLEU

        options = self.arguments()
        options['tokenize'] = self.tokenizer
        return BLEU(**options)

    def sentence_scores(self, outputs, references, sources):
        rows = self.statistics(outputs, references, sources)
        return list(map(dataclasses.replace(self, effective_order=True).score_of, rows))
