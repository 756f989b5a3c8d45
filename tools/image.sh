#!/usr/bin/env bash
# Build the container image with buildah and run it once: as the user of the image, on a new database.
# Without a registry of images, `tools/image.sh --debian` makes the base from packages of Debian instead (debootstrap).
# Needs root, buildah, curl, and the .venv of `make setup`.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot
store=(--root "$work/store" --runroot "$work/run")
buildah() { command buildah "${store[@]}" "$@"; }
database='' service=''
finish() {
    # the service is a session of its own, since buildah does not forward signals
    [[ -z "$service" ]] || kill -- "-$service" 2>/dev/null || true
    [[ -z "$database" ]] || kill "$database" 2>/dev/null || true
    wait
    buildah rm --all >/dev/null 2>&1 || true
    rm -rf "$work"
}
trap finish EXIT

base=()
if [[ "${1:-}" == --debian ]]; then
    debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates trixie "$work/root" >"$work/debootstrap.log"
    ln -s python3 "$work/root/usr/bin/python"
    # what pip needs here: names, and certificates of a local index
    cp /etc/resolv.conf "$work/root/etc/resolv.conf"
    cp /etc/ssl/certs/ca-certificates.crt "$work/root/etc/ssl/certs/ca-certificates.crt"
    container=$(buildah from scratch)
    buildah add --quiet "$container" "$work/root" / >/dev/null
    buildah config --env PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin "$container"
    buildah commit --quiet "$container" localhost/python:3.13-slim-trixie >/dev/null
    base=(--build-arg PYTHON_IMAGE=localhost/python:3.13-slim-trixie)
fi
# HEALTHCHECK is part of Docker's format only
buildah build --format docker --network host --quiet "${base[@]}" --tag localhost/trunkline . >/dev/null

container=$(buildah from localhost/trunkline)
user=$(buildah run "$container" -- id -u)
[[ "$user" == 10001 ]] || { echo "the image runs as user $user" >&2; exit 1; }
buildah run "$container" -- sh -c '! command -v pip && ! python -m pip --version' >/dev/null 2>&1 ||
    { echo "the image contains pip" >&2; exit 1; }
buildah run "$container" -- python -c 'import trunkline.server.app, trunkline.push.dispatcher, trunkline.telemetry'

.venv/bin/trunkline up --no-http --data "$work/data" >"$work/up.log" 2>&1 &
database=$!
until grep -q 'Ctrl-C stops' "$work/up.log"; do
    kill -0 "$database" || { cat "$work/up.log" >&2; exit 1; }
    sleep 0.2
done
url="postgresql://trunkline:$(cat "$work/data/password")@127.0.0.1:$(cat "$work/data/port")/trunkline"
token=$(TRUNKLINE_DATABASE_URL=$url .venv/bin/trunkline token create image --scope 'admin:*' --quiet)
port=$(.venv/bin/python -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
# the command of the image, on another port
setsid buildah "${store[@]}" run --env TRUNKLINE_DATABASE_URL="$url" "$container" -- \
    trunkline serve --host 0.0.0.0 --require-token --port "$port" >"$work/serve.log" 2>&1 &
service=$!
curl -sS --retry 30 --retry-delay 1 --retry-all-errors --noproxy '*' --fail-with-body \
    -H "authorization: Bearer $token" -d '{"name": "hello"}' "http://127.0.0.1:$port/v1/queues?ensure=true" ||
    { cat "$work/serve.log" >&2; exit 1; }
# the health check of the image, on the same port
buildah run "$container" -- \
    python -c "import urllib.request; urllib.request.urlopen('http://127.0.0.1:$port/healthz', timeout=2)"
echo
echo "The image builds, runs as user $user without pip, and serves."
