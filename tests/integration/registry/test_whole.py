"""The registry inside a control plane: what a runner pushed is pulled by the reference it got."""

import json
import subprocess
from pathlib import Path

from tests.acceptance.stage import finished, hello, stage, submit


async def test_a_built_image_is_pulled_by_its_reference_and_no_other_way(tmp_path: Path) -> None:
    async with stage(tmp_path) as opened:
        await opened.join("one")
        async with opened.client() as owner:
            build = await submit(owner, hello(), key="once")
            view = await finished(owner, build.id, within=120)
        assert view.state == "succeeded", opened.logs()
        assert view.reference is not None
        digest = view.reference.partition("@")[2]
        pulled = pull(view.reference, tmp_path / "back", opened.login / "config.json")
        assert pulled.returncode == 0, pulled.stderr
        [manifest] = json.loads((tmp_path / "back" / "index.json").read_text())["manifests"]
        assert manifest["digest"] == digest

        nobody = tmp_path / "nobody.json"
        nobody.write_text("{}")
        refused = pull(view.reference, tmp_path / "nothing", nobody)
        assert refused.returncode != 0


def pull(reference: str, layout: Path, authfile: Path) -> "subprocess.CompletedProcess[str]":
    source, target = f"docker://{reference}", f"oci:{layout}"
    command = [
        "skopeo",
        "copy",
        "--src-tls-verify=false",
        "--authfile",
        str(authfile),
        source,
        target,
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
