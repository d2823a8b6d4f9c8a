"""Where Alertmanager sends alerts."""

from __future__ import annotations

from fastapi import APIRouter, Depends, status

from megatronapp.gateway.deps import GatewayParts, alertmanager
from megatronapp.gateway.notify.alertmanager import Webhook, group_state

router = APIRouter(prefix="/alerts", tags=["incidents"])


@router.post("", status_code=status.HTTP_204_NO_CONTENT, dependencies=[Depends(alertmanager)])
async def take_alerts(body: Webhook, gateway: GatewayParts) -> None:
    """Alertmanager's webhook: a group of alerts that opened, changed, goes on or is resolved."""
    await gateway.notifier.on_alert(group_state(body))
