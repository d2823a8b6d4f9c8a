"""What the operator's process carries of Kubernetes' client."""

from __future__ import annotations

import subprocess
import sys

IMPORT = """
import sys
import megatronapp.operator.app
print(*(name for name in sys.modules if name.startswith("kubernetes.") and {"api", "models"} & set(name.split("."))))
"""


def test_no_module_for_a_kind_is_imported() -> None:
    """All of them are 86 MiB."""
    found = subprocess.run([sys.executable, "-c", IMPORT], check=True, capture_output=True, text=True).stdout.split()

    assert [name for name in found if name.split(".")[-1] not in {"api", "models"}] == []
