"""Builds halfstep._C: C everywhere, the CUDA kernels too where nvcc is found.

HALFSTEP_CUDA=0|1        without | with the CUDA kernels (default: with, where there is an nvcc;
                         in place, for this machine alone, where there is a GPU too)
HALFSTEP_CUDA_ARCH=86;90 the architectures (default: of this machine's GPUs, else all)
HALFSTEP_CFLAGS          appended to every C compile and to the link, for sanitizers
"""

import os
import platform
import shlex
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
ABI = "0x030B0000"
WARNINGS = ["-Wall", "-Wextra"]
C_FLAGS = [
    "-std=c11",
    "-O3",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-math-errno",
    "-fno-trapping-math",
]
CUDA_FLAGS = ["-std=c++17", "-O3", "-DHS_WITH_CUDA", "-Xcompiler"]
CUDA_FLAGS += ["-fPIC,-fvisibility=hidden,-fno-exceptions,-fno-threadsafe-statics"]
WHEEL_ARCHITECTURES = ["75", "80", "86", "89", "90", "100", "120"]
# kernels/cpu is compiled once per instruction set; isa.c there picks one when the process runs.
ISA_FLAGS = {
    "base": [],
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
    "avx512": ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx2", "-mfma", "-mf16c"],
}


def find_nvcc(for_this_machine):
    wanted = os.environ.get("HALFSTEP_CUDA", "auto")
    if wanted == "0":
        return None
    asked_for = wanted == "1" or os.environ.get("HALFSTEP_CUDA_ARCH")
    if for_this_machine and not asked_for and not gpu_architectures():
        print("halfstep: no GPU here, the CUDA kernels are left out; HALFSTEP_CUDA=1 builds them")
        return None
    homes = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    candidates = [f"{home}/bin/nvcc" for home in homes]
    candidates += [shutil.which("nvcc") or "", "/usr/local/cuda/bin/nvcc"]
    for nvcc in candidates:
        if os.path.isfile(nvcc):
            return nvcc
    if wanted == "1":
        raise SystemExit(
            "HALFSTEP_CUDA=1, but nvcc is not in CUDA_HOME, CUDA_PATH, PATH or /usr/local/cuda"
        )
    return None


def gpu_architectures():
    """Of this machine's GPUs, for example ["86", "90"]."""
    smi = shutil.which("nvidia-smi")
    if not smi:
        return []
    query = [smi, "--query-gpu=compute_cap", "--format=csv,noheader"]
    found = subprocess.run(query, capture_output=True, text=True)
    capabilities = {line.strip().replace(".", "") for line in found.stdout.split()}
    known = found.returncode == 0 and all(c.isdigit() for c in capabilities)
    return sorted(capabilities, key=int) if known else []


