#!/bin/sh
# Run sealift's GPU tests and benches on this machine: `sh run.sh [RESULTS] [PYTHON]`.
#
# Needs an NVIDIA driver, Python 3.12, torch and what brought.txt names; nothing is
# downloaded. What is installed goes into a venv in RESULTS (default: results beside this
# file), next to doctor.json, basics.txt, training.xml, tests.xml, gpu.json, link.json and
# machine.txt. Parts run in the order of their worth, each with its own limit; the first,
# under 90 seconds, says whether the basics work.
# Exit code 0: all succeeded. 3: this machine lacks something, and it is named.
set -u

here=$(cd "$(dirname "$0")" && pwd)
results=${1:-$here/results}
python=${2:-python3}
failed=0

mkdir -p "$results" && results=$(cd "$results" && pwd) || exit 2
export PYTHONUNBUFFERED=1 XDG_CACHE_HOME="$results/cache" PYTEST_DISABLE_PLUGIN_AUTOLOAD=1
begun=$(date +%s)

say() { echo "gpu-bundle: $*"; }
# part NAME SECONDS COMMAND...
part() {
    name=$1
    most=$2
    shift 2
    say "$name ($(($(date +%s) - begun)) s so far, at most $most more)"
    timeout --kill-after=10 "$most" "$@"
    code=$?
    [ $code = 0 ] && return
    failed=1
    [ $code = 124 ] && say "$name: ended after $most s" || say "$name: failed with $code"
}

"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' || {
    say "$python is not Python 3.12, which the wheels are for"
    exit 3
}
"$python" "$here/check.py" "$here/brought.txt" || exit 3

# A venv beside the packages that are there. If $python is itself one of a venv, system
# packages are another interpreter's: so the folder of its own is named, too.
venv=$results/venv
own=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$python" -m venv --system-site-packages "$venv" || exit 3
echo "$own" >"$venv/lib/python3.12/site-packages/machine.pth"
py=$venv/bin/python
"$py" -m pip install --quiet --no-index --no-deps --no-warn-conflicts --force-reinstall \
    "$here"/wheels/*.whl || exit 3
# torch's wheels bring NVIDIA's libraries; NVRTC is looked for on this path.
for folder in "$own"/nvidia/*/lib; do
    [ ! -d "$folder" ] || LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
done
export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-}"

{
    echo "commit $(cat "$here/commit.txt")"
    uname -srm
    nvidia-smi -L 2>/dev/null || echo "no nvidia-smi"
    "$py" -m pip list --format=freeze 2>/dev/null
} >"$results/machine.txt"

cd "$here/source" || exit 2
tests="-m pytest -p no:cacheprovider -p pytest_timeout --timeout 120 --tb=short"
[ -e /dev/nvidiactl ] && gpu=yes || gpu=no
[ $gpu = yes ] || say "there is no NVIDIA GPU here: what needs one is left out"

part doctor 45 sh -c "'$py' -m sealift doctor --json >'$results/doctor.json'"
if [ $gpu = yes ]; then
    # Written beside the screen: what of it is seen last may be cut off.
    part basics 45 sh -c "PYTHONPATH=. '$py' '$here/basics.py' >'$results/basics.txt'"
    cat "$results/basics.txt"
    # Side by side: each starts processes for ten seconds. Not those that fill its memory.
    training=tests/unit/train/test_on_a_gpu.py
    # shellcheck disable=SC2086 # words of ours
    part "training on the GPU" 150 "$py" $tests -m gpu -v -p xdist -n 6 \
        -k "not by_the_next_process" --junitxml "$results/training.xml" $training
    # Only files with such tests: others import packages that are not here.
    # shellcheck disable=SC2046,SC2086 # words of ours
    part "other tests on the GPU" 180 "$py" $tests -m gpu -q \
        --junitxml "$results/tests.xml" "$training::test_rows_are_not_found_by_the_next_process" \
        $(grep -rlE 'mark\.gpu' tests --include='test_*.py' | grep -v "$training")
    part "bench gpu" 120 "$py" -m benchmarks gpu --json "$results/gpu.json"
fi
part "bench link" 60 "$py" -m benchmarks link --quick --json "$results/link.json"
# shellcheck disable=SC2086 # words of ours
part "tests without a GPU" 120 "$py" $tests -q \
    tests/unit/channel/cuda tests/contract/test_device_engines.py \
    -m "not gpu" -k "not gcc and not bindings"
[ $failed = 0 ] && say "done: $results" || say "done, but not all succeeded: $results"
exit $failed
