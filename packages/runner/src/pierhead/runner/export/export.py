"""The exporter: writes an image of a containers/storage folder as an OCI layout.

It reads the store itself, because whoever asks buildah for an image gets every layer packed and
compressed anew, those of the base image too. Here a layer is compressed once: its blob stays in a
cache beside the store, by the digest of what it holds.

A layer is rebuilt from its tar-split, which is the layer's tar without the contents of files, and
the files themselves; it is only used when its digest is the one that the image names. The
configuration keeps what Docker adds to the OCI one: HEALTHCHECK, SHELL and ONBUILD
(https://github.com/moby/docker-image-spec, "OCI image config").

Runs as a script with the standard library only, so that it starts at once, in the build's cgroup:
`python -I -S export.py STORE NAME LAYOUT CACHE LIMIT`. An error is one line on the output.
"""

import base64
import gzip
import hashlib
import json
import os
import shutil
import struct
import sys
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
OCI_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"

# image-spec, config.md, "Properties"; the last three of RUN_KEYS are Docker's.
CONFIG_KEYS = ("created", "author", "architecture", "variant", "os", "os.version", "os.features")
RUN_KEYS = (
    *("User", "ExposedPorts", "Env", "Entrypoint", "Cmd", "Volumes", "WorkingDir", "Labels"),
    *("StopSignal", "ArgsEscaped", "Healthcheck", "Shell", "OnBuild"),
)

READ_BYTES = 1024 * 1024
# A gzip file may be a row of members (RFC 1952, section 2.2). Each is compressed on its own, so all
# cores work on one layer; the size of one has hardly an influence on the ratio.
MEMBER_BYTES = 1024 * 1024
LEVEL = 3  # half of the time of zlib's usual 6, and 5 % more bytes
LINKS_MAX = 40  # as the kernel, path_resolution(7)
MANIFEST_BYTES_MAX = 4 * 1024 * 1024


class ExportError(Exception):
    """The store does not hold what the image needs, or holds something else."""


# Reading the store.


def find_image(store: Path, name: str) -> dict[str, Any]:
    """Return the store's record of the image with a name."""
    for image in json.loads((store / "overlay-images/images.json").read_bytes()):
        if name in (image.get("names") or ()):
            return dict(image)
    raise ExportError(f"there is no image {name} in the store")


def read_config(store: Path, image: dict[str, Any]) -> bytes:
    """Return the image's configuration, byte for byte, as the store names it: by its digest."""
    key = f"sha256:{image['id']}"
    name = "=" + base64.b64encode(key.encode()).decode()
    content = bounded(store / "overlay-images" / image["id"] / name)
    if sha256(content) != key:
        raise ExportError("the image's configuration is not the one that the store names")
    return content


def layers_of(store: Path, image: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the records of the image's layers, the oldest first."""
    known = {
        layer["id"]: layer
        for layer in json.loads((store / "overlay-layers/layers.json").read_bytes())
    }
    found: list[dict[str, Any]] = []
    wanted = image.get("layer")
    while wanted:
        if wanted not in known or len(found) > 512:
            raise ExportError(f"the layer {wanted} is not in the store")
        found.append(known[wanted])
        wanted = known[wanted].get("parent")
    return found[::-1]


def layer_tar(store: Path, layer: dict[str, Any]) -> Iterator[bytes]:
    """Yield the bytes of a layer's tar, put together from its tar-split and its files."""
    split = store / "overlay-layers" / f"{layer['id']}.tar-split.gz"
    root = os.open(store / "overlay" / layer["id"] / "diff", os.O_RDONLY | os.O_DIRECTORY)
    try:
        with gzip.open(split) as entries:
            for line in entries:
                entry = json.loads(line)
                if entry["type"] == 2:
                    yield base64.b64decode(entry["payload"])
                elif size := entry.get("size", 0):
                    yield from content_of(root, entry_name(entry), size)
    finally:
        os.close(root)


def entry_name(entry: dict[str, Any]) -> bytes:
    """Return the name of an entry: a text, or bytes in base64 when it is none."""
    raw = entry.get("name_raw")
    return base64.b64decode(raw) if raw else str(entry["name"]).encode()


def content_of(root: int, name: bytes, size: int) -> Iterator[bytes]:
    """Yield the first `size` bytes of a file below `root`."""
    file = open_below(root, name)
    try:
        left = size
        while left:
            data = os.read(file, min(left, READ_BYTES))
            if not data:
                raise ExportError(f"{name.decode(errors='replace')} is shorter than it was")
            left -= len(data)
            yield data
    finally:
        os.close(file)


def open_below(root: int, name: bytes) -> int:
    """Open a file whose name is read as if `root` were /: no link leads out of it."""
    try:
        # Nearly always there is no link on the way. O_NOFOLLOW looks at the last part only, so
        # this is good for names of one part.
        if b"/" not in name:
            return os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=root)
        return walk_below(root, name)
    except OSError as error:
        shown = name.decode(errors="replace")
        raise ExportError(f"{shown} cannot be read: {error.strerror}") from error


