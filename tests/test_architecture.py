"""The rules of the house, enforced: who may import whom, what pure means, who has a docstring."""

from __future__ import annotations

import ast
import importlib.util
import sys
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[1] / "src" / "isthmus"

# Lower may not import higher. Packages on one line may import each other's values.
LAYERS = [
    {"values", "errors", "__init__"},
    {"text"},
    {"diagram"},
    {"settings", "logs"},
    {"wire"},
    {"tunnel"},
    {"net", "testing"},
    {"links"},
    {"dial"},
    {"kube"},
    {"frame"},
    {"programs", "manifests"},
    {"client", "hosting"},
    {"lab", "tools"},
    {"cli", "__main__"},
]
LEVEL = {package: level for level, packages in enumerate(LAYERS) for package in packages}
#: A program may not know another; what two of them share is below them.
ROOMS = "programs"

PURE_PACKAGES = {
    "values",
    "errors",
    "text",
    "diagram",
    "settings",
    "wire",
    "tunnel",
    "manifests",
    "hosting",
}
#: Elsewhere a file is pure by its name, or by that of its folder.
PURE_NAMES = ("settings", "rules", "model", "plan", "render")
#: What talks to a person is not pure anywhere.
COMMAND = "command"
IMPURE_MODULES = {
    "asyncio": "net/ or above",
    "socket": "net/",
    "ssl": "net/tls.py or net/contexts.py",
    "subprocess": "a program or a tool",
    "threading": "a program or a tool",
    "time": "the caller: time comes in as an argument",
    "random": "the caller: chance comes in as an argument",
    "logging": "logs.py, or return what is to be said",
    "os": "the caller: files and environment come in as arguments",
}


@cache
def modules() -> list[Path]:
    return sorted(path for path in ROOT.rglob("*.py") if not path.name.endswith("_pb2.py"))


def package_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@cache
def shape() -> ModuleType:
    """tools/shape, which also prints these measures."""
    path = ROOT.parents[1] / "tools" / "shape"
    loader = SourceFileLoader("shape", str(path))
    spec = importlib.util.spec_from_loader("shape", loader)
    assert spec is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules["shape"] = made  # where its dataclasses look for their annotations
    loader.exec_module(made)
    return made


@cache
def source_tree() -> Any:
    return shape().Tree.read()


@cache
def module_at(path: Path) -> Any:
    """A module as tools/shape has it: parsed and walked once for all tests."""
    return _known().get(path) or shape().Module(path, path.read_text())


@cache
def _known() -> dict[Path, Any]:
    return {module.path: module for module in source_tree().modules}


@cache
def imports_of(path: Path) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    for node in module_at(path).nodes:
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import; name the whole path"
            assert node.module is not None
            found.append((node.lineno, node.module))
            if node.module == "isthmus":
                found += [(node.lineno, f"isthmus.{alias.name}") for alias in node.names]
    return found


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def rooms() -> set[str]:
    """Those with a program; what two of them share has none."""
    declared = (ROOT / ROOMS).glob("*/__init__.py")
    return {path.parent.name for path in declared if "\nPROGRAM = " in path.read_text()}


def is_pure(path: Path) -> bool:
    *folders, name = path.relative_to(ROOT).with_suffix("").parts
    if name.startswith(COMMAND):
        return False
    if (folders[0] if folders else name) in PURE_PACKAGES:
        return True
    word = name if name in PURE_NAMES else name.partition("_")[0]
    return word in PURE_NAMES or bool({*folders[1:]} & set(PURE_NAMES))


def test_imports_go_one_way() -> None:
    wrong = []
    for path in modules():
        own = package_of(path)
        assert own in LEVEL, (
            f"{own}/ has no place in the layers: add it here and in ARCHITECTURE.md"
        )
        for line, name in imports_of(path):
            parts = name.split(".")
            if parts[0] != "isthmus" or len(parts) == 1 or parts[1].startswith("__"):
                continue
            other = parts[1]
            if own == other == ROOMS and len(parts) > 2:
                room = path.relative_to(ROOT).parts[1]
                if parts[2] != room.removesuffix(".py") and parts[2] in rooms():
                    wrong.append(f"{named(path)}:{line}: {room}/ may not import {parts[2]}/")
            if own == "manifests" and other == ROOMS and len(parts) > 2:
                wrong.append(
                    f"{named(path)}:{line}: manifests/ may import the list of programs and no room:"
                    " what a program needs is declared there (Program.manifest, Program.chart)"
                )
            if LEVEL[other] > LEVEL[own]:
                wrong.append(
                    f"{named(path)}:{line}: {own}/ may not import {other}/, which is above it;"
                    f" move the code up to {other}/ or pass what it needs in as an argument"
                )
    assert not wrong, "\n".join(wrong)


def test_pure_files_stay_pure() -> None:
    wrong = [
        f"{named(path)}:{line}: a pure file may not import {top};"
        f" this belongs to {IMPURE_MODULES[top]}"
        for path in modules()
        if is_pure(path)
        for line, name in imports_of(path)
        if (top := name.split(".")[0]) in IMPURE_MODULES
    ]
    assert not wrong, "\n".join(wrong)


def test_every_module_says_what_it_is() -> None:
    wrong = []
    for path in modules():
        doc = ast.get_docstring(module_at(path).tree) or ""
        if not doc.partition("\n")[0].endswith((".", ":")):
            wrong.append(f"{named(path)}: its docstring does not open with a sentence")
    assert not wrong, "\n".join(wrong)


def test_the_glossary_lists_the_words_of_the_house() -> None:
    doc = ast.get_docstring(ast.parse((ROOT / "__init__.py").read_text())) or ""
    words = "frontend agent link dial tunnel end join drain strategy network destination"
    for word in words.split():
        assert f"\n{word} " in doc, f"the package docstring does not explain {word!r}"


#: By measure of tools/shape, what there may be at most. Lower it whenever there is less.
MOST = {
    "files-naming-a-program": 3,
    "ambiguous-classes": 1,
    "small-modules": 0,
    "long-signatures": 1,
    "import-cycles": 0,
    "empty-docstrings": 0,
}


def test_the_shape_gets_no_worse() -> None:
    tree = source_tree()
    wrong = []
    for measure, most in MOST.items():
        found = shape().MEASURES[measure][1](tree)
        if len(found) > most:
            wrong += [f"{measure}: {len(found)}, and there were {most}:", *found]
    assert not wrong, "\n".join(wrong)
