"""Trace messages as numpy columns and as files; the one codec of trainer, collector and detector."""
