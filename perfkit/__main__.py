"""`python -m perfkit` is the same as `perfkit`."""

from perfkit.cli.main import entry

entry()
