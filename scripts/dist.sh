#!/bin/sh
# Make what is published, in dist/: `sh scripts/dist.sh PYTHON`, which has `build`, `twine`
# and `cyclonedx-bom`. A wheel and an sdist of the last commit, checked; the list of all
# packages that installing the wheel brings, in CycloneDX's form (SBOM); and digests. The
# wheel of a commit is the same whenever it is made with the same setuptools; the sdist
# holds the times at which its folders were written.
set -eu
cd "$(dirname "$0")/.."
python=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH PIP_DISABLE_PIP_VERSION_CHECK=1

rm -rf dist
mkdir "$work/source"
git archive HEAD | tar -x -C "$work/source"
"$python" -m build --outdir dist "$work/source"
"$python" -m twine check --strict dist/*

"$python" -m venv --without-pip "$work/installed"
"$python" -m pip --python "$work/installed" install --quiet -c constraints.txt dist/*.whl
"$python" -m pip --python "$work/installed" check
"$work/installed/bin/sealift" --version
# Where the wheel lay when it was installed is nobody's business.
rm "$work"/installed/lib/python3*/site-packages/sealift-*.dist-info/direct_url.json
"$python" -m cyclonedx_py environment --output-reproducible -o dist/sealift.cdx.json \
    "$work/installed"

(cd dist && sha256sum -- * >SHA256SUMS && cat SHA256SUMS)
