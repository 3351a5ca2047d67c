"""The controller's memory in a ConfigMap: read when this process begins to lead, written before each call that changes the cloud.

Each write names the version that it replaces, so that of two controllers that both believe to lead only one succeeds.
"""

import zlib
from base64 import b64decode, b64encode
from typing import Any, Generic, TypeVar

import msgspec
import structlog

from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import AlreadyExists, Conflict, NotFound, ServerError, Unreachable
from gpuscaler.kube.resources import CONFIG_MAPS
from gpuscaler.lifecycle.memory import Memory

_LOG = structlog.get_logger(__name__)
#: The key with the memory, the key with the version of its format, and that version: a memory in an unknown format is left alone.
KEY, FORMAT_KEY, FORMAT_VERSION = "memory", "form", "1"
#: The size limit of a ConfigMap by Kubernetes' validation, less the size of the rest of the object.
MOST_BYTES = 1_000_000
#: The maximum size of an unpacked memory, in bytes; packing shrinks it to about a tenth.
MOST_UNPACKED = 64 * 2**20

#: The advice for a memory of the controller that cannot be read.
REPAIR_ADVICE = (
    "nothing is bought or removed; restore the ConfigMap, or delete it once every machine that the cloud lists is a node: "
    "machines without a node might be bought twice"
)


class StoreError(Exception):
    """The memory cannot be read or written; the text names the object, what was seen, what was expected, and what to do."""


class UnreadableError(StoreError):
    """The ConfigMap has no readable memory, and no controller wrote it: all that can be done is to wait for a person to repair it."""


class OvertakenError(Exception):
    """Another controller has written the memory since this process read it: the other controller leads."""


class WireMetadata(msgspec.Struct):
    version: str = msgspec.field(default="", name="resourceVersion")
    uid: str = ""


class WireConfigMap(msgspec.Struct):
    metadata: WireMetadata = msgspec.field(default_factory=WireMetadata)
    data: dict[str, str] | None = None
    binary: dict[str, str] | None = msgspec.field(default=None, name="binaryData")


T = TypeVar("T")


