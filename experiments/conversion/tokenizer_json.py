"""Our SentencePiece model as `tokenizer.json`, which Transformers opens.

Both merge the pair of pieces whose union has the best score, from the left.
"""

from pathlib import Path

import sentencepiece

from experiments import storage
from experiments.data.tokenizer import BOS, EOS, PAD, UNK, Tokenizer

_SPACE = '▁'
# All that Python's `str.split` takes for white space.
_WHITE = r'[\s\x1c-\x1f]+'


def write(tokenizer: Tokenizer, folder: Path) -> None:
    """Writes what `AutoTokenizer` opens."""
    # Of an extra, and only here.
    import tokenizers
    from tokenizers import decoders, models, normalizers, processors

    model = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    size = model.vocab_size()
    pieces = [model.id_to_piece(i) for i in range(size)]
    scores = {pieces[i]: model.get_score(i) for i in range(size)}
    special = sorted((PAD, EOS, BOS, UNK))
    for i in special:
        del scores[pieces[i]]
    fast = tokenizers.Tokenizer(
        models.BPE(
            vocab={piece: i for i, piece in enumerate(pieces)},
            merges=_merges(scores),
            unk_token=pieces[UNK],
            fuse_unk=True,
        )
    )
    # `tokenizer.normalize`, then SentencePiece's signs for spaces.
    steps = [
        normalizers.NFC(),
        normalizers.Replace(_SPACE, '_'),
        normalizers.Replace(tokenizers.Regex(_WHITE), ' '),
        normalizers.Strip(),
        normalizers.Prepend(_SPACE),
        normalizers.Replace(' ', _SPACE),
    ]
    fast.normalizer = normalizers.Sequence(steps)
    end = pieces[EOS]
    fast.post_processor = processors.TemplateProcessing(
        single=f'$A {end}', pair=f'$A {end} $B:1 {end}:1', special_tokens=[(end, EOS)]
    )
    # Pieces to text, without the space before the first word.
    steps = [decoders.Replace(_SPACE, ' '), decoders.Fuse(), decoders.Strip(' ', 1, 0)]
    fast.decoder = decoders.Sequence(steps)
    fast.add_special_tokens([pieces[i] for i in special])
    fast.save(str(folder / 'tokenizer.json'))
    settings = {
        'tokenizer_class': 'PreTrainedTokenizerFast',
        'pad_token': pieces[PAD],
        'eos_token': end,
        'bos_token': pieces[BOS],
        'unk_token': pieces[UNK],
        'clean_up_tokenization_spaces': False,
        'model_input_names': ['input_ids', 'attention_mask'],
    }
    storage.write_json(folder / 'tokenizer_config.json', settings)


def _merges(scores: dict[str, float]) -> list[tuple[str, str]]:
    """Pairs of pieces whose union is one, the union of best score first."""
    merges = []
    for piece in sorted(scores, key=lambda piece: -scores[piece]):
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in scores and right in scores:
                merges.append((left, right))
    return merges
