"""What the cluster delivered: goodput buckets, ETTR, MTTF and MTTR, uptime, planning, importers, roll-ups.

    lifecycle, steps -> Timeline -> account() -> Pieces -> run_rollup -> summaries, ladder B
    sacct, Philly, Kubernetes, … -> jobs -> the same summaries, as far as a scheduler knows

Tables are in perfkit.schema; what the buckets mean is in perfkit.goodput.account.
"""
