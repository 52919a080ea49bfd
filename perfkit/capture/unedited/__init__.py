"""Measure a script that has never heard of perfkit: what `perfkit run` puts into its Python processes.

    site/sitecustomize.py   found by every Python that the command starts; arms the import hook
    importing               runs `attach` right after torch has been imported
    attach                  hooks on optimizers, loaders, checkpoints, collectives
    steps                   turns what the hooks see into steps, tokens and model FLOPs

Nothing is started before training: a process that never iterates a DataLoader and never steps an optimizer (a
launcher, a worker) records nothing. PERFKIT_RUN in the environment carries the options.
"""
