"""Lists objects page by page, and watches them, for any resource that lightkube knows.

Imports lightkube's models: reached only through ``opening.open_kube``.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec
from lightkube.core.resource import NamespacedResource
from lightkube.models.meta_v1 import Status

from isthmus.errors import KubeError
from isthmus.kube.api import Change, Listing, WatchEvent
from isthmus.kube.client import TOO_LONG, KubeClient

PAGE = 500
_MOST_OBJECTS = 100_000

T = TypeVar("T")


class LightSource(Generic[T]):
    """The objects of one resource, in all namespaces, filtered by selectors.

    ``read`` makes an item from an object's JSON, and raises ValueError if it is invalid.
    """

    def __init__(
        self,
        client: KubeClient,
        resource: type[Any],
        what: str,
        read: Callable[[msgspec.Raw], T],
        *,
        selectors: Mapping[str, str] | None = None,
        page: int = PAGE,
    ) -> None:
        """``what`` is the plural, such as "Services"."""
        self._client = client
        self._resource = resource
        self._what = what
        self._read = read
        self._selectors = dict(selectors or {})
        self._page = page
        everywhere = issubclass(resource, NamespacedResource)
        self._where: dict[str, Any] = {"namespace": "*"} if everywhere else {}

    def __repr__(self) -> str:
        return f"<LightSource {self._what}>"

    async def list(self) -> Listing[T]:
        """Read all objects, page by page, because the size of an answer is limited.

        Pages get smaller if large objects make an answer exceed the limit.
        """
        items: list[T] = []
        token, size = "", self._page
        while len(items) < _MOST_OBJECTS:
            params = {**self._selectors, "limit": str(size)}
            if token:
                params["continue"] = token
            try:
                page = await self._client.call(
                    f"list {self._what}",
                    _Page,
                    "list",
                    self._resource,
                    params=params,
                    **self._where,
                )
            except KubeError as exc:
                if exc.reason != TOO_LONG or size == 1:
                    raise
                size = max(1, size // 2)
                continue
            items += self._items(page)
            token = page.metadata.continue_ or ""
            if not token:
                return Listing(items=items, resource_version=page.metadata.version or "")
        raise KubeError(f"cannot list {self._what}: more than {_MOST_OBJECTS} objects")

    @contextlib.asynccontextmanager
    async def watch(
        self, *, after: str, timeout_s: float
    ) -> AsyncIterator[AsyncIterator[WatchEvent[T]]]:
        params = {
            **self._selectors,
            "resourceVersion": after,
            "timeoutSeconds": str(max(1, round(timeout_s))),
            "allowWatchBookmarks": "true",
        }
        async with self._client.watch(
            f"watch {self._what}", self._event, self._resource, params=params, **self._where
        ) as events:
            yield events

    def _items(self, page: _Page) -> Sequence[T]:
        try:
            return [self._read(each) for each in page.items or ()]
        except (msgspec.MsgspecError, ValueError) as exc:
            text = f"cannot list {self._what}: cannot decode the answer of {self._client.server}"
            raise KubeError(text) from exc

    def _event(self, line: bytes) -> WatchEvent[T]:
        """Read one event of a watch.

        Raises:
            KubeError: the API ended the watch with an error, such as 410 for an expired version.
        """
        event = msgspec.json.decode(line, type=_Event)
        if event.type == "ERROR":
            status = msgspec.json.decode(event.object, type=Status)
            detail = status.message or status.reason or "no reason given"
            raise KubeError(
                f"cannot watch {self._what}: {detail}",
                status=status.code or 0,
                reason=status.reason or "",
            )
        change = Change(event.type)
        found = msgspec.json.decode(event.object, type=_Object)
        return WatchEvent(
            change=change,
            item=None if change is Change.BOOKMARK else self._read(event.object),
            resource_version=found.metadata.version or "",
        )


class _Meta(msgspec.Struct):
    version: str | None = msgspec.field(default=None, name="resourceVersion")
    continue_: str | None = msgspec.field(default=None, name="continue")


class _Object(msgspec.Struct):
    metadata: _Meta


class _Page(msgspec.Struct):
    # Items are decoded one by one: a page decoded as a whole would be in memory twice.
    metadata: _Meta = msgspec.field(default_factory=_Meta)
    items: list[msgspec.Raw] | None = None


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw
