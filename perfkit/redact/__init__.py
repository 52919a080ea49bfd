"""Copy a Kineto trace without what identifies its owner: hosts, users, paths, own functions and models.

    redact_trace(source, target, salt=None)     -> RedactionReport
    redact_traces(sources, folder, salt=None)   -> a report of each: ranks of one job, whose tokens fit together

Default deny. A string stays only if it is known to come from a public library or from the profiler itself;
every other string, and every unknown key, becomes a token such as `fn_3fa9c1d204`. Tokens are keyed hashes:
the same name gives the same token within one export (and across exports with the same salt), and nobody
without the salt can test a guess. Numbers, times and shapes are copied byte for byte.

The text is rewritten string by string as it streams past, never parsed and written anew. Afterwards the copy is
read again, and is deleted if one of the hashed names is still in it.

    names, words.csv   what is public
    meaning            what an analysis reads in a name
    redactor           what stays of a string
    text, stream       JSON text, string by string
    proof, traces      files, and the search in the copy
"""

from perfkit.redact.redactor import Redactor
from perfkit.redact.stream import redact_stream
from perfkit.redact.traces import RedactionReport, free_name, redact_trace, redact_traces

__all__ = ["RedactionReport", "Redactor", "free_name", "redact_stream", "redact_trace", "redact_traces"]
