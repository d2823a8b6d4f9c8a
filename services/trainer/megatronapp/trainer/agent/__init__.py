"""The agent of a node: reads what its ranks write, turns it into messages, and sends them. See docs/agent.md.

`layout` and `rendezvous` are for the ranks, too, and import nothing heavy; nothing here imports torch.
"""
