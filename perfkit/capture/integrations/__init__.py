"""Capture for frameworks: one callback for HF Trainer and Lightning, one wrapper for Accelerate loops.

    from perfkit.capture.integrations.huggingface import PerfkitCallback
    from perfkit.capture.integrations.lightning import PerfkitCallback
    from perfkit.capture.integrations.accelerate import watch

Each module imports its framework; nothing else in perfkit does.
"""
