"""MegaScope's half of the gateway: ranks on one side, viewers on the other, and nobody waits for anybody.

ranks ── gRPC ──▶ ingest ──▶ producers ──▶ assembly ──▶ streams ──▶ slots ──▶ WebSocket ──▶ viewers
      ◀── demand: the union of what viewers subscribe to ── commands of whoever controls ──
"""
