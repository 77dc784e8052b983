"""What a cluster is built of, as far as it can be seen without building one."""

from __future__ import annotations

import os
import shutil
import stat
import zipfile
from pathlib import Path

import pytest

from isthmus import __version__
from isthmus.errors import ConfigError
from isthmus.lab.kubernetes import bundle, cgroups, door, images, machine, programs
from isthmus.lab.kubernetes.programs import GoTarget, NotBuiltError

VERSION_1 = """\
30 24 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755
31 30 0:27 / {point}/cpu,cpuacct rw,nosuid - cgroup cgroup rw,cpu,cpuacct
32 30 0:28 / {point}/systemd rw,nosuid - cgroup cgroup rw,xattr,name=systemd
33 30 0:28 / /elsewhere/systemd rw,nosuid - cgroup cgroup rw,xattr,name=systemd
"""
VERSION_2 = "30 24 0:26 / {point} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"


def mounted(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mountinfo"
    path.write_text(text.format(point=tmp_path))
    monkeypatch.setattr(cgroups, "_MOUNTINFO", path)


def test_each_hierarchy_of_version_1_is_found_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounted(VERSION_1, tmp_path, monkeypatch)
    assert [(one.point.name, one.kind, one.options) for one in cgroups.hierarchies()] == [
        ("cpu,cpuacct", "cgroup", "cpu,cpuacct"),
        ("systemd", "cgroup", "none,name=systemd"),
    ]


def test_a_controller_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu io\n")
    mounted(VERSION_2, tmp_path, monkeypatch)
    with pytest.raises(ConfigError, match="cgroup controllers memory, pids, not found here"):
        cgroups.check()


def test_cgroups_of_version_2_are_leaves_with_all_controllers_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounted(VERSION_2, tmp_path, monkeypatch)
    lab = tmp_path / "isthmus-lab-abc"
    for folder in (tmp_path, lab, lab / "node"):
        folder.mkdir(exist_ok=True)
        (folder / "cgroup.controllers").write_text("cpu memory\n")
        (folder / "cgroup.subtree_control").touch()
    assert cgroups.make("abc", "node") == [str(lab / "node" / "machine" / "cgroup.procs")]
    for folder in (tmp_path, lab, lab / "node"):
        assert (folder / "cgroup.subtree_control").read_text() == "+memory"  # the last of both


def test_without_root_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ConfigError, match="a cluster needs root, for namespaces"):
        bundle.check()


def test_programs_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name: None if name in ("runc", "mount") else name)
    with pytest.raises(ConfigError, match="a cluster needs mount, runc, not found in the PATH"):
        bundle.check()


def test_without_go_nothing_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(NotBuiltError, match="no go in PATH"):
        programs.build([GoTarget(module=tmp_path, packages=(".",), programs=("x",))], print)


def test_what_is_there_is_not_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    target = GoTarget(module=tmp_path, packages=(".",), programs=("x",))
    target.directory.mkdir(parents=True)
    target.path("x").touch()
    programs.build([target], print)


def test_other_sources_are_another_folder(tmp_path: Path) -> None:
    (tmp_path / "go.mod").write_text("module x\n")
    folders = set()
    for version in ("1", "2"):
        (tmp_path / "go.sum").write_text(version)
        folders.add(GoTarget(module=tmp_path, packages=(".",), programs=("x",)).directory)
    assert len(folders) == 2


def test_the_package_that_runs_becomes_a_wheel(tmp_path: Path) -> None:
    path = tmp_path / "x.whl"
    images._write_wheel(path)
    with zipfile.ZipFile(path) as wheel:
        names = set(wheel.namelist())
        records = wheel.read(f"isthmus-{__version__}.dist-info/RECORD").decode().splitlines()
    assert {"isthmus/__init__.py", "isthmus/lab/topologies/kubernetes.yaml"} <= names
    assert {line.split(",")[0] for line in records} == names


def test_the_kubeconfig_of_this_machine_is_for_its_owner_alone(tmp_path: Path) -> None:
    source, target = tmp_path / "admin.conf", tmp_path / "kubectl.conf"
    source.write_text('{server: "https://10.99.0.1:6443", certificate-authority: "/x/ca.crt"}')
    door._write(source, target, 4711)
    assert target.read_text() == (
        '{server: "https://127.0.0.1:4711", certificate-authority: "/x/ca.crt"}'
    )
    assert stat.S_IMODE(target.stat().st_mode) == 0o600


def test_every_image_has_a_name_or_is_the_ground_of_others(tmp_path: Path) -> None:
    from isthmus.lab.kubernetes.containerfile import stages

    found = stages(images.HERE / "Containerfile", {"BASE": "debian"})
    grounds = {stage.base for stage in found}
    for stage in found:
        words = [each.rest for each in stage.instructions if each.word == "LABEL"]
        assert words or stage.name in grounds, stage.name


def test_what_a_machine_would_hide_is_seen_all_the_same() -> None:
    assert machine._is_hidden("/run/isthmus/labs/abc")
    assert machine._is_hidden("/tmp")
    assert not machine._is_hidden("/tmpfiles/x")
