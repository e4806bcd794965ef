"""Renders mlxc_py/{ops,fast,fft,linalg,random}.py from `functional_table.py`, checked against the API model."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bindgen import functional_table as table
from bindgen.model import Api, BindgenError, Function, Models, renders

# Kind of a parameter in the table -> its Python type, and the statement that prepares it ("" where none is needed).
KINDS: dict[str, tuple[str, str]] = {
    "array": ("ArrayLike", "{0} = as_array({0})"),
    "operand": ("ArrayLike", ""),  # a pair of them is prepared together
    "weak": ("ArrayLike | None", "{0} = None if {0} is None else optional(weak({0}, a))"),
    "value": ("ArrayLike", "{0} = weak({0}, a)"),
    "optional_array": ("ArrayLike | None", "{0} = optional({0})"),
    "arrays": ("Sequence[ArrayLike]", "{0} = [as_array(x) for x in {0}]"),
    "indices": ("ArrayLike", ""),
    "positions": ("Sequence[ArrayLike]", ""),
    "axis": ("int | None", ""),
    "axes": ("Ints | None", ""),
    "int": ("int", ""),
    "ints": ("Ints", ""),
    "optional_ints": ("Ints | None", ""),
    "shape": ("Ints", "{0} = shape_of({0})"),
    "bool": ("bool", ""),
    "float": ("float", ""),
    "str": ("str", ""),
    "dtype": ("Dtype", ""),
    "optional_int": ("int | None", ""),
    "optional_float": ("float | None", ""),
    "optional_dtype": ("Dtype | None", ""),
    "padding": ("Ints | tuple[Ints, Ints]", ""),
    "contraction": ("int | Sequence[Ints]", ""),
    "offset": ("int | ArrayLike", ""),
    "mask": ("str | ArrayLike | None", ""),
    "norm": ("str", ""),
    "order": ("float | str | None", ""),
    "location": ("float | ArrayLike | None", ""),
    "permuted": ("int | ArrayLike", ""),
}
_CONDITION = re.compile(r"(.+?): (mlx_\w+\(.*\))$")


@dataclass(frozen=True)
class Row:
    """One function of the functional API."""

    name: str
    arguments: ast.arguments
    result: str
    doc: str
    body: tuple[str, ...]

    @property
    def kinds(self) -> dict[str, str]:
        """Parameter name -> kind."""
        every = [*self.arguments.args, *self.arguments.kwonlyargs]
        if self.arguments.vararg:
            every.append(self.arguments.vararg)
        return {a.arg: ast.unparse(a.annotation) for a in every if a.annotation}


def parse(text: str) -> Iterator[Row]:
    """The rows of a table."""
    for block in re.split(r"\n(?=\w)", text.strip()):
        head, *body = block.splitlines()
        signature, _, doc = head.partition("  # ")
        match = re.fullmatch(r"(\w+)(\(.*?\))(?: -> (\w+))?(?: = (mlx_\w+\(.*\)))?", signature)
        if match is None or not doc or bool(match[4]) == bool(body):
            raise BindgenError(f"functional_table.py: cannot read {head!r}")
        stub = ast.parse(f"def f{match[2]}: ...").body[0]
        assert isinstance(stub, ast.FunctionDef)
        yield Row(match[1], stub.args, match[3] or "", doc, tuple(line.strip() for line in body) or (match[4],))


class Renderer:
    """Renders rows against a model, and remembers which C functions were used."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.used: set[str] = set()

    def function(self, row: Row) -> str:
        """The Python source of one function."""
        lines = [f"def {row.name}({self._parameters(row)}) -> {self._result_type(row)}:", f'    """{row.doc}"""']
        lines += [f"    {line}" for line in self._prepare(row)]
        if self._results(self._function(_called(row.body[-1]))) != "array":
            lines.append("    here = local.here")
        for line in row.body:
            match = _CONDITION.match(line)
            if line.startswith("! "):
                lines.append(f"    {line[2:]}")
            elif match:
                lines += [f"    if {match[1]}:", *(f"        {part}" for part in self._returned(row, match[2]))]
            else:
                lines += [f"    {part}" for part in self._returned(row, line)]
        return "\n".join(lines)

    def _returned(self, row: Row, text: str) -> Iterator[str]:
        call = self._call(row, text)
        # A vector must outlive the call, so it gets a name: a temporary would be freed before it.
        if made := re.search(r"VectorArray\(\w+\)", call):
            yield f"vector = {made[0]}"
            call = call.replace(made[0], "vector")
        yield f"return {call}"

    def _parameters(self, row: Row) -> str:
        a = row.arguments
        parts = []
        without = len(a.args) - len(a.defaults)
        for i, arg in enumerate(a.args):
            parts.append(self._parameter(row, arg.arg, a.defaults[i - without] if i >= without else None))
        parts.append(self._parameter(row, a.vararg.arg, None, "*") if a.vararg else "*")
        for arg, default in zip(a.kwonlyargs, a.kw_defaults, strict=True):
            parts.append(self._parameter(row, arg.arg, default))
        return ", ".join([*parts, "stream: StreamLike = None"])

    def _parameter(self, row: Row, name: str, default: ast.expr | None, prefix: str = "") -> str:
        kind = row.kinds[name]
        if kind not in KINDS:
            raise BindgenError(f"functional_table.py: {row.name}: unknown kind {kind!r} of {name}")
        text = f"{prefix}{name}: {KINDS[kind][0]}"
        if default is None:
            return text
        return f"{text} = {ast.unparse(default)}".replace("'", '"')

    def _prepare(self, row: Row) -> Iterator[str]:
        operands = [name for name, kind in row.kinds.items() if kind == "operand"]
        if operands:
            x, y = operands
            yield f"if {x}.__class__ is not Array or {y}.__class__ is not Array:"
            yield f"    {x}, {y} = pair({x}, {y})"
        for name, kind in row.kinds.items():
            if row.arguments.vararg and name == row.arguments.vararg.arg:
                yield f"{name} = tuple(as_array(x) for x in {name})"
            elif kind == "array":
                yield f"if {name}.__class__ is not Array:"
                yield f"    {name} = as_array({name})"
            elif KINDS[kind][1]:
                yield KINDS[kind][1].format(name)

    def _result_type(self, row: Row) -> str:
        if row.result == "svd":
            return "Array | tuple[Array, ...]"
        if row.result == "tuple":
            return "tuple[Array, ...]"
        results = self._results(self._function(_called(row.body[-1])))
        return {"array": "Array", "pair": "tuple[Array, Array]", "list": "list[Array]"}[results]

    def _function(self, name: str) -> Function:
        function = self.api.by_name.get(name)
        if function is None:
            raise BindgenError(f"functional_table.py calls {name}, which the API model does not have")
        return function

    @staticmethod
    def _results(function: Function) -> str:
        types = tuple(p.type for p in function.params[:2])
        if function.result != "int":
            raise BindgenError(f"{function.name} returns {function.result}, not a status")
        if types == ("mlx_array*", "mlx_array*"):
            return "pair"
        return {"mlx_array*": "array", "mlx_vector_array*": "list"}[types[0]]

    def _call(self, row: Row, text: str) -> str:
        node = ast.parse(text, mode="eval").body
        assert isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        function = self._function(node.func.id)
        self.used.add(function.name)
        results = self._results(function)
        skipped = 2 if results == "pair" else 1
        groups = _groups(function, skipped)
        if len(groups) != len(node.args):
            raise BindgenError(f"functional_table.py: {row.name}: {text} for {function.signature}")
        fast = results == "array"
        pairs = zip(groups, node.args, strict=True)
        arguments = [self._argument(row, function, group, argument, fast) for group, argument in pairs]
        owner = "adapted" if function.name.removeprefix("mlx_") in table.ADAPTED else "call" if fast else "c"
        if fast:
            return f"{owner}.{function.name}({', '.join([*arguments, 'on(stream)'])})"
        outs = ["here.out", "here.out2"][:skipped]
        inner = f"{owner}.{function.name}({', '.join([*outs, *arguments, 'here.on(stream)'])})"
        taken = f"take_{results}(here, {inner})"
        if row.result == "tuple":
            return f"tuple({taken})"
        return f"tuple({taken}) if compute_uv else {taken}[0]" if row.result == "svd" else taken

    def _argument(self, row: Row, function: Function, ctype: str, node: ast.expr, fast: bool) -> str:
        source = ast.unparse(node).replace("'", '"')
        kind = row.kinds.get(source, "")
        where = f"{row.name}: {source!r} ({kind or 'expression'}) for a {ctype} of {function.name}"
        convert = CONVERSIONS.get((ctype, kind)) or CONVERSIONS.get((ctype, ""))
        if convert is None:
            raise BindgenError(f"functional_table.py: {where}: no conversion")
        return convert(source, fast)


