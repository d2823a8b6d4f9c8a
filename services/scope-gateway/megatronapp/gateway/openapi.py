"""Print the OpenAPI document, from which the page's client is generated: `python -m megatronapp.gateway.openapi`."""

from __future__ import annotations

import json
import sys

from megatronapp.gateway import web
from megatronapp.gateway.settings import GatewaySettings


def document() -> str:
    """The document as it is committed in services/scope-gateway/openapi.json."""
    return json.dumps(web.build(GatewaySettings()).openapi(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(document())
