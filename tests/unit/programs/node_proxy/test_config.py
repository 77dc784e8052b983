"""The file of --config while it changes."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from isthmus.programs.node_proxy.config import ConfigChanged, follow_config, read_config
from isthmus.programs.node_proxy.settings import NodeProxySettings
from isthmus.settings.options import compose

LIMIT_S = 20.0
TEXT = """\
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
hostnameOverride: node-a
clusterCIDR: 10.1.0.0/16
logging: {verbosity: 3}
"""


def follow(
    path: Path, text: str, flags: NodeProxySettings, caplog: pytest.LogCaptureFixture, until: str
) -> bool:
    """Whether another text ends it; it does not if this is said."""

    async def run() -> bool:
        path.write_text(TEXT)
        following = asyncio.create_task(follow_config(read_config(flags), look_s=0.01))
        await asyncio.sleep(0.05)
        assert not following.done()
        path.write_text(text)
        async with asyncio.timeout(LIMIT_S):
            while not following.done() and not (until and until in caplog.text):
                await asyncio.sleep(0.005)
        if following.done():
            with pytest.raises(ConfigChanged):
                await following
            return True
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following
        return False

    return asyncio.run(run())


@pytest.mark.parametrize(
    "text",
    [
        TEXT.replace("10.1", "10.2"),
        TEXT.replace("node-a", "node-b"),
        TEXT.replace("verbosity: 3", "verbosity: 4"),
        TEXT.replace("hostnameOverride: node-a\n", ""),
        TEXT + "mode: nftables\n",
    ],
)
def test_other_settings_end_it(tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    flags = NodeProxySettings(config=str(tmp_path / "config.conf"), detect_local="cluster-cidr")
    assert follow(Path(flags.config), text, flags, caplog, "")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TEXT.replace("clusterCIDR", "clustrCIDR"), "unknown key"),
        (TEXT.replace("10.1.0.0/16", "10.1.0.0/33"), "10.1.0.0/33"),
        ("", "is empty"),
    ],
)
def test_a_wrong_one_is_said_and_not_used(
    tmp_path: Path, text: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    flags = NodeProxySettings(config=str(tmp_path / "config.conf"))
    assert not follow(Path(flags.config), text, flags, caplog, "keeping the current settings")
    assert any(said in str(vars(each)) for each in caplog.records)


def test_what_a_flag_says_is_not_changed_by_the_file(tmp_path: Path) -> None:
    async def run() -> None:
        path = tmp_path / "config.conf"
        path.write_text(TEXT)
        flags = compose(NodeProxySettings, config=str(path), hostname_override="mine", v=5)
        settings = read_config(flags)
        assert (settings.hostname_override, settings.log.v) == ("mine", 5)
        following = asyncio.create_task(follow_config(settings, look_s=0.01))
        path.write_text(f"# the same\n{TEXT}".replace("node-a", "node-b").replace("3", "4"))
        await asyncio.sleep(0.1)
        assert not following.done()
        following.cancel()

    asyncio.run(run())