def _called(line: str) -> str:
    match = re.search(r"mlx_\w+", line)
    if match is None:
        raise BindgenError(f"functional_table.py: no call in {line!r}")
    return match[0]


def _groups(function: Function, skipped: int) -> list[str]:
    """C types of the arguments after the results and before the stream; an (int*, size_t) pair is one."""
    types = [p.type for p in function.params[skipped:]]
    if not types or types.pop() != "mlx_stream":
        raise BindgenError(f"{function.name} does not end in a stream")
    groups: list[str] = []
    for text in types:
        if text == "size_t" and groups and groups[-1] in ("const int*", "const int64_t*"):
            groups[-1] += ", size_t"
        else:
            groups.append(text)
    return groups


def _plain(source: str, fast: bool) -> str:
    return source


def _int(source: str, fast: bool) -> str:
    return source if fast or source.isdigit() else f"checked_int({source})"


def _word(source: str, fast: bool) -> str:
    return source if fast or source.isdigit() else f"index({source})"


def _array(source: str, fast: bool) -> str:
    if fast:
        return "None" if source == "0" else source
    return f"{source}.live"


def _sequence(source: str, fast: bool) -> str:
    if "several_ints(" in source:
        return source
    return source if fast else f"ints({source}), len(several_ints({source}))"


