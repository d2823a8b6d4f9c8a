"""MegaFBD planned: what forward passes on other devices cost, hold and gain (docs/fbd.md). Pure.

`cluster` says what there is, `memory` and `step` what a mapping holds and takes, `planning` which one pays.
"""
