"""Where the API server is, why it is trusted, and who asks: as a pod's service account or a kubeconfig says.

Both are read by the official client, `kubernetes.aio`: certificates, contexts, proxies, exec plug-ins, OpenID. Tokens
change while the operator runs. Kubernetes writes a pod's anew within the hour, an exec plug-in says until when its
own is good, and any may be revoked. So they are looked at again once a minute, which runs a plug-in only when its token
is about to end, and at once when the server refuses one. What can't be read leaves the token that there is: only the
server knows whether it is still good.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from kubernetes.aio.client import Configuration
from kubernetes.aio.config import load_kube_config
from kubernetes.aio.config.incluster_config import InClusterConfigLoader

from megatronapp.core.errors import ConfigError
from megatronapp.core.logging import get_logger

log = get_logger(__name__)

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
KUBECONFIG = "~/.kube/config"
REFRESH_SECONDS = 60.0
READ_SECONDS = 15.0
"""So long requests wait for a plug-in; the one that hangs is not run a second time beside itself."""

Source = Callable[[Configuration, bool], Awaitable[None]]
"""Writes what there is now into a configuration; True: though what was read last should still be good."""
Clock = Callable[[], float]


class Login:
    """A configuration of the official client, whose token is kept good."""

    def __init__(self, configuration: Configuration, source: Source, clock: Clock = time.monotonic) -> None:
        self.configuration = configuration
        self._source, self._clock = source, clock
        self._read_at = clock()
        self._lock = asyncio.Lock()
        self._reading: asyncio.Task[Configuration] | None = None
        # Asked by the client before each request that has a token.
        configuration.refresh_api_key_hook = self._refresh
        # As many connections as there are watches and workers: no limit.
        configuration.connection_pool_maxsize = 0
        # Else a thread looks for proxies and passwords at each request, which costs more than all the rest of it.
        configuration.client_session_kwargs = {"trust_env": False}

    @classmethod
    async def find(cls) -> Login:
        """A pod's service account, else the kubeconfig. Raises ConfigError where there is neither."""
        if (SERVICE_ACCOUNT / "token").exists():
            return await cls.of_service_account(SERVICE_ACCOUNT, os.environ)
        return await cls.of_kubeconfig(os.environ.get("KUBECONFIG") or KUBECONFIG)

    @classmethod
    async def of_service_account(cls, folder: Path, environ: Mapping[str, str], clock: Clock = time.monotonic) -> Login:
        """As the files of `folder` say, and the variables that each pod has. Raises ConfigError."""
        return await cls._first(_service_account(folder, environ), "the pod's service account", clock)

    @classmethod
    async def of_kubeconfig(cls, paths: str, clock: Clock = time.monotonic) -> Login:
        """As the current context says now; of several files with colons between them. Raises ConfigError."""
        return await cls._first(_kubeconfig(paths), f"the kubeconfig {paths}", clock)

    @classmethod
    async def _first(cls, source: Source, name: str, clock: Clock) -> Login:
        try:
            async with asyncio.timeout(READ_SECONDS):
                configuration = await _loaded(source, False)
        except (ConfigError, TimeoutError) as error:
            why = str(error) or "its plug-in does not end"
            raise ConfigError(f"{name} can't be used: {why}; set KUBECONFIG, or run this in a pod") from error
        if not configuration.verify_ssl:
            raise ConfigError(f"{name} skips the check of the API server's certificate; name its authority there")
        return cls(configuration, source, clock)

    @property
    def token(self) -> str | None:
        """With its scheme, as it stands in a request's header `authorization`."""
        token: str | None = self.configuration.api_key.get("BearerToken")
        return token

    async def renew(self, refused: str | None) -> bool:
        """Whether there is another token than the one that the server has refused, looked for anew if need be."""
        async with self._lock:
            if self.token == refused:
                await self._read(anew=True)
        return self.token != refused

    async def _refresh(self, _: Configuration) -> None:
        async with self._lock:
            if self._clock() - self._read_at >= REFRESH_SECONDS:
                await self._read(anew=False)

    async def _read(self, *, anew: bool) -> None:
        self._read_at = self._clock()
        self._reading = self._reading or asyncio.create_task(_loaded(self._source, anew))
        done, _ = await asyncio.wait({self._reading}, timeout=READ_SECONDS)
        if not done:
            log.warning("token_not_read", error="the plug-in has not ended yet")
            return
        task, self._reading = self._reading, None
        try:
            # The rest stays: the server must not change under what was read from it.
            self.configuration.api_key.update(task.result().api_key)
        except ConfigError as error:
            log.warning("token_not_read", error=str(error))


async def _loaded(source: Source, anew: bool) -> Configuration:
    configuration = Configuration()
    try:
        await source(configuration, anew)
    except Exception as error:  # somebody has written what is read, and the client takes its form for granted
        raise ConfigError(str(error) or type(error).__name__) from error
    # Files of tokens often end with a newline, which no header may have.
    configuration.api_key = {name: key.strip() for name, key in configuration.api_key.items()}
    return configuration


def _service_account(folder: Path, environ: Mapping[str, str]) -> Source:
    loader = InClusterConfigLoader(folder / "token", folder / "ca.crt", try_refresh_token=False, environ=environ)

    async def read(configuration: Configuration, _: bool) -> None:
        loader.load_and_set(configuration)

    return read


def _kubeconfig(paths: str) -> Source:
    loader = None

    async def read(configuration: Configuration, anew: bool) -> None:
        """The same loader knows until when a plug-in's token is good. The context is that of the start, whatever
        somebody has made the current one since."""
        nonlocal loader
        if loader is None or anew:
            context = loader.current_context["name"] if loader is not None else None
            loader = await load_kube_config(paths, context, configuration, persist_config=False)
        else:
            await loader.load_and_set(configuration)
        configuration.proxy = configuration.proxy or _environments_proxy(configuration.host)

    return read


def _environments_proxy(server: str) -> str | None:
    """As HTTPS_PROXY and NO_PROXY have it."""
    parts = urlsplit(server)
    return None if proxy_bypass(parts.netloc) else getproxies().get(parts.scheme)
