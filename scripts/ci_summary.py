"""Sum up JUnit reports: what failed, and a closing line; a test skipped without a good reason is an error, too."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter

GOOD_REASONS = re.compile(
    r"\.\./shared|shared/data|CUDA|GPU|RDMA|Transformer Engine|no Kubernetes"
    r"|test cluster does not start|network namespaces",
    re.IGNORECASE,
)
"""Data and tools by others that are not part of this repository, devices, and rights that a container may lack."""


def main(paths: list[str]) -> int:
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    skipped_for, unexplained = Counter[str](), list[str]()
    for path in paths:
        for case in ElementTree.parse(path).iter("testcase"):  # noqa: S314  our own reports
            skipped = case.find("skipped")
            if case.find("failure") is not None or case.find("error") is not None:
                counts["failed"] += 1
                print(f"failed: {case.get('classname')}::{case.get('name')}")
            elif skipped is not None and skipped.get("type") != "pytest.xfail":
                counts["skipped"] += 1
                skipped_for[str(skipped.get("message"))] += 1
                reason = f"{skipped.get('message', '')} {skipped.text or ''}"
                if not GOOD_REASONS.search(reason):
                    unexplained.append(f"{case.get('classname')}::{case.get('name')}: {skipped.get('message')}")
            else:
                counts["passed"] += 1
    for line in unexplained:
        print(f"skipped without a good reason: {line}")
    counts["failed"] += len(unexplained)
    for reason, count in skipped_for.most_common():
        print(f"skipped {count}: {reason}")
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    return 1 if counts["failed"] or not counts["passed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
