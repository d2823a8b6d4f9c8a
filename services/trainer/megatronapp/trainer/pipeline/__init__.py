"""Messages between pipeline stages: one port, over torch.distributed or the native engine.

identity names the messages of a schedule · port posts, waits and tells observers · torch_transport and native carry,
late_sends delays what native carries · lost_peers ends who waits for a dead rank in vain ·
schedule runs megatron-core's schedules over the port, dynamic steps that choose their order while they run, at a pace
that a GPU sets ·
agreement lets the ranks of one stage run the same · linears is the seam of linear layers' products · wgrad puts
weight gradients off.
"""
