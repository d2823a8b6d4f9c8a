"""Write all dashboards."""

from __future__ import annotations

import json
from pathlib import Path

from scripts.dashboards import fleet, job, platform, rank

FOLDER = Path(__file__).resolve().parents[2] / "deploy/helm/megatronapp/files/dashboards"
DASHBOARDS = {"fleet": fleet, "job": job, "rank": rank, "platform": platform}


def documents() -> dict[str, str]:
    """File name → content."""
    return {
        f"{name}.json": json.dumps(made.build(), indent=1, ensure_ascii=False) + "\n"
        for name, made in DASHBOARDS.items()
    }


if __name__ == "__main__":
    for name, text in documents().items():
        (FOLDER / name).write_text(text)
