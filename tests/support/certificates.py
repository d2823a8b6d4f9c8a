"""Certificates of a CA of the test's own, as files."""

from __future__ import annotations

from pathlib import Path

import trustme


class Authority:
    """A CA, and what it certifies."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._ca = trustme.CA()
        self.ca_file = folder / "ca.crt"
        self._ca.cert_pem.write_to_path(str(self.ca_file))

    def certify(self, name: str, file: str) -> tuple[Path, Path]:
        """The files of a certificate for this host and of its key; what was there is replaced."""
        issued = self._ca.issue_cert(name)
        certificate, key = self._folder / f"{file}.crt", self._folder / f"{file}.key"
        for target, blob in ((key, issued.private_key_pem.bytes()), (certificate, issued.cert_chain_pems[0].bytes())):
            draft = target.with_suffix(".new")
            draft.write_bytes(blob)
            draft.replace(target)
        return certificate, key
