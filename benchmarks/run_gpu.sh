#!/usr/bin/env bash
# Builds for the GPU of this machine, then tests and benchmarks there. Needs no network: it uses the
# Python given by PYTHON with the torch that it has, and installs nothing.
#
#   benchmarks/run_gpu.sh [build] [tests] [sanitizer] [bench]     (default: all four)
#
# Logs and the CSV go to the folder given by OUTPUT, by default benchmarks/results.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
output=${OUTPUT:-benchmarks/results}
stages=${*:-build tests sanitizer bench}
mkdir -p "$output"
export PYTHONPATH="$PWD/python:$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
failed=()

stage() { # name command...: runs the command where the name was asked for, and keeps its log
    local name=$1
    shift
    [[ " $stages " == *" $name "* ]] || return 0
    echo "== $name"
    "$@" 2>&1 | tee "$output/$name.log" | tail -n "${TAIL:-40}"
    [ "${PIPESTATUS[0]}" -eq 0 ] || failed+=("$name")
}

sanitizer() {
    local tool
    for tool in ${SANITIZERS:-memcheck racecheck synccheck}; do
        echo "-- $tool"
        HALFSTEP_TUNE=0 compute-sanitizer --tool "$tool" --error-exitcode 99 --print-limit 20 \
            "$python" -m tests.gpu.every_kernel || return 1
    done
}

stage build env HALFSTEP_CUDA=1 "$python" setup.py -q build_ext --inplace
stage tests "$python" -m pytest -q -p no:cacheprovider ${TESTS:-tests/gpu}
if command -v compute-sanitizer >/dev/null; then stage sanitizer sanitizer; fi
stage bench "$python" -m benchmarks.run --output "$output" ${BENCH:-}

if [ ${#failed[@]} -gt 0 ]; then
    echo "failed: ${failed[*]}"
    exit 1
fi
echo "all stages passed: $stages"
