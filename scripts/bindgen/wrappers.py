"""libmlxc's generated half: the C header, and wrappers for every function that maps onto one C++ function of MLX.

The types decide: a C function is matched against the C++ overloads of its name (with words cut from the right until
one fits). The wrapper casts the overload to its exact type, so a header that changed is a compile error.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bindgen import mlx_cpp
from bindgen.mlx_cpp import CppApi, CppFunction, CppParam
from bindgen.model import Api, BindgenError, Function, Models, Param, declare, renders

NAMESPACES = {
    "fast": "fast",
    "fft": "fft",
    "linalg": "linalg",
    "random": "random",
    "metal": "metal",
    "cuda": "cu",
    "distributed": "distributed",
    "detail": "detail",
}
# C name -> C++ name, where neither it nor a shortened form of it is the C++ name
IRREGULAR = {
    "mlx_get_default_device": "default_device",
    "mlx_get_default_stream": "default_stream",
    "mlx_device_is_available": "is_available",
    "mlx_stream_from_thread_local": "stream_from_thread_local_stream",
}
# C++ parameters that the C API lacks, so that MLX's default is passed. A new one must be looked at by a person.
DEFAULTED = {
    "mlx_gather_qmm": ("global_scale",),
    "mlx_export_function": ("metadata",),
    "mlx_export_function_kwargs": ("metadata",),
}
# Statements before the call, for arguments that MLX itself does not check (native/mlxc/checks.hpp).
CHECKED = {
    "mlx_as_strided": "check_as_strided(c_ref(a), shape, shape_num, strides, strides_num, offset);",
    "mlx_reshape": "check_new_shape(shape, shape_num);",
    "mlx_unflatten": "check_new_shape(shape, shape_num);",
    "mlx_number_of_elements": "check_axes(c_ref(a), axes, axes_num);",
    "mlx_slice_dynamic": "check_start(c_ref(a), c_ref(start), axes_num);",
    "mlx_slice_update_dynamic": "check_start(c_ref(src), c_ref(start), axes_num, &c_ref(update));",
    "mlx_diagonal": "check_offset(offset);",
    "mlx_trace_axes": "check_offset(offset);",
    **dict.fromkeys(
        ("mlx_quantized_matmul", "mlx_qqmm", "mlx_gather_qmm", "mlx_gather_qqmm"),
        "check_has_rows(c_ref(x));",
    ),
    **dict.fromkeys(
        (
            "mlx_linalg_cholesky_inv",
            "mlx_linalg_inv",
            "mlx_linalg_lu",
            "mlx_linalg_lu_factor",
            "mlx_linalg_solve",
            "mlx_linalg_solve_triangular",
            "mlx_linalg_tri_inv",
        ),
        "check_not_empty(c_ref(a));",
    ),
}
# Mapped by type, but written by hand all the same: evaluation looks after arrays that fail, divmod after zeros.
BY_HAND = {
    "mlx_divmod",
    "mlx_eval",
    "mlx_async_eval",
    "mlx_synchronize",
    "mlx_synchronize_default",
    "mlx_synchronize_thread_local",
}

_CLOSURE = "function<vector<array>(vector<array>)>"
_KWARGS = "function<vector<array>(vector<array>,unordered_map<string,array>)>"
_CUSTOM = "function<vector<array>(vector<array>,vector<array>,vector<array>)>"
_JVP = "function<vector<array>(vector<array>,vector<array>,vector<int>)>"
_VMAP = "function<pair<vector<array>,vector<int>>(vector<array>,vector<int>)>"
_ALIASES = {"Args": "vector<array>", "Kwargs": "unordered_map<string,array>"}

# normalised C++ type -> (C types it takes, C++ expression over $0, $1, ...)
PARAMS: dict[str, tuple[tuple[str, ...], str]] = {
    "array": (("mlx_array",), "c_ref($0)"),
    "optional<array>": (("mlx_array",), "c_opt($0)"),
    "vector<array>": (("mlx_vector_array",), "c_ref($0)"),
    "Shape": (("const int*", "size_t"), "c_span<Shape>($0, $1)"),
    "vector<int>": (("const int*", "size_t"), "c_span<std::vector<int>>($0, $1)"),
    "optional<vector<int>>": (("const int*", "size_t"), "c_opt_ints($0, $1)"),
    "Strides": (("const int64_t*", "size_t"), "c_span<Strides>($0, $1)"),
    "vector<uint64_t>": (("const uint64_t*", "size_t"), "c_span<std::vector<uint64_t>>($0, $1)"),
    "Dtype": (("mlx_dtype",), "c_dtype($0)"),
    "string": (("const char*",), "c_str($0)"),
    "optional<int>": (("mlx_optional_int",), "c_opt($0)"),
    "optional<float>": (("mlx_optional_float",), "c_opt($0)"),
    "optional<Dtype>": (("mlx_optional_dtype",), "c_opt($0)"),
    "StreamOrDevice": (("mlx_stream",), "c_ref($0)"),
    "Stream": (("mlx_stream",), "c_ref($0)"),
    "ThreadLocalStream": (("mlx_stream_thread_local",), "c_ref($0)"),
    "Device": (("mlx_device",), "c_ref($0)"),
    "Device::DeviceType": (("mlx_device_type",), "c_device_type($0)"),
    "pair<int,int>": (("int",) * 2, "std::pair<int, int>($0, $1)"),
    "tuple<int,int,int>": (("int",) * 3, "std::tuple<int, int, int>($0, $1, $2)"),
    "FFTNorm": (("mlx_fft_norm",), "c_fft_norm($0)"),
    "CompileMode": (("mlx_compile_mode",), "c_compile_mode($0)"),
    "optional<Group>": (("mlx_distributed_group",), "c_opt($0)"),
    "shared_ptr<io::Reader>": (("mlx_io_reader",), "c_ref($0)"),
    "shared_ptr<io::Writer>": (("mlx_io_writer",), "c_ref($0)"),
    "unordered_map<string,array>": (("mlx_map_string_to_array",), "c_ref($0)"),
    "unordered_map<string,string>": (("mlx_map_string_to_string",), "c_ref_or_empty($0)"),
    _CLOSURE: (("mlx_closure",), "c_ref($0)"),
    _KWARGS: (("mlx_closure_kwargs",), "c_ref($0)"),
    _CUSTOM: (("mlx_closure_custom",), "c_ref($0)"),
    f"optional<{_CUSTOM}>": (("mlx_closure_custom",), "c_opt($0)"),
    f"optional<{_JVP}>": (("mlx_closure_custom_jvp",), "c_opt($0)"),
    f"optional<{_VMAP}>": (("mlx_closure_custom_vmap",), "c_opt($0)"),
    "CompileCacheWeakPtr": (("mlx_compile_cache",), "c_ref($0)"),
    **{t: ((t,), "$0") for t in ("int", "bool", "float", "double", "size_t", "uint64_t", "uintptr_t")},
}
RESULTS: dict[str, tuple[str, ...]] = {
    "void": (),
    "array": ("mlx_array*",),
    "vector<array>": ("mlx_vector_array*",),
    "pair<array,array>": ("mlx_array*",) * 2,
    "tuple<array,array>": ("mlx_array*",) * 2,
    "pair<vector<array>,vector<array>>": ("mlx_vector_array*",) * 2,
    "SafetensorsLoad": ("mlx_map_string_to_array*", "mlx_map_string_to_string*"),
    "GGUFLoad": ("mlx_io_gguf*",),
    _CLOSURE: ("mlx_closure*",),
    "ValueAndGradFn": ("mlx_closure_value_and_grad*",),
    "CompileCacheWeakPtr": ("mlx_compile_cache*",),
    "Group": ("mlx_distributed_group*",),
    "string": ("mlx_string*",),
    "char*": ("mlx_string*",),
    "size_t": ("size_t*",),
    "bool": ("bool*",),
    "int": ("int*",),
    "Stream": ("mlx_stream*",),
    "vector<Stream>": ("mlx_vector_stream*",),
    "Device": ("mlx_device*",),
}


@dataclass(frozen=True)
class Match:
    """A C++ overload that takes what a C function gives; `defaulted` names the parameters left to MLX's defaults."""

    cpp: CppFunction
    n_results: int
    arguments: tuple[str, ...]
    defaulted: tuple[str, ...] = ()
    renamed: int = 0


