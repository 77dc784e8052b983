"""Every block of the documents says what it is, and is what it says.

Commands are run by test_running.py, or it is said why not; run or not, each is parsed here, by our
own declarations where it is ours. YAML is read by its readers, Python is compiled and its imports
are made, TOML, JSON and INI are parsed.
"""

from __future__ import annotations

import ast
import configparser
import json
import re
import tomllib
from collections.abc import Iterator

import doc_stand_in
import doc_yaml
import pytest
from doc_blocks import ROOT, SHELL, WORDS, Block, Page, pages, read, shell_blocks
from doc_commands import bash_objects, calls, commands, words_of
from doc_flags import objections
from doc_machines import MACHINES

PAGES = [pytest.param(page, id=page.name) for page in pages()]
#: Languages that nothing here can run or read; such blocks say ``not run``.
OTHERS = frozenset({"go", "protobuf"})
_SPAN = re.compile(r"(?<!`)`(isthmus [^`]+)`(?!`)")
_FENCED = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
_COMMAND_IN_WORDS = re.compile(r"^(\$ |(# )?(isthmus|kubectl|curl) [a-z].* --)", re.MULTILINE)


def of_language(language: str) -> list[object]:
    return [
        pytest.param(block, id=str(block))
        for page in pages()
        for block in page.blocks
        if block.language == language
    ]


@pytest.mark.parametrize("page", PAGES)
def test_every_block_says_what_it_is(page: Page) -> None:
    known = SHELL | WORDS | OTHERS | {"yaml", "python", "toml", "json", "ini"}
    for block in page.blocks:
        assert not block.indented, f"{block}: a block without a fence, or a list that is none"
        assert block.language in known, f"{block}: {block.language or 'no language'}"
        assert block.language not in OTHERS or block.note("not run"), f"{block}: say why not run"
        if block.language in WORDS:
            found = _COMMAND_IN_WORDS.search(block.text)
            assert not found, f"{block}: a command in a block of words: {found}"


@pytest.mark.parametrize("page", PAGES)
def test_what_is_said_of_a_page_is_so(page: Page) -> None:
    assert page.machine in MACHINES, f"{page.name}: there is no machine {page.machine!r}"
    if page.run_by:
        test = (ROOT / page.run_by).read_text("utf-8")
        assert page.name.rpartition("/")[2] in test, f"{page.run_by} does not read {page.name}"
    for block in page.blocks:
        for named in re.findall(r"tests/[\w./-]+", block.note("not run")):
            assert (ROOT / named.rstrip(".")).exists(), f"{block}: there is no {named}"


@pytest.mark.parametrize("page", PAGES)
def test_commands_can_be_typed(page: Page) -> None:
    wrong = [said for block in shell_blocks(page) for said in wrong_commands(block)]
    assert not wrong, "\n".join(wrong)


def wrong_commands(block: Block) -> Iterator[str]:
    found = commands(block)
    assert found, f"{block}: a block of commands without a command"
    for command in found:
        if said := bash_objects(command.text.replace("…", "")):
            yield f"{command.where}: bash: {said}"
        for words in calls(command.expanded):
            if said := wrong_call(words):
                yield f"{command.where}: {' '.join(words)}\n  {said}"


def wrong_call(words: list[str]) -> str:
    match words:
        case ["isthmus", *rest]:
            return objections(rest)
        case ["make", target, *_] if "=" not in target and not target.startswith("-"):
            return "" if re.search(rf"^{target}:", makefile(), re.MULTILINE) else "no such target"
        case [program, *rest] if program in doc_stand_in.SUBCOMMANDS:
            return "; ".join(doc_stand_in.objections(program, rest))
    return ""


def makefile() -> str:
    return (ROOT / "Makefile").read_text("utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_commands_within_sentences_exist(page: Page) -> None:
    text = _FENCED.sub("", page.text)
    wrong = []
    for span in _SPAN.findall(text):
        words = [*words_of(span.replace("\\|", " "))[1:], "…"]
        if said := objections(words):
            wrong.append(f"{page.name}: `{span}`: {said}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("block", of_language("yaml"))
def test_yaml_is_read_by_its_reader(block: Block) -> None:
    found = doc_yaml.objections(block.text, str(block), part_of=block.note("part of"))
    assert not found, "\n".join([str(block), *found])


@pytest.mark.parametrize("block", of_language("python"))
def test_python_compiles_and_finds_what_it_imports(block: Block) -> None:
    text = block.text if not block.text.startswith(" ") else f"if True:\n{block.text}"
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST
    text = f"async def page():\n{_indented(text)}" if block.text.startswith(" ") else text
    tree = compile(text, str(block), "exec", flags)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            exec(compile(ast.Module([node], []), str(block), "exec"), {})


def _indented(text: str) -> str:
    return "".join(f"    {line}" for line in text.splitlines(keepends=True))


@pytest.mark.parametrize("block", [*of_language("toml"), *of_language("ini")])
def test_toml_and_ini_parse(block: Block) -> None:
    if block.language == "toml":
        assert tomllib.loads(block.text)
    else:
        parser = configparser.ConfigParser(strict=False, interpolation=None)
        parser.optionxform = str  # type: ignore[assignment, method-assign]
        parser.read_string(block.text)
        assert parser.sections()


@pytest.mark.parametrize("block", of_language("json"))
def test_json_parses(block: Block) -> None:
    assert json.loads(block.text.replace("\n", " "))


def test_what_is_wrong_is_found() -> None:
    assert "no flag --frobnicate" in objections(["server", "--frobnicate=1"])
    assert objections(["server", "--keepalive-time=soon", "…"])
    assert objections(["servr"]) and objections(["lab", "rin", "x"])
    assert not objections(["lab", "shell", "HOST"])
    page = read("p.md", "# P\n\n<!-- not run: because -->\n\n```sh\nls\n```\n\n    indented\n")
    assert [block.note("not run") for block in page.blocks] == ["because", ""]
    assert page.blocks[1].indented
    assert doc_yaml.objections("{apiVersion: v1, kind: Service, spec: {prots: []}}", "x")
    assert doc_yaml.objections("{kind: EgressSelectorConfiguration, egress: 1}", "x")
    assert doc_stand_in.objections("kubectl", ["aply", "-f", "x"])


def test_most_commands_are_run() -> None:
    """Reasons for not running a block are listed by ``pytest -s``, and are the fewer part."""
    listed = [block for page in pages() for block in shell_blocks(page) if block.note("not run")]
    for block in listed:
        print(f"{block}: not run: {block.note('not run')}")
    everything = sum(len(shell_blocks(page)) for page in pages())
    assert len(listed) * 3 < everything


def test_links_outside_of_the_site_lead_somewhere() -> None:
    """Those of docs/ are checked by ``make docs``, which does not see these pages."""
    for page in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"):
        text = _FENCED.sub("", (ROOT / page).read_text("utf-8"))
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
            assert (ROOT / target).exists(), f"{page}: there is no {target}"
