"""Each mlx-c generation, played by a stub: classified, called with its own signatures, refused where unknown."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any

import pytest

from mlxc_py._sys import abi, load, mlx
from mlxc_py._sys.generations import UnknownLibrary, classify

Use = Callable[[str], tuple[Any, Any]]


@pytest.mark.parametrize(
    ("stub", "generation"),
    [
        ("0.6.0", "0.6.0"),
        ("0.6", "0.6"),
        ("0.7-pre", "0.7-pre"),
        ("0.7.0", "0.7.0"),
        ("ollama", "0.6"),
        ("newer", "newer"),
    ],
)
def test_generation(use_stub: Use, stub: str, generation: str) -> None:
    library, _ = use_stub(stub)
    assert library.generation == generation


def argument(text: str, position: int) -> tuple[Any, float, int]:
    """(Python argument, value that the callee must see, its width in bytes) for a C parameter."""
    if text in ("float", "double"):
        return 1.5 + position, 1.5 + position, 0
    if text == "bool":
        return position % 2 == 0, int(position % 2 == 0), 1
    if text in mlx.__dict__ and issubclass(getattr(mlx, text), int):
        return position % 2, position % 2, 4
    if text == "const char*":
        buffer = ctypes.create_string_buffer(8)
        return buffer, ctypes.addressof(buffer), 8
    if text == "int":
        return -7 - position, -7 - position, 8
    if text == "mlx_optional_float":
        return abi.optional_float(0.5), struct.unpack("<I", struct.pack("<f", 0.5))[0] | 1 << 32, 5
    if text.startswith("mlx_optional"):
        return abi.optional_int(-3), 0x1_FFFF_FFFD, 5
    return 0x7FFF_0000_1000 + position, 0x7FFF_0000_1000 + position, 8


def call_and_compare(signature: Any, record: Any) -> None:
    function = mlx.bind.resolve(signature)
    args: list[Any] = []
    seen: list[tuple[float, int]] = []
    for i, (text, _) in enumerate(signature.params):
        if text in ("mlx_io_vtable", "mlx_map_string_to_array_iterator", "mlx_map_string_to_string_iterator"):
            value = getattr(mlx, text)()
            ctypes.c_uint64.from_buffer(value).value = 0x7FFF_0000_2000 + i
            args.append(value)
            seen.append((0x7FFF_0000_2000 + i, 8))
        else:
            value, expected, width = argument(text, i)
            args.append(value)
            seen.append((expected, width))
    result = function(*args)
    assert record.name.decode() == signature.symbol
    for i, (expected, width) in enumerate(seen):
        got = record.floats[i] if width == 0 else record.bits[i] & ((1 << 8 * width) - 1)
        assert got == (expected if width == 0 else int(expected) & ((1 << 8 * width) - 1)), (str(signature), i)
    if signature.result in mlx.__dict__ and issubclass(getattr(mlx, signature.result), ctypes.Structure):
        expected_result: Any = None if "iterator" in signature.result else 0x7FFF_1234_5678
        assert expected_result is None or result == expected_result
    elif signature.result == "int":
        assert result == 3
    elif signature.result == "void":
        assert result is None


# Written by hand in the stub, because the loader itself calls them.
UNRECORDED = {"mlx_version", "mlx_string_data", "mlx_string_free", "mlx_set_error_handler", "_mlx_error"}


def test_every_function_of_07_passes_its_arguments(use_stub: Use) -> None:
    _, record = use_stub("0.7.0")
    called = [s for n, s in mlx.FUNCTIONS.items() if n not in UNRECORDED]
    for signature in called:
        call_and_compare(signature, record)
    assert len(called) == 669


@pytest.mark.parametrize(("stub", "suffix", "count"), [("0.6", "__06", 10), ("0.6.0", "__060", 14)])
def test_older_forms_pass_their_arguments(use_stub: Use, stub: str, suffix: str, count: int) -> None:
    _, record = use_stub(stub)
    forms = [s for n, s in mlx.OLDER_FORMS.items() if n.endswith(suffix)]
    for signature in forms:
        call_and_compare(signature, record)
    assert len(forms) == count


@pytest.mark.parametrize("stub", ["0.6.0", "0.6", "0.7-pre"])
def test_unchanged_functions_are_called_in_every_generation(use_stub: Use, stub: str) -> None:
    library, record = use_stub(stub)
    common = [s for n, s in mlx.FUNCTIONS.items() if n not in UNRECORDED and abi.unavailable(s, library) is None]
    for signature in common[::9]:
        call_and_compare(signature, record)
    assert len(common) == {"0.6.0": 590 - 24, "0.6": 620 - 10, "0.7-pre": 655}[stub] - len(UNRECORDED)


@pytest.mark.parametrize("stub", ["0.6.0", "0.6"])
def test_a_newer_form_is_never_called_in_an_older_library(use_stub: Use, models: Any, stub: str) -> None:
    use_stub(stub)
    changed = [f.name for f in models.mlx_07.functions if f.changed_in == ("0.7",)]
    if stub == "0.6.0":
        changed += [f.name for f in models.mlx_06.older]
    assert len(changed) == {"0.6": 10, "0.6.0": 24}[stub]
    for name in changed:
        with pytest.raises(load.SymbolError, match=r"older signature|not in"):
            mlx.bind.resolve(mlx.FUNCTIONS[name])


def test_an_older_form_is_never_called_in_a_newer_library(use_stub: Use) -> None:
    use_stub("0.7.0")
    for signature in mlx.OLDER_FORMS.values():
        with pytest.raises(load.SymbolError, match="newer signature"):
            mlx.bind.resolve(signature)


@pytest.mark.parametrize(
    ("stub", "refused"),
    [
        ("0.7.0", set()),
        ("0.7-pre", set()),
        ("0.6", set()),
        ("ollama", {"mlx_fast_scaled_dot_product_attention"}),
        ("ollama-0.34", {"mlx_gather_qmm"}),
        ("newer", {"mlx_gather_qmm"}),
        (
            "fork",
            {
                "mlx_fast_metal_kernel_new",
                "mlx_metal_get_metallib_path",
                "mlx_stream_from_thread_local",
                "mlx_synchronize_thread_local",
            },
        ),
    ],
)
def test_unknown_signatures_are_refused(use_stub: Use, stub: str, refused: set[str]) -> None:
    library, _ = use_stub(stub)
    assert set(library.refused) == refused
    for name in refused:
        with pytest.raises(load.SymbolError, match=f"{name} is not called in .*libmlxc.so"):
            mlx.bind.resolve(mlx.FUNCTIONS[name])


def test_sdpa_in_ollamas_library_is_refused_in_both_forms(use_stub: Use) -> None:
    use_stub("ollama")
    for signature in (
        mlx.FUNCTIONS["mlx_fast_scaled_dot_product_attention"],
        mlx.OLDER_FORMS["mlx_fast_scaled_dot_product_attention__06"],
    ):
        with pytest.raises(load.SymbolError, match="force_fused"):
            mlx.bind.resolve(signature)


def test_a_library_with_half_of_an_upstream_commit_is_not_trusted(use_stub: Use) -> None:
    library, _ = use_stub("half")
    assert len(library.refused) == 10
    with pytest.raises(load.SymbolError, match="signature is unknown"):
        mlx.bind.resolve(mlx.FUNCTIONS["mlx_cumsum"])


def test_a_folder_named_ollama_is_enough_for_doubt(models: Any) -> None:
    names = set(models.mlx_06.by_name)
    refused = classify(names.__contains__, "0.31.2", "/usr/lib/ollama/mlx/libmlxc.so").refused
    assert set(refused) == {"mlx_fast_scaled_dot_product_attention"}
    assert not classify(names.__contains__, "0.32.1", "/opt/homebrew/lib/libmlxc.dylib").refused
    assert set(classify(names.__contains__, "0.32.2", "/usr/lib/libmlxc.so").refused) == set(refused)


def test_a_library_older_than_060_is_refused(stub_path: Callable[[str], Any], use_stub: Use) -> None:
    with pytest.raises(load.LibraryError, match=r"older than 0\.6\.0"):
        use_stub("0.5")


def test_another_library_is_refused() -> None:
    with pytest.raises(UnknownLibrary, match="not an mlx-c library"):
        classify(lambda name: False, "1.0.0", "/usr/lib/libother.so")


def test_a_missing_function_says_what_brings_it(use_stub: Use) -> None:
    library, _ = use_stub("0.6")
    with pytest.raises(load.SymbolError) as e:
        mlx.bind.resolve(mlx.FUNCTIONS["mlx_unstack"])
    text = str(e.value)
    assert "mlx_unstack is not in" in text
    assert library.path in text and "MLX 0.31.2" in text and "0.7-pre" in text


def test_messages_of_failures_are_kept_per_thread(use_stub: Use) -> None:
    import threading

    library, _ = use_stub("0.7.0")
    fail = library.handle["stub_fail"]
    fail.argtypes = [ctypes.c_char_p]
    seen: list[str | None] = []

    def other() -> None:
        seen.append(load.last_error())
        fail(b"in the other thread: 100%s")
        seen.append(load.take_error())

    load.take_error()
    assert fail("caf\u00e9".encode()) == 1
    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert seen == [None, "in the other thread: 100%s"]
    assert load.last_error() == "caf\u00e9"
    assert load.take_error() == "caf\u00e9" and load.take_error() is None
