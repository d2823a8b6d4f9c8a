"""Ranks on CPUs, also on a machine that has GPUs: those are for tests/gpu."""

import os

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # before anything asks for them, and for the processes that tests start
