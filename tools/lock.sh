#!/usr/bin/env bash
# Generate the lock files from pyproject.toml, with hashes, for all platforms and Python 3.11 and later:
# requirements.lock (all extras except Spark, and the dev group), requirements-spark.lock (the same with Spark),
# requirements-runtime.lock (packages of the container image) and requirements-build.lock (tools that build the wheel).
# The files contain no index URLs, so pip uses its configured index. uv is needed only here, not to install.
# Arguments are passed to uv, e.g. `tools/lock.sh --upgrade`.
set -euo pipefail
cd "$(dirname "$0")/.."

tool=$(mktemp -d)
trap 'rm -rf "$tool"' EXIT
"${PYTHON:-python3}" -m venv "$tool/venv"
"$tool/venv/bin/python" -m pip install --quiet uv

# uv does not read pip's configuration: pass it pip's index, if one is configured.
index=$("$tool/venv/bin/python" -m pip config get global.index-url 2>/dev/null || true)
if [[ -n "${PIP_INDEX_URL:-$index}" ]]; then
    export UV_DEFAULT_INDEX="${PIP_INDEX_URL:-$index}"
fi

compile() {
    UV_CACHE_DIR="$tool/cache" "$tool/venv/bin/uv" pip compile "${input:-pyproject.toml}" \
        --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate --no-header --quiet "$@"
    if grep -q '://' "$out"; then
        echo "$out must not contain a URL" >&2
        exit 1
    fi
}

# Spark is half a gigabyte and has a separate file, because the service does not need it.
out=requirements.lock compile --extra all --group dev --output-file requirements.lock "$@"
out=requirements-spark.lock compile --extra all --extra spark --extra lake --group dev --group spark \
    --constraint requirements.lock --output-file requirements-spark.lock "$@"
# The image has no tests, tools or embedded Postgres. The constraint pins its packages to the tested versions.
out=requirements-runtime.lock compile --extra cli --extra http --extra otel --extra push --extra server \
    --constraint requirements.lock --output-file requirements-runtime.lock "$@"
printf 'hatchling\neditables\n' > "$tool/build.in"
input="$tool/build.in" out=requirements-build.lock compile \
    --constraint requirements.lock --output-file requirements-build.lock "$@"
