"""MegaScope's values: where one can look, what one can ask, and how tensors travel. Pure, NumPy alone.

Expressions are parsed (`expression`) and planned (`plan`) before anything is done. A rank reduces its own shard
(`reduce`), packs it (`quantize`, `frame`), and the gateway merges shards by their site's rule (`sites`, `stitch`):
there is no collective.
"""
