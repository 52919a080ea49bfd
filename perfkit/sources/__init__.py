"""Readers of trace dumps, one file per source; `detect` chooses by content, `ingest` writes the store."""
