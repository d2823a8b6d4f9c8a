"""What goes to people as it happens: topics of bytes, each with a drop policy, and a bounded queue a subscriber.

A publisher never waits. What a slow subscriber can't take is replaced, or dropped and counted, or ends its
subscription, as the topic says. Nobody else notices, and what waits for it is bounded in messages and bytes.
"""

from megatronapp.gateway.live.hub import Hub
from megatronapp.gateway.live.subscriptions import Delivery, SubscriberBehindError, Subscription
from megatronapp.gateway.live.topics import DropPolicy, Topic

__all__ = ["Delivery", "DropPolicy", "Hub", "SubscriberBehindError", "Subscription", "Topic"]