def walk_below(root: int, name: bytes) -> int:
    """Open a file part by part, and read links on the way within `root`."""
    parts, links = deque(name.split(b"/")), 0
    folders = [os.dup(root)]
    try:
        while True:
            part = parts.popleft()
            if part in {b"", b"."}:
                continue
            if part == b"..":
                if len(folders) > 1:
                    os.close(folders.pop())
                continue
            if (target := link_target(folders[-1], part)) is not None:
                links += 1
                if links > LINKS_MAX:
                    raise ExportError(f"too many links in {name.decode(errors='replace')}")
                if target.startswith(b"/"):
                    while len(folders) > 1:
                        os.close(folders.pop())
                parts.extendleft(reversed(target.split(b"/")))
                continue
            flags = os.O_RDONLY | os.O_NOFOLLOW
            if not parts:
                return os.open(part, flags, dir_fd=folders[-1])
            folders.append(os.open(part, flags | os.O_DIRECTORY, dir_fd=folders[-1]))
    finally:
        for folder in folders:
            os.close(folder)


def link_target(folder: int, name: bytes) -> bytes | None:
    """Return where a link leads; none: it is something else."""
    try:
        return os.readlink(name, dir_fd=folder)
    except OSError:
        return None


# Writing the layout.


def compress(chunks: Iterable[bytes], pool: ThreadPoolExecutor, width: int) -> Iterator[bytes]:
    """Yield the gzip of what comes in, compressed by all threads of the pool."""
    waiting: deque[Future[bytes]] = deque()
    for member in regrouped(chunks):
        waiting.append(pool.submit(gzip_member, member))
        if len(waiting) > width:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def regrouped(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in pieces of one size, at least one piece."""
    piece = bytearray()
    some = False
    for chunk in chunks:
        piece += chunk
        while len(piece) >= MEMBER_BYTES:
            some = True
            yield bytes(piece[:MEMBER_BYTES])
            del piece[:MEMBER_BYTES]
    if piece or not some:
        yield bytes(piece)


def gzip_member(data: bytes) -> bytes:
    """Return one gzip member that holds `data`, without name and time: the same each time."""
    packer = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    body = packer.compress(data) + packer.flush()
    head = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
    return head + body + struct.pack("<LL", zlib.crc32(data), len(data) & 0xFFFFFFFF)


class Blobs:
    """The compressed layers of earlier exports, by the digest of what they hold."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob("*.part"):
            left.unlink()

    def find(self, held: str) -> tuple[Path, dict[str, Any]] | None:
        """Return the blob of a layer and its descriptor, if both are there and whole."""
        note = self.folder / f"{held.removeprefix('sha256:')}.json"
        try:
            found = json.loads(note.read_bytes())
            file = self.folder / found["digest"].removeprefix("sha256:")
            with file.open("rb") as stream:
                whole = hashlib.file_digest(stream, "sha256").hexdigest() == file.name
        except (OSError, ValueError, KeyError):
            return None
        if not whole:
            return None
        for used in (note, file):
            os.utime(used)
        return file, dict(found)

    def add(self, store: Path, layer: dict[str, Any]) -> tuple[Path, dict[str, Any]]:
        """Compress a layer.

        Raises:
            ExportError: the store does not hold the layer that the image names.
        """
        held = str(layer["diff-digest"])
        part = self.folder / f"{held.removeprefix('sha256:')}.part"
        inner, outer, size = hashlib.sha256(), hashlib.sha256(), 0
        width = os.cpu_count() or 1
        with ThreadPoolExecutor(width) as pool, part.open("wb") as out:
            for member in compress(hashed(layer_tar(store, layer), inner), pool, width):
                outer.update(member)
                size += out.write(member)
        if f"sha256:{inner.hexdigest()}" != held:
            part.unlink()
            raise ExportError(f"the layer {held} is not what the store says it is")
        file = self.folder / outer.hexdigest()
        part.replace(file)
        found = {"mediaType": OCI_LAYER, "digest": f"sha256:{outer.hexdigest()}", "size": size}
        note = self.folder / f"{held.removeprefix('sha256:')}.json"
        write_whole(note, json.dumps(found).encode())
        return file, found

    def prune(self, limit: int) -> None:
        """Remove what was not used for longest, until no more than `limit` bytes are left."""
        files = [(file.stat(), file) for file in self.folder.iterdir()]
        total = sum(stat.st_size for stat, _ in files)
        for stat, file in sorted(files, key=lambda pair: pair[0].st_mtime_ns):
            if total <= limit:
                return
            total -= stat.st_size
            file.unlink()


def hashed(chunks: Iterable[bytes], digest: Any) -> Iterator[bytes]:
    """Yield the chunks, and let the digest see them."""
    for chunk in chunks:
        digest.update(chunk)
        yield chunk


def export(store: Path, name: str, layout: Path, blobs: Blobs) -> None:
    """Write the image as an OCI layout (image-spec, image-layout.md).

    Blobs of layers are the same files as in the cache.
    """
    image = find_image(store, name)
    stored = read_config(store, image)
    found = layers_of(store, image)
    config = settled_config(stored, [layer["diff-digest"] for layer in found])
    folder = layout / "blobs" / "sha256"
    folder.mkdir(parents=True)
    layers = []
    for layer in found:
        file, descriptor = blobs.find(layer["diff-digest"]) or blobs.add(store, layer)
        target = folder / descriptor["digest"].removeprefix("sha256:")
        if not target.exists():  # two layers may be the same
            link_or_copy(file, target)
        layers.append(descriptor)
    described = {**place(folder, config), "mediaType": OCI_CONFIG}
    manifest = compact(
        {"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": described, "layers": layers}
    )
    index = {**place(folder, manifest), "mediaType": OCI_MANIFEST}
    (layout / "oci-layout").write_bytes(compact({"imageLayoutVersion": "1.0.0"}))
    (layout / "index.json").write_bytes(
        compact({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [index]})
    )


def link_or_copy(file: Path, target: Path) -> None:
    """Let a file be there under another name, too, on whatever disk that is."""
    try:
        os.link(file, target)
    except OSError:
        shutil.copyfile(file, target)


def settled_config(stored: bytes, layers: list[str]) -> bytes:
    """Return the configuration without what is only true of the container that it was made in.

    Raises:
        ExportError: it names other layers than the store has.
    """
    document = json.loads(stored)
    if document.get("rootfs", {}).get("diff_ids", []) != layers:
        raise ExportError("the image's configuration names other layers than the store")
    kept = {key: document[key] for key in CONFIG_KEYS if document.get(key)}
    run = document.get("config") or {}
    kept["config"] = {key: run[key] for key in RUN_KEYS if run.get(key)}
    # A step's comment names the stored image that it was made from, which differs each time.
    kept["history"] = [
        {key: value for key, value in step.items() if key != "comment"}
        for step in document.get("history") or ()
    ]
    kept["rootfs"] = document["rootfs"]
    return compact(kept)


def place(folder: Path, content: bytes) -> dict[str, Any]:
    """Write a blob, and return its digest and size."""
    digest = sha256(content)
    (folder / digest.removeprefix("sha256:")).write_bytes(content)
    return {"digest": digest, "size": len(content)}


def write_whole(file: Path, content: bytes) -> None:
    """Write a file that is there with all of its content, or not at all."""
    part = file.with_suffix(".part")
    part.write_bytes(content)
    part.replace(file)


def bounded(file: Path) -> bytes:
    """Return what is in a document that may come from elsewhere."""
    if file.stat().st_size > MANIFEST_BYTES_MAX:
        raise ExportError(f"{file.name} is too large for a document")
    return file.read_bytes()


def sha256(content: bytes) -> str:
    """Return the digest of some bytes as OCI writes it."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def compact(document: dict[str, Any]) -> bytes:
    """Return a document as JSON, the same each time."""
    return json.dumps(document, separators=(",", ":")).encode()


def main(arguments: list[str]) -> int:
    """Carry out the order: store, name of the image, layout, cache of blobs, its limit in bytes."""
    store, name, layout, cache, limit = arguments
    blobs = Blobs(Path(cache))
    try:
        export(Path(store), name, Path(layout), blobs)
        blobs.prune(int(limit))
    except (ExportError, OSError, ValueError, KeyError, EOFError, zlib.error) as error:
        print(f"exporting the image: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
