"""Text from a model: the trainer's own loop over megatron-core's GPTModel and its static cache of keys and values.

`generator.py` is the way in: a Generator over a model's chunks makes a session of each request, and all ranks step it
alike. `resident.py` serves requests on all ranks for as long as somebody asks; `main.py` is `megatronapp generate`.
"""
