"""Where the core is told to look for vendor libraries."""

import subprocess
import sys

import pytest

from halfstep import _C, _libs


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A site-packages folder that is searched first and alone holds nvidia/."""
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return tmp_path


def test_without_wheels_there_is_nothing(site):
    assert _libs.folders() == []


@pytest.mark.parametrize("regular_package", [False, True])
def test_wheels_newest_first(site, regular_package):
    for name in ("cublas/lib", "cu13/lib", "cudnn/include"):
        (site / "nvidia" / name).mkdir(parents=True)
    if regular_package:
        (site / "nvidia" / "__init__.py").write_text("raise AssertionError('imported')")
    expected = [site / "nvidia" / "cu13/lib", site / "nvidia" / "cublas/lib"]
    assert _libs.folders() == [str(folder) for folder in expected]


def test_the_toolkit_comes_after_the_wheels(site, monkeypatch):
    (site / "nvidia" / "cu13" / "lib").mkdir(parents=True)
    (site / "toolkit" / "lib64").mkdir(parents=True)
    monkeypatch.setenv("CUDA_HOME", str(site / "toolkit"))
    monkeypatch.setenv("CUDA_PATH", str(site / "absent"))
    expected = [site / "nvidia" / "cu13" / "lib", site / "toolkit" / "lib64"]
    assert _libs.folders() == [str(folder) for folder in expected]


def test_bad_folders_are_refused():
    with pytest.raises(TypeError):
        _C.library_paths(3)
    with pytest.raises(TypeError):
        _C.library_paths([3])
    _libs.announce()


def test_looking_imports_neither_torch_nor_nvidia():
    code = "import sys; from halfstep import _libs; _libs.announce(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "nvidia"} & set(done.stdout.split())
