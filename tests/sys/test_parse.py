"""Reading headers: what the model keeps of each kind of declaration."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("clang") is None, reason="reading headers needs the gen extra")

ORT_HEADER = """
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#define ORT_API_VERSION 31
#define ORT_SOME_TEXT "not a number"
#define ORT_API2_STATUS(NAME, ...) OrtStatusPtr (*NAME)(__VA_ARGS__) __attribute__((warn_unused_result))
typedef struct OrtStatus OrtStatus;
typedef OrtStatus* OrtStatusPtr;
struct OrtOther; typedef struct OrtOther OrtOther;
typedef enum OrtColour { ORT_RED = -1, ORT_GREEN } OrtColour;
typedef OrtStatus* (*OrtVisit)(void* state, const char* name);
typedef struct OrtBox {
  uint32_t kind;
  union { uint64_t bytes; uint64_t words[6]; } value;
} OrtBox;
struct OrtTable;
typedef struct OrtTable OrtTable;
struct OrtTable {
  uint32_t version;
  void(*Release)(OrtTable* self);
  /** \\since Version 1.27. */
  ORT_API2_STATUS(Visit, const OrtTable* self, const char* const* names, size_t n, OrtVisit visit, OrtColour* out);
};
"""


@pytest.fixture
def read(bindgen: SimpleNamespace, tmp_path: Path) -> Any:
    """Parse a text as ONNX Runtime's header."""

    def parse(text: str) -> Any:
        (tmp_path / "onnxruntime_c_api.h").write_text(text)
        return bindgen.parse.parse_ort(tmp_path)

    return parse


def test_an_ort_header(read: Any) -> None:
    api = read(ORT_HEADER)
    assert api.api == "onnxruntime C API 31"
    assert api.constants == {"ORT_API_VERSION": 31}
    assert api.opaque == ("OrtStatus", "OrtOther")
    assert api.enums["OrtColour"].values == {"ORT_RED": -1, "ORT_GREEN": 0}
    assert api.enums["OrtColour"].underlying == "int"
    assert api.typedefs["OrtVisit"].type == "OrtStatus *(*)(void *, const char *)"
    assert api.typedefs["OrtStatusPtr"].type == "OrtStatus*"


def test_a_table_keeps_signatures_and_versions(read: Any) -> None:
    version, release, visit = read(ORT_HEADER).structs["OrtTable"].members
    assert (version.name, version.type) == ("version", "uint32_t")
    assert release.signature == "void Release(OrtTable* self)" and release.since == ""
    assert visit.since == "1.27"
    assert visit.signature == (
        "OrtStatusPtr Visit(const OrtTable* self, const char* const* names, size_t n, OrtVisit visit, OrtColour* out)"
    )


def test_an_anonymous_union_gets_a_name(read: Any) -> None:
    api = read(ORT_HEADER)
    union = api.structs["OrtBox_value"]
    assert union.union and [(m.name, m.type) for m in union.members] == [
        ("bytes", "uint64_t"),
        ("words", "uint64_t[6]"),
    ]
    assert api.structs["OrtBox"].members[1].type == "OrtBox_value"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("typedef struct OrtBits { int a : 3; } OrtBits;", "bit fields"),
        ("typedef struct OrtIn { struct { int x; } inner; } OrtIn;", "a struct inside a struct"),
        ("union OrtTop { int a; float b; };", "unions"),
        ("typedef unknown_t OrtBad;", "headers do not parse"),
    ],
)
def test_what_no_rule_covers_raises(bindgen: SimpleNamespace, read: Any, text: str, message: str) -> None:
    with pytest.raises(bindgen.model.BindgenError, match=message):
        read("#define ORT_API_VERSION 1\n" + text)


def test_types_are_written_one_way(bindgen: SimpleNamespace, tmp_path: Path) -> None:
    folder = tmp_path / "mlx" / "c"
    folder.mkdir(parents=True)
    (folder / "mlx.h").write_text(
        "#include <stdbool.h>\n#include <stddef.h>\n"
        "typedef struct mlx_array_ { void* ctx; } mlx_array;\n"
        "int mlx_f(mlx_array *res, const mlx_array a /* may be null */, const bool flag,\n"
        "  const char * const * names, int (*fun)(mlx_array*, const mlx_array, void*), const int shape[]);\n"
        "void _mlx_error(const char* fmt, ...);\n"
    )
    api = bindgen.parse.parse_mlx_c(tmp_path, "x")
    f = api.by_name["mlx_f"]
    assert [p.type for p in f.params] == [
        "mlx_array*",
        "mlx_array",
        "bool",
        "const char* const*",
        "int (*)(mlx_array *, const mlx_array, void *)",
        "const int*",
    ]
    assert [p.name for p in f.params if p.nullable] == ["a"]
    assert api.by_name["_mlx_error"].variadic
    assert api.handles == {"mlx_array"}


def test_accepted_headers_replace_the_model(
    bindgen: SimpleNamespace, models: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only functions that were known keep what headers cannot say: since when they exist."""
    added = bindgen.model.Function("mlx_unique", "int", (bindgen.model.Param("res", "mlx_array*"),), "ops.h")
    bare = [replace(f, since="", changed_in=()) for f in models.mlx_07.functions]
    found = replace(models.mlx_07, functions=(*bare, added))
    monkeypatch.setattr(bindgen.headers, "parse_mlx_c", lambda directory, api: found)
    bindgen.model.save(models.mlx_07, tmp_path / "mlx_c-0.7.json")
    with pytest.raises(bindgen.model.BindgenError, match=r"\+ int mlx_unique\(mlx_array\* res\)"):
        bindgen.headers.update_mlx_c(tmp_path, tmp_path, accept=False)
    said = bindgen.headers.update_mlx_c(tmp_path, tmp_path, accept=True)
    assert said.startswith("mlx_c-0.7.json: updated")
    stored = bindgen.model.load(tmp_path / "mlx_c-0.7.json")
    assert stored.functions[:-1] == models.mlx_07.functions
    assert stored.by_name["mlx_unique"].since == "0.7.0"
    assert len(json.loads((tmp_path / "mlx_c-0.7.json").read_text())["functions"]) == 675
