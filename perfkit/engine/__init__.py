"""Run a function over many inputs: local processes now, other engines behind the same interface."""
