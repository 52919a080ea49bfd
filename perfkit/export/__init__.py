"""Runs in the form of the tools that people already use: Perfetto, Prometheus, CSV, Parquet.

    write_perfetto("window.json.gz", "llama-8b", store="runs/", ranks=[0, 1], steps=(10, 12))
    metrics_text(opened)                        the run's figures, in the names that capture serves live
    write_table(table, Path("kernels.csv"))     formulas in cells are harmless

`perfkit.redact` makes copies that can be shared; `perfkit export` is the command around all of them.
"""
