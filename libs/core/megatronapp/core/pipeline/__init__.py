"""Pipeline schedules, pure: what a stage may compute next, in which order, with how much memory, and how long it takes.

operations and placement name things · orders are schedules, as hints or to be run as they are · lanes, admission and
policy choose a stage's next operation while it runs · caps and bounds tell what is possible · schedule_csv reads and
writes orders · simulator runs the policy on invented time. The trainer, the detector and the CLI stand on it.
"""
