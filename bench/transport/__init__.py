"""How fast tensors travel between two ranks of this host, beside what else could carry them, in one run.

CPU tensors: bare ring in shared memory, gloo, the shm and tcp lanes. GPU tensors, where there are two GPUs: bare copy
engine, NCCL, the cuda_ipc lane; where there are four or more, also all of them at once. Then the step times of a
pipeline over torch's messages and over these. Prints tables and ratios; what a machine lacks is said to be not
measured.
"""

from bench.transport.report import main

__all__ = ["main"]
