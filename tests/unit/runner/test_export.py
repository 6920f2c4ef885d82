"""The exporter, on stores that are made here: what comes out is what went in, or nothing is."""

import base64
import contextlib
import gzip
import hashlib
import io
import json
import os
import tarfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pierhead.protocol.image import read_image
from pierhead.runner.export import export as exporter
from pierhead.runner.export.export import Blobs, ExportError, export

NAME = "localhost/pierhead/last:latest"


def sha(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def entry(name: str, content: bytes = b"", **header: Any) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for key, value in header.items():
        setattr(info, key, value)
    return info, content


def tar_of(entries: Iterable[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info, content in entries:
            tar.addfile(info, io.BytesIO(content))
    return made.getvalue()


def split(tar: bytes) -> bytes:
    """Return the tar-split of a tar: its bytes without the contents of files."""
    lines: list[dict[str, Any]] = []
    at = 0
    with tarfile.open(fileobj=io.BytesIO(tar)) as members:
        for member in members:
            if not member.isreg() or not member.size:
                continue
            head = tar[at : member.offset_data]
            lines.append({"type": 2, "payload": base64.b64encode(head).decode()})
            lines.append({"type": 1, "name": member.name, "size": member.size})
            at = member.offset_data + member.size
    lines.append({"type": 2, "payload": base64.b64encode(tar[at:]).decode()})
    return gzip.compress("\n".join(map(json.dumps, lines)).encode())


@dataclass
class Store:
    """A containers/storage folder."""

    root: Path
    layers: list[dict[str, Any]] = field(default_factory=list)

    def add(self, tar: bytes, *, said: str | None = None) -> Path:
        """Add a layer on top of the others; return the folder with its files."""
        name = f"layer-{len(self.layers)}"
        record: dict[str, Any] = {"id": name, "diff-digest": said or sha(tar)}
        if self.layers:
            record["parent"] = self.layers[-1]["id"]
        self.layers.append(record)
        folder = self.root / "overlay" / name / "diff"
        folder.mkdir(parents=True)
        with tarfile.open(fileobj=io.BytesIO(tar)) as members:
            members.extractall(folder)
        (self.root / "overlay-layers").mkdir(exist_ok=True)
        (self.root / "overlay-layers" / f"{name}.tar-split.gz").write_bytes(split(tar))
        return folder

    def name_image(self, config: dict[str, Any], *, diff_ids: list[str] | None = None) -> None:
        named = [layer["diff-digest"] for layer in self.layers] if diff_ids is None else diff_ids
        content = json.dumps(
            {
                "rootfs": {"type": "layers", "diff_ids": named},
                "os": "linux",
                "architecture": "amd64",
            }
            | config
        ).encode()
        image_id = sha(content).removeprefix("sha256:")
        folder = self.root / "overlay-images" / image_id
        folder.mkdir(parents=True)
        key = "=" + base64.b64encode(f"sha256:{image_id}".encode()).decode()
        (folder / key).write_bytes(content)
        top = self.layers[-1]["id"] if self.layers else None
        (self.root / "overlay-images" / "images.json").write_text(
            json.dumps([{"id": image_id, "names": [NAME], "layer": top}])
        )
        (self.root / "overlay-layers").mkdir(exist_ok=True)
        (self.root / "overlay-layers" / "layers.json").write_text(json.dumps(self.layers))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return Blobs(tmp_path / "blobs")


def manifest_of(layout: Path) -> dict[str, Any]:
    index = json.loads((layout / "index.json").read_bytes())
    return dict(json.loads(blob(layout, index["manifests"][0]["digest"])))


def blob(layout: Path, digest: str) -> bytes:
    content = (layout / "blobs" / digest.replace(":", "/", 1)).read_bytes()
    assert sha(content) == digest
    return content


BASE = tar_of([entry("etc/", type=tarfile.DIRTYPE), entry("etc/name", b"base\n" * 9)])
UPPER = tar_of(
    [
        entry("bin/tool", bytes(range(256)) * 9000, mode=0o4755, uid=1000),
        entry("bin/again", type=tarfile.LNKTYPE, linkname="bin/tool"),
        entry("lib", type=tarfile.SYMTYPE, linkname="bin"),
        entry("empty", b""),
        entry("x" * 150, b"a long name"),
        entry("é", b"not ASCII"),
    ]
)


def test_the_layers_hold_what_the_image_names(store: Store, blobs: Blobs, tmp_path: Path) -> None:
    store.add(BASE)
    store.add(UPPER)
    store.name_image({})
    layout = tmp_path / "layout"

    export(store.root, NAME, layout, blobs)

    layers = [blob(layout, layer["digest"]) for layer in manifest_of(layout)["layers"]]
    assert [gzip.decompress(layer) for layer in layers] == [BASE, UPPER]


def test_an_image_without_layers_is_an_image(store: Store, blobs: Blobs, tmp_path: Path) -> None:
    store.name_image({})

    export(store.root, NAME, tmp_path / "layout", blobs)

    assert manifest_of(tmp_path / "layout")["layers"] == []


def test_what_docker_adds_to_the_configuration_stays_and_what_differs_each_time_goes(
    store: Store, blobs: Blobs, tmp_path: Path
) -> None:
    store.name_image(
        {
            "container": "0123",
            "config": {
                "Hostname": "0123",
                "User": "",
                "Cmd": ["/bin/app"],
                "Healthcheck": {"Test": ["CMD", "true"], "Interval": 5_000_000_000, "Retries": 2},
                "Shell": ["/bin/bash", "-c"],
            },
            "history": [{"created_by": "RUN a", "comment": "FROM 998d8afc5710"}],
        }
    )
    layout = tmp_path / "layout"

    export(store.root, NAME, layout, blobs)

    manifest = manifest_of(layout)
    content = blob(layout, manifest["config"]["digest"])
    config = json.loads(content)
    assert "container" not in config
    assert config["history"] == [{"created_by": "RUN a"}]
    assert set(config["config"]) == {"Cmd", "Healthcheck", "Shell"}
    read = read_image(json.dumps(manifest).encode(), content).config
    assert read.healthcheck is not None
    assert (read.healthcheck.interval_ns, read.healthcheck.retries) == (5_000_000_000, 2)
    assert read.shell == ("/bin/bash", "-c")


def test_a_layer_is_compressed_once(store: Store, blobs: Blobs, tmp_path: Path) -> None:
    folder = store.add(BASE)
    store.name_image({})
    export(store.root, NAME, tmp_path / "first", blobs)
    (folder / "etc/name").unlink()  # so that it could not be compressed again

    export(store.root, NAME, tmp_path / "second", blobs)

    assert (tmp_path / "first/index.json").read_bytes() == (
        tmp_path / "second/index.json"
    ).read_bytes()


def test_a_damaged_blob_of_the_cache_is_made_again(
    store: Store, blobs: Blobs, tmp_path: Path
) -> None:
    store.add(BASE)
    store.name_image({})
    export(store.root, NAME, tmp_path / "first", blobs)
    [layer] = manifest_of(tmp_path / "first")["layers"]
    file = blobs.folder / layer["digest"].removeprefix("sha256:")
    file.write_bytes(bytes(layer["size"]))

    export(store.root, NAME, tmp_path / "second", blobs)

    assert gzip.decompress(blob(tmp_path / "second", layer["digest"])) == BASE


def test_the_cache_keeps_what_was_used_last(store: Store, blobs: Blobs, tmp_path: Path) -> None:
    store.add(BASE)
    store.add(UPPER)
    store.name_image({})
    export(store.root, NAME, tmp_path / "layout", blobs)
    for age, file in enumerate(sorted(blobs.folder.iterdir(), key=lambda f: f.stat().st_size)):
        os.utime(file, (1_000_000 - age, 1_000_000 - age))  # the largest is the oldest
    limit = sum(file.stat().st_size for file in blobs.folder.iterdir()) - 1

    blobs.prune(limit)

    left = sum(file.stat().st_size for file in blobs.folder.iterdir())
    assert 0 < left <= limit
    assert len(list(blobs.folder.iterdir())) == 3


def test_a_layer_that_is_not_what_the_store_says_is_refused(
    store: Store, blobs: Blobs, tmp_path: Path
) -> None:
    (store.add(BASE) / "etc/name").write_bytes(b"other" * 9)
    store.name_image({})

    with pytest.raises(ExportError, match="not what the store says"):
        export(store.root, NAME, tmp_path / "layout", blobs)
    assert list(blobs.folder.iterdir()) == []


@pytest.mark.parametrize("left", [b"", b"base"])
def test_a_file_that_shrank_is_refused(
    store: Store, blobs: Blobs, tmp_path: Path, left: bytes
) -> None:
    (store.add(BASE) / "etc/name").write_bytes(left)
    store.name_image({})

    with pytest.raises(ExportError, match="shorter"):
        export(store.root, NAME, tmp_path / "layout", blobs)


def test_layers_that_the_configuration_does_not_name_are_refused(
    store: Store, blobs: Blobs, tmp_path: Path
) -> None:
    store.add(BASE)
    store.name_image({}, diff_ids=[sha(UPPER)])

    with pytest.raises(ExportError, match="other layers"):
        export(store.root, NAME, tmp_path / "layout", blobs)


def test_an_image_that_is_not_there_is_said(store: Store, blobs: Blobs, tmp_path: Path) -> None:
    store.name_image({})

    with pytest.raises(ExportError, match="no image other"):
        export(store.root, "other", tmp_path / "layout", blobs)


def test_a_link_on_the_way_to_a_file_is_read_within_the_layer(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    (outside / "secret").write_bytes(b"of the host")
    (root / "real").mkdir(parents=True)
    (root / "real" / "file").write_bytes(b"inside")
    (root / "relative").symlink_to("real")
    (root / "absolute").symlink_to("/real")
    (root / "up").symlink_to("../../../real")
    (root / "out").symlink_to(outside)
    (root / "loop").symlink_to("loop")
    (root / "last").symlink_to("real/file")

    with folder_of(root) as folder:

        def read(name: str) -> bytes:
            return b"".join(exporter.content_of(folder, name.encode(), 6))

        for name in ("real/file", "relative/file", "absolute/file", "up/file", "./real//file"):
            assert read(name) == b"inside"
        for name in ("out/secret", "loop/file", "../outside/secret", "last"):
            with pytest.raises(ExportError):
                read(name)


@contextlib.contextmanager
def folder_of(path: Path) -> Iterator[int]:
    folder = os.open(path, os.O_RDONLY)
    try:
        yield folder
    finally:
        os.close(folder)


@given(st.lists(st.binary(max_size=3 * 1024 * 1024), max_size=3))
def test_a_gzip_of_members_holds_the_same_bytes(chunks: list[bytes]) -> None:
    with ThreadPoolExecutor(2) as pool:
        packed = b"".join(exporter.compress(chunks, pool, 2))

    assert gzip.decompress(packed) == b"".join(chunks)
