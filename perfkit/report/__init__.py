"""A Report value and its renderers: text, JSON and HTML."""
