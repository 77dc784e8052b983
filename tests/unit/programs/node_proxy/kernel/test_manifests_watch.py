"""A directory of manifests that changes, looked at by hand."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from isthmus.errors import ConfigError
from isthmus.programs.node_proxy.kernel.manifests import Manifests, ManifestsWatch

SERVICE = """\
apiVersion: v1
kind: Service
metadata: {name: NAME}
spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}
"""


def put(path: Path, *names: str) -> None:
    path.write_text("---\n".join(SERVICE.replace("NAME", name) for name in names))


def names(found: Manifests | None) -> list[str]:
    assert found is not None
    return [each.name.name for each in found.services]


@pytest.fixture
def watch(tmp_path: Path) -> ManifestsWatch:
    """One that has read a.yaml with the Service a."""
    (tmp_path / "d").mkdir()
    put(tmp_path / "d" / "a.yaml", "a")
    made = ManifestsWatch(tmp_path / "d")
    assert names(made.read()) == ["a"]
    assert made.look() is None
    return made


def test_a_change_is_taken_once_it_looks_the_same_twice(
    watch: ManifestsWatch, tmp_path: Path
) -> None:
    path = tmp_path / "d" / "a.yaml"
    put(path, "a", "b")
    assert watch.look() is None  # perhaps there is more to come
    put(path, "a", "b", "c")
    assert watch.look() is None
    assert names(watch.look()) == ["a", "b", "c"]
    assert watch.look() is None


def test_files_come_and_go(watch: ManifestsWatch, tmp_path: Path) -> None:
    put(tmp_path / "d" / "b.yaml", "b")
    watch.look()
    assert names(watch.look()) == ["a", "b"]
    (tmp_path / "d" / "a.yaml").unlink()
    assert watch.look() is None
    assert names(watch.look()) == ["b"]


def test_a_file_that_is_replaced_is_never_away(watch: ManifestsWatch, tmp_path: Path) -> None:
    path = tmp_path / "d" / "a.yaml"
    path.unlink()
    assert watch.look() is None
    put(path, "a", "b")
    assert watch.look() is None
    assert names(watch.look()) == ["a", "b"]


def test_what_is_wrong_is_said_once_and_changes_nothing(
    watch: ManifestsWatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "d" / "a.yaml"
    path.write_text("kind: [")
    assert [watch.look() for _ in range(4)] == [None] * 4
    assert len(caplog.records) == 1
    put(tmp_path / "d" / "b.yaml", "b")
    watch.look()
    assert names(watch.look()) == ["a", "b"]  # of a.yaml what it had
    put(path, "c")
    watch.look()
    assert names(watch.look()) == ["c", "b"]


def test_an_object_in_two_files_changes_nothing(
    watch: ManifestsWatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path / "d" / "b.yaml", "b", "a")
    assert [watch.look() for _ in range(4)] == [None] * 4
    assert len(caplog.records) == 1
    put(tmp_path / "d" / "b.yaml", "b")
    watch.look()
    assert names(watch.look()) == ["a", "b"]


def test_a_directory_that_is_away_changes_nothing(
    watch: ManifestsWatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.move(tmp_path / "d", tmp_path / "away")
    assert [watch.look() for _ in range(3)] == [None] * 3
    assert len(caplog.records) == 1
    shutil.move(tmp_path / "away", tmp_path / "d")
    assert [watch.look() for _ in range(3)] == [None] * 3


def test_a_mounted_config_map_is_followed(tmp_path: Path) -> None:
    """It is links by way of a link that is put in another's place."""
    for number in (1, 2):
        (tmp_path / f"..{number}").mkdir()
        put(tmp_path / f"..{number}" / "a.yaml", f"v{number}")
    os.symlink("..1", tmp_path / "..data")
    os.symlink("..data/a.yaml", tmp_path / "a.yaml")
    watch = ManifestsWatch(tmp_path)
    assert names(watch.read()) == ["v1"]
    os.symlink("..2", tmp_path / "..new")
    os.rename(tmp_path / "..new", tmp_path / "..data")
    watch.look()
    assert names(watch.look()) == ["v2"]


def test_the_first_reading_is_strict(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("kind: [")
    with pytest.raises(ConfigError, match=r"a\.yaml:2:1: "):
        ManifestsWatch(tmp_path).read()
