#!/usr/bin/env bash
# Renews requirements.lock (every extra but Spark, and the dev group), requirements-spark.lock (the same with Spark),
# requirements-runtime.lock (what the container image installs) and requirements-build.lock (what builds the wheel)
# from pyproject.toml, with hashes, for all platforms and every Python from 3.11 on. Index addresses are kept out of the file, so pip uses whichever index it is set up for.
# uv only makes the file; nobody needs it to install. Arguments go to uv, e.g. `tools/lock.sh --upgrade`.
set -euo pipefail
cd "$(dirname "$0")/.."

tool=$(mktemp -d)
trap 'rm -rf "$tool"' EXIT
"${PYTHON:-python3}" -m venv "$tool/venv"
"$tool/venv/bin/python" -m pip install --quiet uv

# uv does not read pip's configuration: hand it pip's index, if there is one.
index=$("$tool/venv/bin/python" -m pip config get global.index-url 2>/dev/null || true)
if [[ -n "${PIP_INDEX_URL:-$index}" ]]; then
    export UV_DEFAULT_INDEX="${PIP_INDEX_URL:-$index}"
fi

compile() {
    UV_CACHE_DIR="$tool/cache" "$tool/venv/bin/uv" pip compile "${input:-pyproject.toml}" \
        --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate --no-header --quiet "$@"
    if grep -q '://' "$out"; then
        echo "$out contains an address; it must not" >&2
        exit 1
    fi
}

# Spark is half a gigabyte: who only runs the service does not download it.
out=requirements.lock compile --extra all --group dev --output-file requirements.lock "$@"
out=requirements-spark.lock compile --extra all --extra spark --extra lake --group dev --group spark \
    --constraint requirements.lock --output-file requirements-spark.lock "$@"
# The image has neither tests nor tools, nor an embedded Postgres; what it has is what was tested.
out=requirements-runtime.lock compile --extra cli --extra http --extra otel --extra push --extra server \
    --constraint requirements.lock --output-file requirements-runtime.lock "$@"
printf 'hatchling\neditables\n' > "$tool/build.in"
input="$tool/build.in" out=requirements-build.lock compile \
    --constraint requirements.lock --output-file requirements-build.lock "$@"
