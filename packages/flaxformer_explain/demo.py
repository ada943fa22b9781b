"""Serves a page that shows how a trained run translates your text.

python -m flaxformer_explain.demo --workdir=runs/wmt_small

The page shows the search, the alternatives of each token, the logit lens, and the
attention of all heads. Switch off, scale or patch heads and sublayers to see the
translation change. A second --workdir adds another run for comparison. Ctrl-C stops the
server.
"""

# PYTHON_ARGCOMPLETE_OK
if __name__ == '__main__':
    from experiments.command_line import command

    command.run('flaxformer_explain.demo')

from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.command_line import flags, screen
from flaxformer_explain.browser.server import BEAMS, Server

if TYPE_CHECKING:
    from flaxformer_explain.explainer import Explainer


def main() -> None:
    args = _parser().parse_args()
    with Server(args.port) as server:
        runs = _open(args)
        print(f'http://{server.hosts[0]}/ (press Ctrl-C to stop)', flush=True)
        server.serve(runs, runs[0].example())


def _open(args: Any) -> 'list[Explainer]':
    with screen.on_stderr('opening the run') as shown:
        # Import JAX only after the flags, so that errors in flags show at once.
        from experiments.evaluation.opened_run import OpenedRun
        from experiments.runtime import compilation
        from flaxformer_explain.explainer import Explainer

        compilation.use_cache()
        runs = [
            Explainer(OpenedRun(path, args.trust_code, args.step, args.dtype))
            for path in args.workdir
        ]
        shown.begin('compiling')
        for run in runs:
            run.explain('a', run.strategy(BEAMS[2]))
    return runs


def _parser() -> flags.Parser:
    parser = flags.Parser(__doc__)
    parser.add_argument(
        '--workdir',
        type=Path,
        required=True,
        action='append',
        help='directory of a run; repeat to compare runs',
    )
    parser.add_argument(
        '--port',
        type=flags.whole_number,
        default=8017,
        help='port of the local server; 0 picks a free one',
    )
    flags.add_step(parser)
    flags.add_dtype(parser)
    flags.add_trust_code(parser)
    return parser