def output_of(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def toolkit_library_folder(nvcc):
    """The folder of libcudart_static.a, asked of nvcc itself: it may be a wrapper script."""
    dry = subprocess.run(
        [nvcc, "-dryrun", "-c", "-x", "cu", os.devnull], capture_output=True, text=True
    )
    for line in dry.stderr.splitlines():
        if line.startswith("#$ TOP="):
            top = Path(line.removeprefix("#$ TOP=").strip())
            for name in (
                "lib64",
                f"targets/{platform.machine()}-linux/lib",
                "targets/sbsa-linux/lib",
                "lib",
            ):
                if (top / name / "libcudart_static.a").exists():
                    return str(top / name)
    raise SystemExit(f"libcudart_static.a was not found beside {nvcc}")


def architectures(nvcc):
    named = os.environ.get("HALFSTEP_CUDA_ARCH", "").replace(",", ";").replace(".", "")
    if named:
        return [a.strip() for a in named.split(";") if a.strip()], False
    here = gpu_architectures()
    if here:
        return here, False
    known = {
        line.strip().removeprefix("compute_") for line in output_of(nvcc, "--list-gpu-arch").split()
    }
    return [a for a in WHEEL_ARCHITECTURES if a in known], True


def architecture_flags(archs, with_ptx):
    flags = [f"-gencode=arch=compute_{a},code=sm_{a}" for a in archs]
    if with_ptx:
        flags.append(f"-gencode=arch=compute_{archs[-1]},code=compute_{archs[-1]}")
    return flags


class BuildExtension(build_ext):
    """Compiles what is older than its source or any header, on all cores; links with CC."""

    def finalize_options(self):
        super().finalize_options()
        self.for_this_machine = self.inplace  # setuptools clears inplace while it builds

    def build_extension(self, ext):
        import numpy

        compiler = shlex.split(os.environ.get("CC", "")) or self.compiler.compiler_so[:1]
        extra = shlex.split(os.environ.get("HALFSTEP_CFLAGS", ""))
        objects = Path(self.build_temp).resolve()
        headers = [
            *ROOT.glob("kernels/**/*.h"),
            *ROOT.glob("kernels/**/*.cuh"),
            *ROOT.glob("csrc/**/*.h"),
        ]
        nvcc = find_nvcc(self.for_this_machine)
        archs, with_ptx = architectures(nvcc) if nvcc else ([], False)
        cuda_libraries = toolkit_library_folder(nvcc) if nvcc else None

        common = [*compiler, *C_FLAGS, *WARNINGS, *extra, f'-DHS_CUDA_ARCHS="{";".join(archs)}"']
        common += ["-DHS_WITH_CUDA"] if nvcc else []
        bind = [
            *common,
            f"-DPy_LIMITED_API={ABI}",
            *[f"-I{d}" for d in self.include_dirs],
            f"-I{numpy.get_include()}",
        ]
        jobs = []

        def add(source, command, suffix=""):
            target = objects / source.relative_to(ROOT).with_suffix(f"{suffix}.o")
            jobs.append((source, target, [*command, "-c", str(source), "-o", str(target)]))

        for folder in ("kernels/base", "kernels/ops"):
            for source in sorted(ROOT.glob(f"{folder}/*.c")):
                add(source, common)
        x86 = platform.machine() in ("x86_64", "AMD64")
        for source in sorted(ROOT.glob("kernels/cpu/*.c")):
            if source.name == "isa.c":
                add(source, common)
                continue
            for isa, flags in ISA_FLAGS.items():
                if x86 or isa == "base":
                    add(source, [*common, *flags, f"-DHS_ISA={isa}"], f".{isa}")
        for source in sorted(ROOT.glob("csrc/**/*.c")):
            add(source, bind)
        if nvcc:
            cuda = [nvcc, *CUDA_FLAGS, *architecture_flags(archs, with_ptx)]
            for source in sorted(ROOT.glob("kernels/cuda/*.cu")):
                add(source, cuda, ".cu")
            for source in sorted(ROOT.glob("kernels/cuda/*.c")):
                add(source, [*common, f"-I{Path(cuda_libraries).parent / 'include'}"])

        newest_header = max(h.stat().st_mtime for h in [*headers, ROOT / "setup.py"])
        stamp = objects / "command.txt"
        settings = repr([common, bind, archs, with_ptx])
        unchanged = stamp.exists() and stamp.read_text() == settings
        stale = [
            j
            for j in jobs
            if not (
                unchanged
                and j[1].exists()
                and j[1].stat().st_mtime > max(newest_header, j[0].stat().st_mtime)
            )
        ]

        def compile_one(job):
            source, target, command = job
            if source.suffix == ".cu":
                print(f"{source.relative_to(ROOT)} for {', '.join(archs)}", flush=True)
            target.parent.mkdir(parents=True, exist_ok=True)
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode or done.stderr:
                print(shlex.join(command), done.stdout, done.stderr, sep="\n", flush=True)
            if done.returncode:
                target.unlink(missing_ok=True)
            return done.returncode == 0

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            if not all(list(pool.map(compile_one, stale))):
                raise SystemExit("halfstep: compiling failed; the messages are above")
        objects.mkdir(parents=True, exist_ok=True)
        stamp.write_text(settings)

        library = Path(self.get_ext_fullpath(ext.name))
        library.parent.mkdir(parents=True, exist_ok=True)
        link = [*compiler, "-shared", *extra, *[str(j[1]) for j in jobs], "-o", str(library)]
        if nvcc:
            link += [f"-L{cuda_libraries}", "-lcudart_static", "-lrt"]
        link += ["-lpthread", "-ldl", "-lm"]
        subprocess.run(link, check=True)

    def get_source_files(self):
        return []


setup(
    ext_modules=[Extension("halfstep._C", sources=[], py_limited_api=True)],
    cmdclass={"build_ext": BuildExtension},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