def _vector(source: str, fast: bool) -> str:
    return source if fast else f"VectorArray({source}).handle"


# (C type, kind in the table; "" any) -> how the argument is written, for a fast call or one through ctypes.
CONVERSIONS: dict[tuple[str, str], Callable[[str, bool], str]] = {
    ("mlx_array", ""): _array,
    ("mlx_array", "optional_array"): lambda source, fast: source if fast else f"handle_or_none({source})",
    ("mlx_vector_array", ""): _vector,
    ("int", ""): _int,
    ("size_t", ""): _word,
    ("uint64_t", ""): _word,
    ("bool", ""): _plain,
    ("float", ""): _plain,
    ("double", ""): _plain,
    ("mlx_optional_int", ""): lambda source, fast: source if fast else f"optional_int({source})",
    ("mlx_optional_float", ""): lambda source, fast: source if fast else f"optional_float({source})",
    ("mlx_optional_dtype", ""): lambda source, fast: f"code({source})",
    ("mlx_dtype", ""): lambda source, fast: f"dtype_code({source})",
    ("mlx_fft_norm", ""): lambda source, fast: f"norm_of({source})",
    ("const char*", "str"): lambda source, fast: f"text({source})" if fast else f"text({source}).encode()",
    ("const char*", ""): _plain,
    ("const int*, size_t", ""): _sequence,
    ("const int64_t*, size_t", ""): lambda source, fast: f"int64s({source}), len({source})",
}


# Where the names that generated bodies may use come from.
SOURCES = {
    "collections.abc": ("Sequence",),
    "operator": ("index",),
    "mlxc_py": ("fft_sizes",),
    "mlxc_py._sys": ("mlx as c",),
    "mlxc_py._sys.abi": ("checked_int", "optional_float", "optional_int"),
    "mlxc_py.adapted": ("adapted",),
    "mlxc_py.arguments": (
        "Ints",
        "code",
        "dtype_code",
        "int64s",
        "ints",
        "is_int",
        "is_number",
        "norm_of",
        "one_of",
        "padding_pair",
        "row_strides",
        "several",
        "several_ints",
        "shape_of",
        "text",
    ),
    "mlxc_py.arrays": (
        "Array",
        "ArrayLike",
        "as_array",
        "call",
        "handle_or_none",
        "optional",
        "take_list",
        "take_pair",
    ),
    "mlxc_py.convert": ("checked_indices", "checked_positions", "checked_start", "pair", "weak"),
    "mlxc_py.dtype": ("Dtype", "bfloat16", "float32", "int32"),
    "mlxc_py.guards": ("check_axis", "check_integers", "check_rows", "check_sortable", "check_strided"),
    "mlxc_py.ops": ("reshape",),
    "mlxc_py.shapes": ("broadcast_shapes",),
    "mlxc_py.state": ("StreamLike", "local", "on"),
    "mlxc_py.vector": ("VectorArray",),
}


