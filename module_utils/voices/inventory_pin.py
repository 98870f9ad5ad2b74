"""Set one voice's ``digest:`` in the text of an inventory file and leave every other byte as it is. Pure.

The place is found by the position marks of PyYAML's nodes, the text is cut there, and the result is read again: only
that one value may have changed. What a person would have to think about is refused, with the line to set.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from .plan import VoicesError

KEY = "digest"
SEATS = "voices_seats"
_STANDARD = "tag:yaml.org,2002:"


class _Loader(yaml.SafeLoader):
    """Composes nodes, and knows which of them carry an anchor or are reached by an alias."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.shared: set[int] = set()

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        node = super().compose_node(parent, index)
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            self.shared.add(id(node))
        return node


@dataclass(frozen=True)
class Document:
    """A file's text and its root node; ``shared`` are the ids of nodes with an anchor or an alias."""

    path: str
    text: str
    root: Any
    shared: frozenset[int]


@dataclass(frozen=True)
class Place:
    """A definition of ``voices_seats`` that holds for the host: the nodes from the file's root to its value.

    ``group`` is the group whose it is, empty for the host's own.
    """

    document: Document
    nodes: tuple[Any, ...]
    group: str = ""

    @property
    def where(self) -> str:
        return f"{self.document.path}:{self.nodes[-1].start_mark.line + 1}"


@dataclass(frozen=True)
class Edit:
    """The new text, and the voice's own lines before and after it (nothing else of the file is shown to anyone)."""

    text: str
    line: int
    before: str
    after: str


def read(path: str, text: str) -> Document | None:
    """The file as nodes, None when it is no single YAML document (an INI inventory, a script)."""
    loader = _Loader(text)
    try:
        root = loader.get_single_node()
    except (yaml.YAMLError, RecursionError):
        return None
    finally:
        loader.dispose()
    return None if root is None else Document(path, text, root, frozenset(loader.shared))


def places_in_variables(document: Document, group: str = "") -> list[Place]:
    """Where a host_vars or group_vars file defines the seats."""
    return [Place(document, (document.root, value), group) for value in _values(document.root, SEATS)]


def places_in_inventory(document: Document, host: str, groups: Collection[str]) -> list[Place]:
    """Where an inventory file defines the seats for ``host``: at the host, or in ``vars`` of one of its groups."""
    found: list[Place] = []
    waiting: list[tuple[str, tuple[Any, ...], frozenset[int]]] = [
        (name, (document.root, value), frozenset()) for name, value in _pairs(document.root)
    ]
    while waiting:
        group, nodes, above = waiting.pop()
        if id(nodes[-1]) in above:
            continue
        for hosts in _values(nodes[-1], "hosts"):
            for own in _values(hosts, host):
                found += [Place(document, (*nodes, hosts, own, value)) for value in _values(own, SEATS)]
        if group in groups:
            for own in _values(nodes[-1], "vars"):
                found += [Place(document, (*nodes, own, value), group) for value in _values(own, SEATS)]
        for children in _values(nodes[-1], "children"):
            above = above | {id(nodes[-1])}
            waiting += [(name, (*nodes, children, value), above) for name, value in _pairs(children)]
    return found


def _pairs(node: Any) -> list[tuple[str, Any]]:
    if not isinstance(node, yaml.MappingNode):
        return []
    return [(str(key.value), value) for key, value in node.value if isinstance(key, yaml.ScalarNode)]


def _values(node: Any, name: str) -> list[Any]:
    return [value for key, value in _pairs(node) if key == name]


def edit(place: Place, seat: str, voice: str, digest: str, options: Mapping[str, Any]) -> Edit | None:
    """Set the pin of ``voice``; None when the file has it already. ``options`` is the voice as Ansible sees it.

    Raises VoicesError saying why the file is not edited.
    """
    document = place.document
    nodes = [*place.nodes]
    for name, what in ((seat, f"seat {seat}"), ("voices", "voices"), (voice, voice)):
        nodes.append(_only(nodes[-1], name, what))
    _plain_path(document, nodes)
    mapping = nodes[-1]
    if not isinstance(mapping, yaml.MappingNode):
        raise VoicesError(f"{voice} is no mapping there")
    names = [name for name, _ in _pairs(mapping)]
    if len({*names}) != len(mapping.value):
        raise VoicesError(f"{voice} has a key twice, or one that is no text")
    _in_effect(mapping, voice, options)
    old = _values(mapping, KEY)
    if old and str(old[0].value) == digest:
        return None
    text = _replaced(document.text, old[0], digest) if old else _added(document.text, mapping, digest)
    _prove(document.text, text, mapping, digest)
    start = _key_of(nodes[-2], voice).start_mark
    end = mapping.end_mark.index
    after = text[start.index : end + len(text) - len(document.text)]
    return Edit(text, start.line + 1, _lines(document.text[start.index : end]), _lines(after))


def _lines(text: str) -> str:
    return text.rstrip() + "\n"


def _key_of(mapping: Any, name: str) -> Any:
    return next(key for key, _ in mapping.value if key.value == name)


