"""`python -m megatronapp.operator.crd`: the definition as YAML, as it stands in the chart."""

from __future__ import annotations

import sys

import yaml

from megatronapp.operator.crd.definition import definition

HEADER = "# Generated from the models of core/trainingjob: python -m megatronapp.operator.crd\n"


def text() -> str:
    return HEADER + yaml.safe_dump(definition(), sort_keys=False, width=120)


if __name__ == "__main__":
    sys.stdout.write(text())