class Store(Generic[T]):
    """Keeps a memory in the ConfigMap ``namespace/name``; ``empty`` is the empty memory.

    ``repair_advice`` is the advice for people about a memory that cannot be read.
    """

    def __init__(self, client: Client, *, namespace: str, name: str, empty: T, repair_advice: str) -> None:
        # Everything waits until the memory is written, so it must not wait behind hundreds of evictions itself.
        self._client = client.urgently()
        self._namespace = namespace
        self._name = name
        self._empty, self._repair_advice = empty, repair_advice
        self._version = ""
        self._written: T | None = None
        #: A memory that may or may not have been written.
        self._unconfirmed: T | None = None

    @property
    def place(self) -> str:
        return f"ConfigMap {self._namespace}/{self._name}"

    async def load(self) -> T:
        """The saved memory; an empty one if nothing was saved. Raises :class:`StoreError` if it cannot be decoded."""
        try:
            config_map = msgspec.json.decode(await self._client.get(CONFIG_MAPS, self._name, namespace=self._namespace), type=WireConfigMap)
        except NotFound:
            self._version, self._written = "", None
            return self._empty
        self._version, self._written = config_map.metadata.version, None
        self._written = memory = self._read(config_map)
        return memory

    def _read(self, config_map: WireConfigMap) -> T:
        format_version = (config_map.data or {}).get(FORMAT_KEY, "")
        packed = (config_map.binary or {}).get(KEY, "")
        if not packed and not format_version:
            return self._empty
        if format_version != FORMAT_VERSION:
            raise StoreError(
                f"{self.place}: saw format {format_version!r} of the memory, expected {FORMAT_VERSION!r}; "
                f"run the version of gpuscaler that wrote it, or delete the ConfigMap once no machine is starting"
            )
        try:
            return msgspec.json.decode(_decompress(b64decode(packed, validate=True)), type=type(self._empty))
        except (ValueError, zlib.error, msgspec.MsgspecError) as error:
            raise UnreadableError(
                f"{self.place}: saw a memory that cannot be read ({error}), expected what gpuscaler wrote; {self._repair_advice}"
            ) from error

    async def save(self, memory: T) -> None:
        """Save ``memory`` unless it is saved already. Raises :class:`OvertakenError` if another controller has written since.

        After any other error it is unknown whether it was written; the next call finds out.
        """
        if self._unconfirmed is not None:
            await self._confirm_write(self._unconfirmed)
        if memory == self._written:
            return
        try:
            answer = await self._put(memory)
        except (AlreadyExists, Conflict) as error:
            raise OvertakenError(f"{self.place}: {error}") from error
        except (ServerError, Unreachable):
            self._unconfirmed = memory
            raise
        self._version = msgspec.json.decode(answer, type=WireConfigMap).metadata.version
        self._written = memory

    async def _put(self, memory: T) -> bytes:
        """Write, even if the ConfigMap was deleted or corrupted: no controller does either, so this process has the only memory."""
        try:
            return await self._write(memory)
        except NotFound:
            if not self._version:
                raise
            self._version = ""
        except (AlreadyExists, Conflict):
            if await self._load_if_written() is not None:
                raise
        return await self._write(memory)

    async def _load_if_written(self) -> T | None:
        """The memory in the ConfigMap; None if there is none, or none that a controller wrote."""
        try:
            memory = await self.load()
        except UnreadableError as error:
            _LOG.warning("the saved memory was corrupted: it is overwritten with the memory of this process", problem=str(error))
            return None
        return memory if self._version else None

    async def _write(self, memory: T) -> bytes:
        body = self._config_map(memory)
        if self._version:
            return await self._client.replace(CONFIG_MAPS, self._name, body, namespace=self._namespace)
        return await self._client.create(CONFIG_MAPS, body, namespace=self._namespace)

    async def _confirm_write(self, unconfirmed: T) -> None:
        """Find out whether the last write took effect. The saved memory must be the one of that write or its predecessor."""
        before = self._written
        saved = await self._load_if_written()
        if saved not in (None, unconfirmed, self._empty if before is None else before):
            raise OvertakenError(f"{self.place}: saw a memory that this controller did not write")
        self._unconfirmed = None

    def _config_map(self, memory: T) -> dict[str, Any]:
        packed = b64encode(zlib.compress(msgspec.json.encode(memory), 6)).decode()
        if len(packed) > MOST_BYTES:
            raise StoreError(
                f"{self.place}: the memory takes {len(packed)} bytes, a ConfigMap holds {MOST_BYTES}; fewer ordered machines would fit"
            )
        metadata: dict[str, Any] = {
            "name": self._name,
            "namespace": self._namespace,
            "labels": {"app.kubernetes.io/managed-by": "gpuscaler"},
        }
        if self._version:
            metadata["resourceVersion"] = self._version
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata,
            "data": {FORMAT_KEY: FORMAT_VERSION},
            "binaryData": {KEY: packed},
        }


class MemoryStore(Store[Memory]):
    """Keeps the controller's memory."""

    def __init__(self, client: Client, *, namespace: str, name: str = "gpuscaler-state") -> None:
        super().__init__(client, namespace=namespace, name=name, empty=Memory(), repair_advice=REPAIR_ADVICE)


def _decompress(packed: bytes) -> bytes:
    """Unpack with a size limit: zlib can make a thousand bytes of one. Raises ValueError and zlib.error."""
    decompressor = zlib.decompressobj()
    text = decompressor.decompress(packed, MOST_UNPACKED)
    if decompressor.unconsumed_tail:
        raise ValueError(f"it is more than {MOST_UNPACKED / 2**20:.0f} MiB long")
    if not decompressor.eof:
        raise ValueError("it is cut off")
    return text
