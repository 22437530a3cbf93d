#!/bin/sh
# Run sealift's GPU tests and benches on this machine: `sh run.sh [RESULTS] [PYTHON]`.
#
# Needs Python 3.12, torch and an NVIDIA driver; nothing is downloaded. What is installed
# goes into a venv in RESULTS (default: results beside this file), next to
# doctor.json, tests.txt, tests.xml, gpu.json, link.json and machine.txt.
# Exit code 0: all that could run succeeded. Without a GPU or torch the parts that need
# none run, and the others are named.
set -u

here=$(cd "$(dirname "$0")" && pwd)
results=${1:-$here/results}
python=${2:-python3}
failed=0

mkdir -p "$results" && results=$(cd "$results" && pwd) || exit 2
export PYTHONUNBUFFERED=1 XDG_CACHE_HOME="$results/cache"

say() { echo "gpu-bundle: $*"; }
part() {
    name=$1
    shift
    say "$name"
    "$@" || {
        failed=1
        say "$name: failed with $?"
    }
}

"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' || {
    say "$python is not Python 3.12, which the wheels are for"
    exit 3
}

# A venv beside the packages that are there. If $python is itself one of a venv, system
# packages are another interpreter's: so the folder of its own is named, too.
venv=$results/venv
own=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$python" -m venv --system-site-packages "$venv" || exit 3
echo "$own" >"$venv/lib/python3.12/site-packages/machine.pth"
py=$venv/bin/python
"$py" -m pip install --quiet --no-index --find-links "$here/wheels" \
    --no-warn-conflicts -r "$here/requirements.txt" || exit 3
"$py" -m pip install --quiet --no-index --find-links "$here/wheels" --no-deps \
    --force-reinstall sealift || exit 3
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

torch=yes
"$py" -c 'import torch' 2>/dev/null || torch=no
gpu=yes
[ -e /dev/nvidiactl ] || gpu=no
[ $torch = yes ] || say "torch is not here: what needs it is left out"
[ $gpu = yes ] || say "there is no NVIDIA GPU here: what needs one is left out"

cd "$here/source" || exit 2
part doctor sh -c "'$py' -m sealift doctor --json >'$results/doctor.json'"
part "tests without a GPU" "$py" -m pytest -q -p no:cacheprovider \
    tests/unit/channel/cuda tests/contract/test_device_engines.py \
    -m "not gpu" -k "not gcc and not bindings"
if [ $gpu = yes ] && [ $torch = yes ]; then
    # Only files with such tests: others import packages that are not here.
    # shellcheck disable=SC2046 # file names of ours
    part "tests on the GPU" "$py" -m pytest -p no:cacheprovider -m gpu -s \
        --timeout 300 --junitxml "$results/tests.xml" \
        $(grep -rlE 'mark\.gpu' tests --include='test_*.py') >"$results/tests.txt" 2>&1
    tail -n 15 "$results/tests.txt"
    part "bench gpu" "$py" -m sealift bench gpu --json "$results/gpu.json"
fi
part "bench link" "$py" -m sealift bench link --quick --json "$results/link.json"
[ $failed = 0 ] && say "done: $results" || say "done, but not all succeeded: $results"
exit $failed
