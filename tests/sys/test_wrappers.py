"""The generated half of libmlxc: how C functions find their C++ overload, and what makes the generator stop."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


@pytest.fixture(scope="module")
def mlx_cpp(bindgen: SimpleNamespace) -> ModuleType:
    return importlib.import_module("bindgen.mlx_cpp")


@pytest.fixture(scope="module")
def wrappers(bindgen: SimpleNamespace) -> ModuleType:
    return importlib.import_module("bindgen.wrappers")


@pytest.fixture(scope="module")
def matches(wrappers: ModuleType, mlx_cpp: ModuleType, models: Any) -> dict[str, Any]:
    return wrappers.matches(models.mlx_07, mlx_cpp.load())


def declared(mlx_cpp: ModuleType, source: str) -> list[Any]:
    return list(mlx_cpp._functions(source, ""))


def test_the_committed_model_is_what_the_installed_headers_say(mlx_cpp: ModuleType) -> None:
    spec = importlib.util.find_spec("mlx")
    include = Path(((spec and spec.submodule_search_locations) or [""])[0], "include")
    model = mlx_cpp.load()
    if not include.is_dir() or mlx_cpp.parse(include).mlx != model.mlx:
        pytest.skip("the headers of the model's MLX are not installed")
    assert mlx_cpp.parse(include) == model
    assert mlx_cpp.dumps(model) == mlx_cpp.MODEL.read_text()


def test_header_parsing(mlx_cpp: ModuleType) -> None:
    source = """
    #define NOISE(x) \\
      array noise(x);
    namespace mlx::core {
    /* array hidden(); */ // array hidden_too();
    struct Thing { int member(); };
    template <typename T> array generic(T t);
    MLX_API array sum(
        const array& a, const std::vector<int>& axes, bool keepdims = false, StreamOrDevice s = {});
    inline std::pair<array, array> both(std::function<array(const array&)> f, std::string = "a,b") { return {}; }
    array operator+(const array& a, const array& b);
    }
    """
    total, both = declared(mlx_cpp, source)
    assert total.pointer_type == "array (*)(const array&, const std::vector<int>&, bool, StreamOrDevice)"
    assert [(p.name, p.default) for p in total.params] == [
        ("a", None),
        ("axes", None),
        ("keepdims", "false"),
        ("s", "{}"),
    ]
    assert both.result == "std::pair<array, array>"
    assert [(p.type, p.name, p.default) for p in both.params] == [
        ("std::function<array(const array&)>", "f", None),
        ("std::string", "", '"a,b"'),
    ]


@pytest.mark.parametrize(
    ("name", "cpp", "arguments"),
    [
        ("mlx_add", "mlx::core::add", ("c_ref(a)", "c_ref(b)", "c_ref(s)")),
        ("mlx_scatter_add_single", "mlx::core::scatter_add", None),
        ("mlx_cuda_is_available", "mlx::core::cu::is_available", ()),
        ("mlx_get_default_device", "mlx::core::default_device", ()),
        ("mlx_distributed_init", "mlx::core::distributed::init", ("strict", 'bk ? c_str(bk) : std::string("any")')),
    ],
)
def test_overloads(matches: dict[str, Any], name: str, cpp: str, arguments: tuple[str, ...] | None) -> None:
    found = matches[name]
    assert found.cpp.qualified == cpp
    assert arguments is None or found.arguments == arguments


def test_the_types_choose_between_overloads(matches: dict[str, Any]) -> None:
    types = {n: [p.type for p in matches[n].cpp.params] for n in ("mlx_sum", "mlx_sum_axis", "mlx_sum_axes")}
    assert types["mlx_sum"][1] == "bool"
    assert types["mlx_sum_axis"][1] == "int"
    assert types["mlx_sum_axes"][1] == "const std::vector<int>&"


def test_parameter_names_agree_almost_everywhere(matches: dict[str, Any]) -> None:
    """Types cannot see two swapped arguments of one type; names can."""
    renamed = {n for n, m in matches.items() if m.renamed}
    assert len(matches) > 380
    assert len(renamed) <= 8


def test_a_new_parameter_in_mlx_stops_the_generator(wrappers: ModuleType, mlx_cpp: ModuleType, models: Any) -> None:
    cpp = mlx_cpp.load()
    add = next(f for f in cpp.functions if f.name == "add")
    grown = replace(add, params=(*add.params, mlx_cpp.CppParam("double", "bias", "0.0")))
    changed = replace(cpp, functions=tuple(grown if f == add else f for f in cpp.functions))
    with pytest.raises(wrappers.BindgenError, match=r"mlx_add: .* lacks: \('bias',\)"):
        wrappers.matches(models.mlx_07, changed)


def test_two_overloads_that_fit_stop_the_generator(wrappers: ModuleType, mlx_cpp: ModuleType, models: Any) -> None:
    cpp = mlx_cpp.load()
    add = next(f for f in cpp.functions if f.name == "add")
    with pytest.raises(wrappers.BindgenError, match="mlx_add: two overloads"):
        wrappers.matches(models.mlx_07, replace(cpp, functions=(*cpp.functions, add)))


def test_entries_for_functions_that_are_gone_stop_the_generator(
    wrappers: ModuleType, mlx_cpp: ModuleType, models: Any
) -> None:
    cpp = mlx_cpp.load()
    without = replace(cpp, functions=tuple(f for f in cpp.functions if f.name != "as_strided"))
    with pytest.raises(wrappers.BindgenError, match="mlx_as_strided"):
        wrappers.matches(models.mlx_07, without)


def test_changed_headers_are_refused_until_accepted(mlx_cpp: ModuleType, wrappers: ModuleType, tmp_path: Path) -> None:
    include, models = tmp_path / "include", tmp_path / "models"
    models.mkdir()
    for name in mlx_cpp.HEADERS:
        header = include / "mlx" / name
        header.parent.mkdir(parents=True, exist_ok=True)
        header.write_text("namespace mlx::core { int one(); }" if name == "ops.h" else "")
    (include / "mlx" / "version.h").write_text(
        "#define MLX_VERSION_MAJOR 9\n#define MLX_VERSION_MINOR 8\n#define MLX_VERSION_PATCH 7\n"
    )
    assert "MLX 9.8.7" in mlx_cpp.update(include, models, accept=True)
    assert "give the committed model" in mlx_cpp.update(include, models, accept=False)
    (include / "mlx" / "ops.h").write_text("namespace mlx::core { int two(); }")
    with pytest.raises(wrappers.BindgenError, match=r"(?s)\+ mlx::core::two.*") as e:
        mlx_cpp.update(include, models, accept=False)
    assert "- mlx::core::one: int (*)()" in str(e.value)
    (include / "mlx" / "io.h").unlink()
    with pytest.raises(wrappers.BindgenError, match="where its functions went"):
        mlx_cpp.parse(include)
