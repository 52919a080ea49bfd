"""The command line: one file per command, `perfkit.cli.main` wires them."""
