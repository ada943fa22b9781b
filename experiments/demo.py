"""Shows in a browser on this machine how a trained run translates what one types.

python -m experiments.demo --workdir=runs/wmt_small

The page has the search, the alternatives of each token, and the attention of all heads;
heads and layers are switched off by a click. A second --workdir is shown beside the
first. Ctrl-C ends it.
"""

# PYTHON_ARGCOMPLETE_OK
if __name__ == '__main__':
    from experiments.command_line import command

    command.run('experiments.demo')

from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.browser.server import BEAMS, Server
from experiments.command_line import flags, screen
from experiments.runtime import memory

if TYPE_CHECKING:
    from experiments.evaluation.explainer import Explainer


def main() -> None:
    args = _parser().parse_args()
    with Server(args.port) as server:
        runs = _open(args)
        print(f'http://{server.hosts[0]}/ (Ctrl-C ends it)', flush=True)
        server.serve(runs, runs[0].example())


def _open(args: Any) -> 'list[Explainer]':
    """Opens the runs and compiles what answers need."""
    with screen.on_stderr('opening the run') as shown:
        # These import JAX, so they come after the flags: a mistake is answered at once.
        from experiments.evaluation.explainer import Explainer
        from experiments.evaluation.opened_run import OpenedRun
        from experiments.runtime import compilation

        memory.keep_freed()
        compilation.use_cache()
        runs = [
            Explainer(OpenedRun(path, args.trust_code, args.step))
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
        help='of the run; a second one is shown beside it',
    )
    parser.add_argument(
        '--port',
        type=flags.whole_number,
        default=8017,
        help='of this machine on which the page is; 0 for one that is free',
    )
    flags.add_step(parser)
    flags.add_trust_code(parser)
    return parser
