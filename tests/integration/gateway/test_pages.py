"""The page and Perfetto as a browser gets them: fallback, caching, compression, policy."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from megatronapp.gateway import pages
from tests.integration.gateway.conftest import Served, Start

HTML = {"Accept": "text/html,application/xhtml+xml"}


@pytest.fixture
def ui_folder(tmp_path: Path) -> Path:
    assets = tmp_path / "ui" / "assets"
    assets.mkdir(parents=True)
    (tmp_path / "ui" / "index.html").write_text("<!doctype html><div id=app></div>")
    (assets / "index-3f2a.js").write_text("plain")
    (assets / "index-3f2a.js.br").write_bytes(b"brotli")
    (assets / "index-3f2a.js.gz").write_bytes(gzip.compress(b"zipped"))
    (tmp_path / "secret.txt").write_text("not served")
    return tmp_path / "ui"


@pytest.fixture
async def with_page(start: Start, ui_folder: Path) -> Served:
    return await start(ui_folder=ui_folder)


@pytest.mark.parametrize("path", ["/", "/jobs", "/jobs/run-1/timeline?ranks=0,1", "/health"])
async def test_every_route_of_the_page_opens_it(with_page: Served, path: str) -> None:
    async with with_page.client("", headers=HTML) as client:
        answer = await client.get(path)

    assert answer.status_code == 200
    assert "id=app" in answer.text
    assert answer.headers["cache-control"] == "no-cache"
    assert "script-src 'self';" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"


async def test_a_used_sign_in_link_opens_the_page_which_is_not_kept(with_page: Served) -> None:
    async with with_page.client("", headers=HTML) as client:
        answer = await client.get("/", params={"token": "used"})

    assert answer.status_code == 401
    assert "id=app" in answer.text
    assert answer.headers["cache-control"] == "no-store"
    assert "set-cookie" not in answer.headers


async def test_a_used_sign_in_link_is_told_in_words_where_no_page_is_built(start: Start, tmp_path: Path) -> None:
    served = await start(ui_folder=tmp_path)

    async with served.client("", headers=HTML) as client:
        answer = await client.get("/", params={"token": "used"})

    assert (answer.status_code, answer.text) == (401, "This link has expired or was already used.\n")


async def test_a_file_that_is_missing_is_not_the_page(with_page: Served) -> None:
    async with with_page.client("", headers={"Accept": "*/*"}) as client:
        answer = await client.get("/assets/gone.js")

    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "not_found"


@pytest.mark.parametrize(
    ("accepted", "encoding", "content"),
    [("gzip, br", "br", None), ("gzip", "gzip", "zipped"), ("br;q=0", None, "plain"), ("", None, "plain")],
)
async def test_built_assets_are_sent_compressed_and_kept_for_ever(
    with_page: Served, accepted: str, encoding: str | None, content: str | None
) -> None:
    async with (
        with_page.client("", headers={"Accept-Encoding": accepted}) as client,
        client.stream("GET", "/assets/index-3f2a.js") as answer,
    ):
        raw = b"".join([piece async for piece in answer.aiter_raw()])

    body = gzip.decompress(raw) if encoding == "gzip" else raw
    assert body.decode() == (content or "brotli")
    assert answer.headers.get("content-encoding") == encoding
    assert answer.headers["content-type"].startswith("text/javascript")
    assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert answer.headers["vary"] == "Accept-Encoding"


@pytest.mark.parametrize(("accepted", "encoding"), [("gzip, br", "gzip"), ("", None)])
async def test_a_file_that_is_stored_compressed_alone_is_sent_to_everybody(
    with_page: Served, ui_folder: Path, accepted: str, encoding: str | None
) -> None:
    (ui_folder / "assets" / "alone.js.gz").write_bytes(gzip.compress(b"alone"))

    async with with_page.client("", headers={"Accept-Encoding": accepted}) as client:
        answer = await client.get("/assets/alone.js")
        missing = await client.get("/assets/gone.js")

    assert (answer.status_code, answer.text) == (200, "alone")
    assert answer.headers.get("content-encoding") == encoding
    assert answer.headers["content-type"].startswith("text/javascript")
    assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert missing.status_code == 404


async def test_an_unchanged_page_is_not_sent_again(with_page: Served) -> None:
    async with with_page.client("", headers=HTML) as client:
        first = await client.get("/")
        second = await client.get("/", headers={"If-None-Match": first.headers["etag"]})

    assert (second.status_code, second.content) == (304, b"")


@pytest.mark.parametrize("path", ["/../secret.txt", "/%2e%2e/secret.txt", "/assets/..%2f..%2fsecret.txt", "/%00"])
async def test_nothing_beside_the_page_is_served(with_page: Served, path: str) -> None:
    async with with_page.client("") as client:
        answer = await client.get(path)

    assert answer.status_code == 404
    assert "not served" not in answer.text.replace("is not served", "")


async def test_a_page_that_is_not_built_says_how(start: Start, tmp_path: Path) -> None:
    served = await start(ui_folder=tmp_path)

    async with served.client("", headers=HTML) as client:
        page, deep = await client.get("/"), await client.get("/jobs/run-1")
        api = await client.get("/api/v1/session")

    assert "make ui" in page.text
    assert "make ui" in deep.text
    assert api.status_code == 200


async def test_perfetto_is_served_with_a_policy_of_its_own(served: Served) -> None:
    async with served.client("", headers=HTML) as client:
        index = await client.get("/perfetto/")
        folder = next(part for part in index.text.split('"') if part.startswith("v") and "-" in part)
        engine = await client.get(f"/perfetto/{folder}/trace_processor.wasm")

    assert "Perfetto UI" in index.text
    policy = index.headers["content-security-policy"]
    assert "'wasm-unsafe-eval'" in policy
    assert "worker-src 'self' blob:" in policy
    assert "'sha256-" in policy
    assert engine.headers["content-type"] == "application/wasm"
    assert "immutable" in engine.headers["cache-control"]


async def test_without_perfetto_its_path_says_what_to_install(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "perfetto_folder", lambda: None)
    served = await start()

    async with served.client("", headers=HTML) as client:
        answer = await client.get("/perfetto/")

    assert answer.status_code == 404
    assert "pip install" in answer.json()["error"]["message"]
