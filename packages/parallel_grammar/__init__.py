"""A synchronous grammar of English and German: sentences with their translations.

The grammar draws a syntax tree, and each language renders the same tree:

    >>> from parallel_grammar import Rng, english, german, sentence
    >>> rng = Rng(0)
    >>> tree = sentence(rng)
    >>> english.sentence(tree)
    'My doctor forgets to close my useful box.'
    >>> german.sentence(tree)
    'Mein Arzt vergisst, meine nützliche Kiste zuzumachen.'

A seed gives the same sentences on every platform and Python version. Modules, in the
order of the data flow:

* `words`, `nouns`, `verbs`: tables of words in both languages.
* `inflect_english`, `inflect_german`: inflection.
* `lexemes`, `lexicon`: the inflected words, by their English base form.
* `syntax`: the classes of a tree. You can also build a tree by hand.
* `sample_*`: random trees.
* `english`, `german`, `german_phrases`: a tree as text.
* `tagged`: words with the units of the tree that they express.
* `gold`: which words translate each other, and which decide a German form.
* `held_out`: which trees are reserved for evaluation.
"""

from parallel_grammar import english, german
from parallel_grammar.gold import Gold, annotate
from parallel_grammar.held_out import HELD_OUT, is_held_out
from parallel_grammar.rng import Rng
from parallel_grammar.sample_sentences import long_sentence, sentence
from parallel_grammar.syntax import Sentence

__all__ = [
    'HELD_OUT',
    'Gold',
    'Rng',
    'Sentence',
    'annotate',
    'english',
    'german',
    'is_held_out',
    'long_sentence',
    'sentence',
]
