"""Benchmarks that anybody can run: `python -m bench` for all that this machine can, `python -m bench.<name>` for one."""
