"""A pipeline on invented time, on the policy that stages run (pure).

events is the simulation itself, in plain arithmetic on lists or arrays, so that a compiler can take it as it is · times
draws how long operations take · links say how messages travel · run puts the three together for one replica · steps
adds replicas, the step's end and what bounds it · planning compares schedules.
"""