def _only(node: Any, name: str, what: str) -> Any:
    if isinstance(node, yaml.ScalarNode) and "{{" in node.value:
        raise VoicesError(f"what holds {what} is a template there: {node.value.strip()[:80]!r}")
    found = _values(node, name)
    if len(found) == 1:
        return found[0]
    raise VoicesError(f"{what} stands there {len(found)} times" if found else f"{what} does not stand there")


def _plain_path(document: Document, nodes: Collection[Any]) -> None:
    """Refuse what one place in the text does not stand for alone."""
    last = [*nodes][-1]
    inner = [value for key, value in _pairs(last) if key == KEY]
    for node in [*nodes, *inner]:
        if id(node) in document.shared:
            raise VoicesError(f"line {node.start_mark.line + 1} carries an anchor or an alias (& or *)")
        if not str(node.tag).startswith(_STANDARD):
            raise VoicesError(f"line {node.start_mark.line + 1} carries the tag {node.tag}")
        if any(key == "<<" for key, _ in _pairs(node)):
            raise VoicesError(f"line {node.start_mark.line + 1} begins a mapping with a merge key (<<)")
    for node in inner:
        if not isinstance(node, yaml.ScalarNode) or "{{" in node.value or node.style in ("|", ">"):
            raise VoicesError(
                f"the digest on line {node.start_mark.line + 1} is no plain value (a template, or a block)"
            )


def _in_effect(mapping: Any, voice: str, options: Mapping[str, Any]) -> None:
    """The voice there must be the voice as Ansible sees it: where another place wins, an edit changes nothing."""
    there = dict(_pairs(mapping))
    wrong = [name for name in sorted({*there, *map(str, options)}) if not _same(there.get(name), options.get(name))]
    if wrong:
        raise VoicesError(
            f"{voice} has there another {wrong[0]} than the one in effect ({options.get(wrong[0])!r}), so that "
            "place is not the one that counts"
        )


def _same(node: Any, value: Any) -> bool:
    if node is None:
        return value is None
    if not isinstance(node, yaml.ScalarNode):
        return not isinstance(value, str)
    if "{{" in node.value or not str(node.tag).startswith(_STANDARD):
        return True  # a template or a vaulted value: nothing to compare before it is resolved
    return bool(node.value == str(value)) or (value is None and node.tag == f"{_STANDARD}null")


def _scalar(digest: str, style: str | None) -> str:
    """The digest as it stands in the file; in quotes, unless it stood there without and stays a text without."""
    if style is None and isinstance(yaml.safe_load(digest), str):
        return digest
    return f"'{digest}'" if style == "'" else f'"{digest}"'


def _replaced(text: str, node: Any, digest: str) -> str:
    empty = " " if node.start_mark.index == node.end_mark.index else ""
    return text[: node.start_mark.index] + empty + _scalar(digest, node.style) + text[node.end_mark.index :]


def _added(text: str, mapping: Any, digest: str) -> str:
    quoted = bool(mapping.value) and mapping.value[0][0].style == '"'  # JSON, or as good as
    entry = (f'"{KEY}"' if quoted else KEY) + f': "{digest}"'
    source = next((value for key, value in mapping.value if key.value == "source"), None)
    one_line = isinstance(source, yaml.ScalarNode) and source.start_mark.line == source.end_mark.line
    if mapping.flow_style:
        if source is not None:
            at = source.end_mark.index
            return f"{text[:at]}, {entry}{text[at:]}"
        at = mapping.start_mark.index + 1
        return f"{text[:at]}{entry}{', ' if mapping.value else ''}{text[at:]}"
    first = mapping.value[0][0].start_mark
    newline = "\r\n" if "\r\n" in text else "\n"
    if source is not None and one_line and (end := re.compile(r"\r\n|\n|\r|\Z").search(text, source.end_mark.index)):
        if end.group():
            return f"{text[: end.end()]}{' ' * first.column}{entry}{newline}{text[end.end() :]}"
        return f"{text}{newline}{' ' * first.column}{entry}"
    return f"{text[: first.index]}{entry}{newline}{' ' * first.column}{text[first.index :]}"


def _prove(before: str, after: str, mapping: Any, digest: str) -> None:
    """The new text is the old one with this one value. Tags other than YAML's own are compared as they stand."""
    old, new = yaml.compose(before, yaml.SafeLoader), None
    try:
        new = yaml.compose(after, yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise VoicesError(f"the edited text would be no YAML ({error})") from None
    if _shape(old, mapping.start_mark.index, digest) != _shape(new, None, ""):
        raise VoicesError("the edited text would say something else than the pin: its form is not understood")


def _shape(node: Any, at: int | None, digest: str) -> Any:
    """Nested tuples of tags and values; the mapping that starts ``at`` gets the pin."""
    if isinstance(node, yaml.MappingNode):
        pairs = [(_shape(key, at, digest), _shape(value, at, digest)) for key, value in node.value]
        if node.start_mark.index == at:
            key, value = ((f"{_STANDARD}str", text) for text in (KEY, digest))
            pairs = [*(pair for pair in pairs if pair[0] != key), (key, value)]
        return node.tag, sorted(pairs, key=repr)
    if isinstance(node, yaml.SequenceNode):
        return node.tag, [_shape(item, at, digest) for item in node.value]
    return node.tag, node.value
