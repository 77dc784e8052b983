"""Whatever is typed arrives: through Kubernetes' references, systemd's quoting, and Go's YAML."""

from __future__ import annotations

import re

import yaml
from hypothesis import given
from hypothesis import strategies as st

from isthmus.manifests.arguments import REFERENCES, for_pod, references, with_examples
from isthmus.manifests.systemd import command_line, word
from isthmus.text.go_yaml import to_yaml

PRINTED = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")))
DOLLARS = st.text(st.sampled_from("$()AB")) | st.lists(
    st.sampled_from(["$", "$$", "(", ")", "$(NODE_NAME)", "$(OTHER)", "x"])
).map("".join)


def expand(text: str, known: dict[str, str]) -> str:
    """As Kubernetes does it (third_party/forked/golang/expansion)."""
    out, pos = "", 0
    while pos < len(text):
        if text[pos] != "$" or pos + 1 == len(text):
            out, pos = out + text[pos], pos + 1
        elif text[pos + 1] == "$":
            out, pos = out + "$", pos + 2
        elif text[pos + 1] == "(" and (end := text.find(")", pos)) > 0:
            name = text[pos + 2 : end]
            out, pos = out + known.get(name, f"$({name})"), end + 1
        else:
            out, pos = out + text[pos : pos + 2], pos + 2
    return out


@given(PRINTED | DOLLARS)
def test_a_pod_gets_what_was_typed(text: str) -> None:
    known = {name: f"<{name}>" for name in REFERENCES}
    wanted = text
    for name, value in known.items():
        wanted = wanted.replace(f"$({name})", value)
    assert expand(for_pod([text])[0], known) == wanted


@given(DOLLARS)
def test_examples_leave_no_reference(text: str) -> None:
    given_texts = {"flag": (text,)}
    assert ("NODE_NAME" in references(given_texts)) == ("$(NODE_NAME)" in text)
    if "NODE_NAME" not in references(given_texts):
        assert with_examples(given_texts) == given_texts


def unquoted(text: str) -> str:
    """As systemd reads one word (systemd.syntax(7), systemd.service(5))."""
    if text.startswith('"'):
        assert text.endswith('"') and len(text) > 1
        escapes = {"\\\\": "\\", '\\"': '"', "\\n": "\n", "\\t": "\t"}
        text = re.sub(r"\\.", lambda found: escapes[found[0]], text[1:-1])
    else:
        assert not re.search(r"""["'\\\s;]""", text)
    assert not re.search(r"(?<!%)(?:%%)*%(?!%)", text)
    return text.replace("%%", "%").replace("$$", "$")


@given(PRINTED | st.text(st.sampled_from("%$\"' \\;\n\tab")))
def test_systemd_gets_what_was_typed(text: str) -> None:
    written = word(text)
    assert "\n" not in written
    assert unquoted(written) == text
    assert command_line(["/a", text]).startswith("/a \\\n    ")


@given(st.dictionaries(PRINTED, PRINTED | st.integers() | st.booleans() | st.lists(PRINTED)))
def test_yaml_is_read_as_it_was_written(document: dict[str, object]) -> None:
    assert yaml.safe_load(to_yaml([document])) == document


LINES = st.lists(st.text(st.sampled_from("ab:#- '\"|>%\t\u00fc"))).map("\n".join)


@given(LINES, st.sampled_from(["", "\n", "\n\n"]))
def test_files_inside_yaml_are_read_as_they_were_written(text: str, end: str) -> None:
    document = {"data": {"file": text + end, "list": [text + end]}}
    assert yaml.safe_load(to_yaml([document])) == document
