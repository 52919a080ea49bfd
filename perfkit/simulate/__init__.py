"""Deterministic traces of simulated jobs, with the true answer beside them."""

from perfkit.simulate.faults import Fault, parse_fault
from perfkit.simulate.hardware import HardwareModel, resolve_hardware
from perfkit.simulate.job import Job, Mesh
from perfkit.simulate.sample import sample_job
from perfkit.simulate.simulation import Simulation, simulate, write_traces

__all__ = [
    "Fault", "HardwareModel", "Job", "Mesh", "Simulation", "parse_fault", "resolve_hardware", "sample_job", "simulate",
    "write_traces",
]  # fmt: skip