def resolve(function: Function, overloads: dict[tuple[str, str], list[CppFunction]]) -> Match | None:
    """The one C++ overload for a C function, None if it is irregular (then it is written by hand)."""
    if function.result != "int" or function.variadic:
        return None
    for key in _candidates(function.name):
        matches = [m for cpp in overloads.get(key, ()) if (m := _match(function, cpp))]
        matches.sort(key=lambda m: (len(m.defaulted), m.renamed))
        if not matches:
            continue
        best = matches[0]
        if len(matches) > 1 and (len(best.defaulted), best.renamed) == (len(matches[1].defaulted), matches[1].renamed):
            raise BindgenError(f"{function.name}: two overloads of {best.cpp.qualified} fit equally well")
        if best.defaulted != DEFAULTED.get(function.name, ()):
            raise BindgenError(
                f"{function.name}: {best.cpp.qualified} has parameters that the C function lacks: {best.defaulted}; "
                "if MLX's defaults are right for them, add them to DEFAULTED in scripts/bindgen/wrappers.py"
            )
        return best
    return None


def _candidates(c_name: str) -> Iterator[tuple[str, str]]:
    """(namespace, name), longest name first: mlx_scatter_add_single gives scatter_add_single, scatter_add, scatter."""
    if c_name in IRREGULAR:
        yield "", IRREGULAR[c_name]
        return
    words = c_name.removeprefix("mlx_").split("_")
    namespace = NAMESPACES.get(words[0], "") if len(words) > 1 else ""
    if namespace:
        words = words[1:]
    for n in range(len(words), 0, -1):
        yield namespace, "_".join(words[:n])


