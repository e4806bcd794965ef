from __future__ import annotations

import pytest

from ort_ep.options import OPTIONS, Option, OptionError, Options, parse


def test_defaults_of_the_table_are_the_defaults() -> None:
    assert parse({}, {}) == Options()
    assert {option.name: option.default for option in OPTIONS} == {
        field: getattr(Options(), field) for field in Options.__dataclass_fields__
    }


def test_values_are_parsed_by_type() -> None:
    parsed = parse({"partition": "cost", "strict": "True", "verbose": "0", "device": "cpu"}, {})
    assert parsed == Options(partition="cost", strict=True, verbose=False, device="cpu")


def test_environment_mirrors_options_and_is_overridden_by_them() -> None:
    environment = {"ONNXRUNTIME_EP_MLX_PARTITION": "cost", "ONNXRUNTIME_EP_MLX_VERBOSE": "1", "OTHER": "x"}
    assert parse({}, environment) == Options(partition="cost", verbose=True)
    assert parse({"partition": "all"}, environment) == Options(verbose=True)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"partitions": "all"}, "unknown provider option 'partitions'; did you mean 'partition'?"),
        ({"zzz": "1"}, "unknown provider option 'zzz'; the options are compile_cache, cuda_graph, device, engine"),
        ({"partition": "costs"}, "provider option partition is 'costs'; did you mean 'cost'? it takes all or cost"),
        ({"compile_cache": "0"}, "provider option compile_cache is '0'; it takes a whole number from 1"),
        ({"strict": "maybe"}, "provider option strict is 'maybe'; it takes 1/true/yes/on or 0/false/no/off"),
    ],
)
def test_what_is_not_valid_names_the_near_match(options: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse(options, {})
    assert str(caught.value).startswith(text)


@pytest.mark.parametrize(("text", "on"), [("0", False), ("1", True), ("", True), ("no", True)])
def test_a_switch_is_on_unless_it_is_0(text: str, on: bool) -> None:
    assert parse({}, {"ONNXRUNTIME_EP_MLX_NO_SHARED_INITIALIZERS": text}) == Options(no_shared_initializers=on)
    assert parse({"no_shared_quant_views": "yes"}, {}) == Options(no_shared_quant_views=True)


def test_bad_environment_names_the_variable() -> None:
    with pytest.raises(OptionError, match="environment variable ONNXRUNTIME_EP_MLX_DEVICE is 'tpu'"):
        parse({}, {"ONNXRUNTIME_EP_MLX_DEVICE": "tpu"})


def test_an_unknown_variable_names_the_near_match() -> None:
    with pytest.raises(
        OptionError, match=r"unknown environment variable ONNXRUNTIME_EP_MLX_DEVISE; did you mean ONNX.*DEVICE"
    ):
        parse({}, {"ONNXRUNTIME_EP_MLX_DEVISE": "cpu"})
    with pytest.raises(OptionError, match="ONNXRUNTIME_EP_MLX_device; did you mean ONNXRUNTIME_EP_MLX_DEVICE"):
        parse({"device": "cpu"}, {"ONNXRUNTIME_EP_MLX_device": "cpu"})
    with pytest.raises(OptionError, match="ONNXRUNTIME_EP_MLX_ZZZ; after ONNXRUNTIME_EP_MLX_ comes the name of an opt"):
        parse({}, {"ONNXRUNTIME_EP_MLX_ZZZ": ""})
    assert parse({}, {"ONNXRUNTIME_EP_MLX_LIBPYTHON": "/nowhere"}) == Options()


@pytest.mark.parametrize("option", [option for option in OPTIONS if not option.switch], ids=lambda option: option.name)
def test_an_empty_variable_is_not_set(option: Option) -> None:
    assert parse({}, {option.environment: ""}) == Options()


def test_every_option_says_what_it_does_and_takes() -> None:
    for option in OPTIONS:
        assert option.doc.endswith(".")
        assert option.type in ("bool", "int", " | ".join(option.choices))
        assert option.environment == f"ONNXRUNTIME_EP_MLX_{option.name.upper()}"