def _imports(body: str, module: str) -> str:
    """The import lines of the names that a body uses but does not define, and of those that it offers as its own."""
    tree = ast.parse(body)
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names -= {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    lines = []
    for source, offered in SOURCES.items():
        used = [n for n in offered if n.split(" as ")[-1] in names]
        if used:
            lines.append(_fit(f"from {source} import {', '.join(used)}"))
    source, *own = BY_HAND.get(module, ("",))
    lines += [f"from {source} import {name} as {name}" for name in own]
    lines.sort(key=lambda line: line.split()[1])
    standard = [line for line in lines if not line.startswith("from mlxc_py")]
    return "\n".join([*standard, *([""] if standard else []), *(line for line in lines if line not in standard)])


def _fit(line: str) -> str:
    """A line, with what stands in its longest parentheses on lines of their own where it is too long."""
    if len(line) <= 120:
        return line
    if line.startswith("from "):
        head, _, names = line.partition("import ")
        return f"{head}import (\n" + "".join(f"    {n},\n" for n in names.split(", ")) + ")"
    start, end = _longest_parentheses(line)
    indent = " " * (len(line) - len(line.lstrip()))
    inner = f"{indent}    {line[start:end]}"
    if len(inner) > 120:
        inner = ",\n".join(f"{indent}    {part}" for part in _split(line[start:end])) + ","
    return f"{line[:start]}\n{inner}\n{indent}{line[end:]}"


def _longest_parentheses(line: str) -> tuple[int, int]:
    best, stack = (0, 0), []
    for i, character in enumerate(line):
        if character == "(":
            stack.append(i + 1)
        elif character == ")":
            start = stack.pop()
            if i - start > best[1] - best[0]:
                best = (start, i)
    return best


def _split(text: str) -> list[str]:
    """The parts between commas that stand in no brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(character, 0)
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def render(models: Models, module: str) -> str:
    """The source of mlxc_py/<module>.py below its header line."""
    text, doc = MODULES[module]
    renderer = Renderer(models.mlx_07)
    bodies = ["\n".join(map(_fit, renderer.function(row).splitlines())) for row in parse(text)]
    body = "\n\n\n".join(bodies)
    return f'"""{doc}"""\n\nfrom __future__ import annotations\n\n{_imports(body, module)}\n\n\n{body}\n'


def check_coverage(api: Api) -> None:
    """Every function of the covered headers must be called by a row or be accounted for."""
    renderer = Renderer(api)
    for text, _ in MODULES.values():
        for row in parse(text):
            renderer.function(row)
    declared = {f.name for f in api.functions if f.header in table.HEADERS}
    if missing := sorted(declared - renderer.used - set(table.ELSEWHERE)):
        raise BindgenError(f"functional_table.py: nothing covers {', '.join(missing)}: add rows, or say why not")
    if stale := sorted(set(table.ELSEWHERE) & renderer.used | set(table.ELSEWHERE) - set(api.by_name)):
        raise BindgenError(f"functional_table.py: ELSEWHERE lists {', '.join(stale)}, called by rows or gone")


MODULES = {
    "ops": (table.OPS, "Array functions with mlx.core's names and order of arguments."),
    "fast": (table.FAST, "Fused operations with mlx.core.fast's names and order of arguments."),
    "fft": (table.FFT, "Fourier transforms with mlx.core.fft's names and order of arguments."),
    "linalg": (table.LINALG, "Linear algebra with mlx.core.linalg's names and order of arguments; on the CPU only."),
    "random": (
        table.RANDOM,
        "Random numbers with mlx.core.random's names and order of arguments; key=None: shared state.",
    ),
}

BY_HAND = {
    "fast": ("mlxc_py.kernels", "cuda_kernel", "metal_kernel"),
    "random": ("mlxc_py.composed", "key", "seed"),
}
"""Functions that a module offers beside its generated ones: (where they are, names)."""


@renders("mlxc_py/ops.py")
def render_ops(models: Models) -> str:
    check_coverage(models.mlx_07)
    return render(models, "ops")


@renders("mlxc_py/fast.py")
def render_fast(models: Models) -> str:
    return render(models, "fast")


@renders("mlxc_py/fft.py")
def render_fft(models: Models) -> str:
    return render(models, "fft")


@renders("mlxc_py/linalg.py")
def render_linalg(models: Models) -> str:
    return render(models, "linalg")


@renders("mlxc_py/random.py")
def render_random(models: Models) -> str:
    return render(models, "random")