def _match(function: Function, cpp: CppFunction) -> Match | None:
    results = RESULTS.get(_normalised(cpp.result))
    if results is None or tuple(p.type for p in function.params[: len(results)]) != results:
        return None
    found = _match_params(function.params[len(results) :], cpp.params)
    if found is None:
        return None
    arguments, defaulted, renamed = found
    return Match(cpp, len(results), tuple(arguments), tuple(defaulted), renamed)


def _match_params(c: Sequence[Param], cpp: Sequence[CppParam]) -> tuple[list[str], list[str], int] | None:
    """(arguments, names left to the default, number of differing names), None if the types do not fit."""
    if not cpp:
        return None if c else ([], [], 0)
    first, rest = cpp[0], cpp[1:]
    types, expression = PARAMS.get(_normalised(first.type), ((), ""))
    if types and tuple(p.type for p in c[: len(types)]) == types:
        tail = _match_params(c[len(types) :], rest)
        if tail:
            for i in range(len(types)):
                expression = expression.replace(f"${i}", c[i].name)
            if c[0].type == "const char*" and c[0].nullable:
                expression = f"{c[0].name} ? {expression} : std::string({first.default})"
            same = re.sub(r"_(0|num)$", "", c[0].name) == first.name
            return [expression, *tail[0]], tail[1], tail[2] + (not same)
    if first.default is not None:
        tail = _match_params(c, rest)
        if tail:
            bare = re.sub(r"^const |&$", "", first.type).strip()
            default = first.default if first.default != "{}" else f"{bare}{{}}"
            return [default, *tail[0]], [first.name, *tail[1]], tail[2]
    return None


def _normalised(type_text: str) -> str:
    text = re.sub(r"\bconst\b|&|std::|\s", "", type_text)
    return re.sub(r"\b(Args|Kwargs)\b", lambda m: _ALIASES[m.group(1)], text)


def _overloads(cpp: CppApi) -> dict[tuple[str, str], list[CppFunction]]:
    table: dict[tuple[str, str], list[CppFunction]] = defaultdict(list)
    for f in cpp.functions:
        table[f.namespace, f.name].append(f)
    return table


def matches(api: Api, cpp: CppApi) -> dict[str, Match]:
    """C name -> overload, for all functions that are generated."""
    table = _overloads(cpp)
    found = {f.name: m for f in api.functions if f.name not in BY_HAND and (m := resolve(f, table))}
    unused = (DEFAULTED.keys() | CHECKED.keys() | IRREGULAR.keys()) - found.keys()
    if unused:
        raise BindgenError(f"tables of scripts/bindgen/wrappers.py name functions that are not generated: {unused}")
    return found


def _wrapper(f: Function, m: Match) -> str:
    call = f"static_cast<{m.cpp.pointer_type}>(\n        &{m.cpp.qualified})({', '.join(m.arguments)})"
    results = ", ".join(p.name for p in f.params[: m.n_results])
    check = f"    {CHECKED[f.name]}\n" if f.name in CHECKED else ""
    body = f"    put({results}, {call});" if results else f"    {call};"
    return f"{f.signature} MLXC_TRY(\n{check}{body}\n)\n"


@renders("native/mlxc/generated/wrappers.cpp")
def wrappers_source(models: Models) -> str:
    """C++ source of the generated wrappers."""
    found = matches(models.mlx_07, mlx_cpp.load())
    body = "\n".join(_wrapper(f, found[f.name]) for f in models.mlx_07.functions if f.name in found)
    return (
        '#include "checks.hpp"\n#include "io.hpp"\n\n'
        f'using namespace mlx::core;\nusing namespace mlxc;\n\nextern "C" {{\n\n{body}\n}}\n'
    )


_HEADER_TOP = """\
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define MLXC_API __attribute__((visibility("default")))
#ifdef __cplusplus
extern "C" {
#endif

typedef float _Complex mlx_complex64_t;
#ifdef __aarch64__
typedef __fp16 float16_t;
typedef __bf16 bfloat16_t;
#else /* only pointers to them cross the ABI */
typedef uint16_t float16_t;
typedef uint16_t bfloat16_t;
#endif
typedef void (*mlx_error_handler_func)(const char* msg, void* data);
"""


@renders("native/mlxc/generated/mlxc.h")
def header(models: Models) -> str:
    """C header of the mlx-c API, as libmlxc is built from it."""
    api = models.mlx_07
    lines = [_HEADER_TOP]
    for e in api.enums.values():
        values = "".join(f"  {name} = {value},\n" for name, value in e.values.items())
        lines.append(f"typedef enum {e.tag} {{\n{values}}} {e.name};")
    for s in api.structs.values():
        members = "".join(
            f"  {declare(m.type, m.name)};\n" if isinstance(m, Param) else f"  {_function_pointer(m)};\n"
            for m in s.members
        )
        lines.append(f"typedef struct {s.tag} {{\n{members}}} {s.name};")
    lines.append("")
    lines += [f"MLXC_API {f.signature};" for f in api.functions]
    return "\n".join(lines) + "\n\n#ifdef __cplusplus\n}\n#endif\n"


def _function_pointer(f: Function) -> str:
    return f"{f.result} (*{f.name})({', '.join(declare(p.type, p.name) for p in f.params) or 'void'})"
