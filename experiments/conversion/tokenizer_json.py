"""Our SentencePiece model as `tokenizer.json`, which the package `tokenizers` reads.

Both merge the pair of pieces whose union has the best score, from the left.
"""

from typing import Any

import sentencepiece

from experiments.data.tokenizer import BOS, EOS, PAD, UNK, Tokenizer

_SPACE = '▁'
# All that Python's `str.split` takes for white space.
_WHITE = ''.join(c for c in map(chr, range(0x3001)) if c.isspace())


def files_of(tokenizer: Tokenizer) -> dict[str, Any]:
    """The files of a tokenizer that `AutoTokenizer` opens: name → JSON."""
    model = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    pieces = [model.id_to_piece(i) for i in range(model.vocab_size())]
    scores = [model.get_score(i) for i in range(model.vocab_size())]
    special = {i: pieces[i] for i in sorted((PAD, EOS, BOS, UNK))}
    return {
        'tokenizer.json': {
            'version': '1.0',
            'added_tokens': [_added(i, piece) for i, piece in special.items()],
            'normalizer': _normalizer(),
            'pre_tokenizer': None,
            'post_processor': _post_processor(special[EOS]),
            'decoder': _decoder(),
            'model': {
                'type': 'BPE',
                'unk_token': special[UNK],
                'fuse_unk': True,
                'byte_fallback': False,
                'vocab': {piece: i for i, piece in enumerate(pieces)},
                'merges': _merges(pieces, scores, set(special)),
            },
        },
        'tokenizer_config.json': {
            'tokenizer_class': 'PreTrainedTokenizerFast',
            'pad_token': special[PAD],
            'eos_token': special[EOS],
            'bos_token': special[BOS],
            'unk_token': special[UNK],
            'clean_up_tokenization_spaces': False,
            'model_input_names': ['input_ids', 'attention_mask'],
        },
    }


def _merges(
    pieces: list[str], scores: list[float], special: set[int]
) -> list[tuple[str, str]]:
    """Pairs of pieces whose union is one, the union of best score first."""
    ids = {piece: i for i, piece in enumerate(pieces) if i not in special}
    merges = []
    for piece in sorted(ids, key=lambda piece: -scores[ids[piece]]):
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in ids and right in ids:
                merges.append((left, right))
    return merges


def _added(i: int, piece: str) -> dict[str, Any]:
    return {
        'id': i,
        'content': piece,
        'single_word': False,
        'lstrip': False,
        'rstrip': False,
        'normalized': False,
        'special': True,
    }


def _normalizer() -> dict[str, Any]:
    """`tokenizer.normalize`, then SentencePiece's signs for spaces."""
    steps = [
        {'type': 'NFC'},
        {'type': 'Replace', 'pattern': {'String': _SPACE}, 'content': '_'},
        {'type': 'Replace', 'pattern': {'Regex': f'[{_WHITE}]+'}, 'content': ' '},
        {'type': 'Strip', 'strip_left': True, 'strip_right': True},
        {'type': 'Prepend', 'prepend': _SPACE},
        {'type': 'Replace', 'pattern': {'String': ' '}, 'content': _SPACE},
    ]
    return {'type': 'Sequence', 'normalizers': steps}


def _post_processor(end: str) -> dict[str, Any]:
    """The end token behind each sentence."""
    first: list[dict[str, Any]] = [
        {'Sequence': {'id': 'A', 'type_id': 0}},
        {'SpecialToken': {'id': end, 'type_id': 0}},
    ]
    second = [
        {'Sequence': {'id': 'B', 'type_id': 1}},
        {'SpecialToken': {'id': end, 'type_id': 1}},
    ]
    tokens = {end: {'id': end, 'ids': [EOS], 'tokens': [end]}}
    return {
        'type': 'TemplateProcessing',
        'single': first,
        'pair': first + second,
        'special_tokens': tokens,
    }


def _decoder() -> dict[str, Any]:
    """Pieces to text, without the space before the first word."""
    steps = [
        {'type': 'Replace', 'pattern': {'String': _SPACE}, 'content': ' '},
        {'type': 'Fuse'},
        {'type': 'Strip', 'content': ' ', 'start': 1, 'stop': 0},
    ]
    return {'type': 'Sequence', 'decoders': steps}
