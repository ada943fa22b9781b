"""Names the command that replaces this one."""

from experiments.command_line import command

command.moved('flaxformer_explain.explain')
