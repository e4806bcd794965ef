"""What changed between two APIs: how a maintainer meets a new release."""

from __future__ import annotations

from collections.abc import Iterator

from bindgen.model import Api, Enum, Function, Param, Struct, declare


def differences(old: Api, new: Api) -> list[str]:
    """Lines `- removed`, `+ added`, and a `-`/`+` pair for each changed signature or type; empty when equal."""
    return [*_functions(old, new), *_structs(old, new), *_enums(old, new), *_names(old, new)]


def counts(old: Api, new: Api) -> tuple[int, int, int]:
    """Numbers of functions added, removed, and changed in signature."""
    common = old.by_name.keys() & new.by_name.keys()
    changed = sum(old.by_name[n].abi != new.by_name[n].abi for n in common)
    return len(new.by_name) - len(common), len(old.by_name) - len(common), changed


def _functions(old: Api, new: Api) -> Iterator[str]:
    added, removed, changed = counts(old, new)
    if added or removed or changed:
        yield f"functions: +{added} -{removed}, {changed} changed"
    for f in old.functions:
        if f.name not in new.by_name:
            yield f"- {f.signature}"
    for f in new.functions:
        before = old.by_name.get(f.name)
        if before is None:
            yield f"+ {f.signature}"
        elif before.signature != f.signature:
            yield f"- {before.signature}"
            yield f"+ {f.signature}"
        elif _notes(before) != _notes(f):
            yield f"{f.name}: {_notes(before)} -> {_notes(f)}"


def _notes(f: Function) -> str:
    """What a model knows of a function beside its signature."""
    nullable = ", ".join(p.name for p in f.params if p.nullable)
    return f.header + (f", may be null: {nullable}" if nullable else "")


def _member(m: Param | Function) -> str:
    return m.signature if isinstance(m, Function) else declare(m.type, m.name)


def _structs(old: Api, new: Api) -> Iterator[str]:
    def text(s: Struct) -> list[str]:
        return [_member(m) for m in s.members]

    for name in [*old.structs, *(n for n in new.structs if n not in old.structs)]:
        before = text(old.structs[name]) if name in old.structs else None
        after = text(new.structs[name]) if name in new.structs else None
        if before is None or after is None:
            yield f"{'+' if before is None else '-'} struct {name}"
        elif before != after:
            yield f"struct {name}:"
            # The members' order is the layout, so a moved member is shown as removed and added.
            common = 0
            while common < min(len(before), len(after)) and before[common] == after[common]:
                common += 1
            yield from (f"- [{i}] {m}" for i, m in enumerate(before) if i >= common)
            yield from (f"+ [{i}] {m}" for i, m in enumerate(after) if i >= common)


def _enums(old: Api, new: Api) -> Iterator[str]:
    def text(e: Enum | None) -> dict[str, int]:
        return e.values if e else {}

    for name in [*old.enums, *(n for n in new.enums if n not in old.enums)]:
        before, after = text(old.enums.get(name)), text(new.enums.get(name))
        for value in [*before, *(v for v in after if v not in before)]:
            if before.get(value) != after.get(value):
                yield f"enum {name}: {value} {before.get(value, 'absent')} -> {after.get(value, 'absent')}"


def _names(old: Api, new: Api) -> Iterator[str]:
    for kind in ("typedefs", "opaque", "constants"):
        before, after = getattr(old, kind), getattr(new, kind)
        yield from (f"- {kind} {n}" for n in before if n not in after)
        yield from (f"+ {kind} {n}" for n in after if n not in before)
        if isinstance(before, dict):
            for n in before:
                if n in after and before[n] != after[n]:
                    yield f"{kind} {n}: {_value(before[n])} -> {_value(after[n])}"


def _value(item: object) -> str:
    return str(getattr(item, "type", item))
