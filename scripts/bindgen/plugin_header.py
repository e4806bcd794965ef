"""native/plugin/ort_abi.h: the part of ONNX Runtime's C API that the plugin library is compiled against."""

from __future__ import annotations

import re
from collections.abc import Iterator

from bindgen.model import Api, BindgenError, Enum, Function, Models, Param, Struct, declare, renders

# The tables that the plugin fills or calls through; what they hold by value or name as callback follows from them.
ROOTS = (
    "OrtApiBase",
    "OrtApi",
    "OrtEpApi",
    "OrtEp",
    "OrtEpFactory",
    "OrtNodeComputeInfo",
    "OrtNodeFusionOptions",
    "OrtAllocator",
    "OrtDataTransferImpl",
    "OrtSyncStreamImpl",
    "OrtSyncNotificationImpl",
)
_WORD = re.compile(r"[A-Za-z_]\w*")


def types_of(member: Param | Function) -> list[str]:
    """C type texts that a struct member mentions."""
    if isinstance(member, Function):
        return [member.result, *(p.type for p in member.params)]
    return [member.type]


def closure(api: Api) -> tuple[list[Struct], list[str], list[str], list[Enum]]:
    """Structs to define, names only pointed at, callback typedefs and enums, each in the headers' order."""
    missing = [r for r in ROOTS if r not in api.structs]
    if missing:
        raise BindgenError(f"the headers no longer define {', '.join(missing)}: adapt ROOTS in plugin_header.py")
    defined, mentioned, callbacks, enums = set(ROOTS), set[str](), set[str](), set[str]()
    pending = [t for r in ROOTS for m in api.structs[r].members for t in types_of(m)]
    while pending:
        text = pending.pop()
        for word in _WORD.findall(text):
            if word in api.enums:
                enums.add(word)
            elif word in api.typedefs and word not in callbacks:
                callbacks.add(word)
                pending.append(api.typedefs[word].type)
            elif word in api.structs and "*" not in text and word not in defined:
                defined.add(word)
                pending += [t for m in api.structs[word].members for t in types_of(m)]
            elif word in api.structs or word in api.opaque:
                mentioned.add(word)
    return (
        [s for s in api.structs.values() if s.name in defined],
        [n for n in (*api.opaque, *api.structs) if n in mentioned and n not in defined],
        [t for t in api.typedefs if t in callbacks],
        [e for e in api.enums.values() if e.name in enums],
    )


def member_lines(struct: Struct) -> Iterator[str]:
    """Member declarations of a struct, with the release that added each function pointer."""
    for m in struct.members:
        if isinstance(m, Function):
            args = ", ".join(declare(p.type, p.name) for p in m.params) or "void"
            note = f" /* {m.since} */" if m.since else ""
            yield f"    {m.result} (*{m.name})({args});{note}"
        else:
            yield f"    {declare(m.type, m.name)};"


@renders("native/plugin/ort_abi.h")
def render(models: Models) -> str:
    api = models.ort
    structs, opaque, callbacks, enums = closure(api)
    out = [
        f"/* ONNX Runtime's C API {api.constants['ORT_API_VERSION']} and plugin EP API, the part the plugin uses. */",
        "#ifndef MLXC_ORT_ABI_H",
        "#define MLXC_ORT_ABI_H",
        "",
        "#include <stdbool.h>",
        "#include <stddef.h>",
        "#include <stdint.h>",
        "",
        f"#define ORT_API_VERSION {api.constants['ORT_API_VERSION']}",
        "",
    ]
    for e in enums:
        values = ",\n".join(f"    {n} = {v}" for n, v in e.values.items())
        out += [f"typedef enum {e.tag} {{", values, f"}} {e.name};", ""]
    out += [f"typedef struct {n} {n};" for n in opaque]
    out += [f"typedef {'union' if s.union else 'struct'} {s.name} {s.name};" for s in structs]
    out.append("")
    out += [f"typedef {declare(api.typedefs[n].type, n)};" for n in callbacks]
    for s in structs:
        out += ["", f"{'union' if s.union else 'struct'} {s.name} {{", *member_lines(s), "};"]
    return "\n".join([*out, "", "#endif", ""])
