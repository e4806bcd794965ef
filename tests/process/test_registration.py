"""Registering the plugin in a fresh process: by path alone, twice, wrongly, with something missing."""

from __future__ import annotations

import shutil
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path

import onnx
import onnxruntime
import pytest

import ort_ep

Run = Callable[..., subprocess.CompletedProcess[str]]

PRELUDE = """
import sys
import numpy as np
import onnxruntime as ort
LIBRARY, MODEL = sys.argv[1:3]
NAME = "MLXExecutionProvider"
X = np.arange(12, dtype=np.float32).reshape(3, 4)

def devices(name=NAME):
    return [d for d in ort.get_ep_devices() if d.ep_name == name]

def open_session(name=NAME):
    settings = ort.SessionOptions()
    settings.add_provider_for_devices(devices(name)[:1], {})
    return ort.InferenceSession(MODEL, settings)

def run(session):
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], X + 1)

def failing(action, *arguments, **options):
    try:
        action(*arguments, **options)
    except Exception as error:
        return str(error)
    raise AssertionError("no error")
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """x + 1 on float32 [N, 4]."""
    graph = onnx.parser.parse_graph("g (float[N, 4] x) => (float[N, 4] y) <float one = {1}> { y = Add(x, one) }")
    path = tmp_path_factory.mktemp("registration") / "plus_one.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=10), path)
    return str(path)


@pytest.fixture
def script(run_python: Run, model: str) -> Callable[..., str]:
    """Runs the code after PRELUDE in a new process, which must end well; returns what it printed."""

    def run(code: str, *, env: dict[str, str] | None = None, library: str | None = None) -> str:
        text = PRELUDE + textwrap.dedent(code)
        ended = run_python("-c", text, library or ort_ep.get_library_path(), model, env=env, timeout=60)
        assert ended.returncode == 0, ended.stderr
        assert not ended.stderr, ended.stderr
        return ended.stdout

    return run


def test_by_path_alone(script: Callable[..., str]) -> None:
    out = script("""
        assert "ort_ep" not in sys.modules
        ort.register_execution_provider_library(NAME, LIBRARY)
        run(open_session())
        (device,) = devices()
        print(device.ep_vendor, sorted(device.ep_metadata))
    """)
    assert out.startswith("mlxc-py ")
    for key in ("mlx_version", "mlx_c_generation", "mlx_back_end", "libmlxc", "version"):
        assert f"'{key}'" in out


def test_copy_of_the_library(script: Callable[..., str], tmp_path: Path) -> None:
    copy = shutil.copy(ort_ep.get_library_path(), tmp_path / "libplugin_elsewhere.so")
    script(
        """
        ort.register_execution_provider_library(NAME, LIBRARY)
        run(open_session())
    """,
        library=str(copy),
    )


def test_register_is_idempotent(script: Callable[..., str]) -> None:
    script("""
        import ort_ep
        assert ort_ep.devices() == []
        assert ort_ep.register() == ort_ep.register() == NAME
        assert len(devices()) == len(ort_ep.devices()) == 1
        ort_ep.unregister()
        assert ort_ep.devices() == []
        ort.register_execution_provider_library(NAME, LIBRARY)
        ort_ep.register()
        assert len(devices()) == 1
    """)


def test_names(script: Callable[..., str]) -> None:
    out = script("""
        ort.register_execution_provider_library("plain name", LIBRARY)
        assert len(devices()) == 1
        ort.register_execution_provider_library("SecondExecutionProvider", LIBRARY)
        run(open_session("SecondExecutionProvider"))
        run(open_session())
        print(failing(ort.register_execution_provider_library, "plain name", LIBRARY))
        print(failing(ort.register_execution_provider_library, "another name", LIBRARY))
        assert len(devices()) == len(devices("SecondExecutionProvider")) == 1
        print(failing(ort.unregister_execution_provider_library, "another name"))
        import ort_ep
        assert ort_ep.register() == NAME and len(devices()) == 1
        print(failing(ort_ep.unregister))
        ort.unregister_execution_provider_library("plain name")
        run(open_session("SecondExecutionProvider"))
        ort.register_execution_provider_library("another name", LIBRARY)
        run(open_session())
    """)
    taken, doubled, unknown, other = out.splitlines()
    assert "registered already" in taken or "already registered" in taken
    assert "an execution provider named MLXExecutionProvider is registered already; use it, unregister it" in doubled
    assert "was registered under a name of your own" in other
    assert "another name" in unknown and "not registered" in unknown


def test_register_and_unregister_fifty_times(script: Callable[..., str]) -> None:
    script("""
        import ort_ep
        for turn in range(50):
            ort_ep.register()
            if turn % 10 == 0:
                run(open_session())
            ort_ep.unregister()
            assert not devices()
    """)


def test_unregister_in_use(script: Callable[..., str]) -> None:
    out = script("""
        import ort_ep
        print(failing(ort_ep.unregister))
        session = ort_ep.InferenceSession(MODEL)
        from_bytes = ort_ep.InferenceSession(open(MODEL, "rb").read())
        print(failing(ort_ep.unregister))
        del from_bytes
        print(failing(ort_ep.unregister))
        run(session)
        del session
        ort_ep.unregister()
    """)
    absent, two, one = out.splitlines()
    assert absent == "MLXExecutionProvider is not registered, so there is nothing to unregister"
    assert two.startswith("MLXExecutionProvider is in use by 2 sessions (") and "plus_one.onnx" in two
    assert "a model loaded from memory" in two and "delete them before unregistering" in two
    assert "in use by 1 session (" in one and "plus_one.onnx" in one and "memory" not in one


def test_missing_and_wrong_library(script: Callable[..., str], tmp_path: Path) -> None:
    out = script("""
        import ort_ep
        print(failing(ort.register_execution_provider_library, NAME, LIBRARY + ".missing"))
        import mlxc_py._sys.load as load
        print(failing(ort.register_execution_provider_library, NAME, load.library().path))
        ort_ep.__file__, here = "/nowhere/ort_ep/__init__.py", ort_ep.__file__
        print(failing(ort_ep.register))
        assert not devices()
        ort_ep.__file__ = here
        ort.register_execution_provider_library(NAME, LIBRARY)
        run(open_session())
    """)
    missing, wrong, unbuilt = [line for line in out.splitlines() if line]
    assert ".missing" in missing and "No such file" in missing
    assert "CreateEpFactories" in wrong
    assert unbuilt.startswith("the plugin library /nowhere/ort_ep/lib/") and "reinstall mlxc-py" in unbuilt


def test_missing_libmlxc(script: Callable[..., str]) -> None:
    out = script(
        """
        print(failing(ort.register_execution_provider_library, NAME, LIBRARY))
        assert not devices()
        import ort_ep
        print(failing(ort_ep.register))
        assert not devices()
    """,
        env={"MLXC_PY_LIBRARY": "/nowhere/libmlxc.so"},
    )
    assert out.count("/nowhere/libmlxc.so: no such file") == 2
    assert "MLXC_PY_LIBRARY is set" in out and "Error: " not in out


def test_python_half_missing(script: Callable[..., str]) -> None:
    out = script("""
        sys.modules["ort_ep"] = None
        print(failing(ort.register_execution_provider_library, NAME, LIBRARY))
        del sys.modules["ort_ep"]
        ort.register_execution_provider_library(NAME, LIBRARY)
        run(open_session())
    """)
    assert "importing ort_ep.factory (is mlxc-py installed in this Python?): ModuleNotFoundError: " in out


def test_onnxruntime_missing_or_old(script: Callable[..., str]) -> None:
    out = script("""
        import ort_ep
        sys.modules["onnxruntime"] = None
        print(failing(lambda: ort_ep.register))
        sys.modules["onnxruntime"] = ort
        ort.__version__ = "1.23.2"
        print(failing(lambda: ort_ep.register))
    """)
    missing, old = out.splitlines()
    assert missing == "ort_ep needs onnxruntime >= 1.24, which is not installed: pip install onnxruntime"
    assert old == "ort_ep needs onnxruntime >= 1.24, this is 1.23.2: pip install -U onnxruntime"


def test_library_refuses_an_old_runtime(run_python: Run) -> None:
    """The C side, where ort_ep.session was not asked: an OrtApiBase that says it is 1.23.2."""
    capi = Path(onnxruntime.__file__).parent / "capi"
    runtime = next(iter(sorted(capi.glob("libonnxruntime.*"))), None)
    if runtime is None:
        pytest.skip(f"no libonnxruntime beside {capi}")
    code = """
        import ctypes, sys
        class Base(ctypes.Structure):
            _fields_ = [("get_api", ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)),
                        ("version", ctypes.CFUNCTYPE(ctypes.c_void_p))]
        runtime, plugin = ctypes.CDLL(sys.argv[1]), ctypes.CDLL(sys.argv[2])
        runtime.OrtGetApiBase.restype = ctypes.POINTER(Base)
        real = runtime.OrtGetApiBase().contents
        text = ctypes.create_string_buffer(b"1.23.2")
        asked = []
        def get_api(version):
            asked.append(version)
            return real.get_api(version)
        old = Base(type(real.get_api)(get_api), type(real.version)(lambda: ctypes.addressof(text)))
        factories, count = (ctypes.c_void_p * 1)(), ctypes.c_size_t(9)
        create = plugin.CreateEpFactories
        create.restype = ctypes.c_void_p
        status = create(b"MLXExecutionProvider", ctypes.byref(old), None, factories, ctypes.c_size_t(1),
                        ctypes.byref(count))
        # the first three entries of OrtApi: CreateStatus, GetErrorCode, GetErrorMessage
        table = ctypes.cast(real.get_api(23), ctypes.POINTER(ctypes.c_void_p))
        message = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p)(table[2])
        print(message(status).decode())
        print(count.value, asked)
    """
    ended = run_python("-c", textwrap.dedent(code), str(runtime), ort_ep.get_library_path())
    assert ended.returncode == 0, ended.stderr
    told, count = ended.stdout.splitlines()
    assert told.startswith("MLXExecutionProvider: needs onnxruntime >= 1.24, this is 1.23.2: install a newer one")
    assert count == "0 [23]"


def test_import_is_light(script: Callable[..., str], run_python: Run) -> None:
    code = "import sys, ort_ep; ort_ep.get_library_path(); ort_ep.get_ep_names(); dir(ort_ep); print([*sys.modules])"
    ended = run_python("-c", code)
    assert ended.returncode == 0, ended.stderr
    assert not {"onnx", "onnxruntime", "numpy", "mlx", "ctypes"} & set(eval(ended.stdout))
