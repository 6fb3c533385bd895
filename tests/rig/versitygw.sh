#!/bin/bash
# Builds versitygw, a real S3 server, from the Go module proxy and prints the path of its binary.
# Cached under ~/.cache/trtfleet, so that only the first call on a machine builds (about a minute).
set -euo pipefail

version=v1.8.0
home="${XDG_CACHE_HOME:-$HOME/.cache}/trtfleet"
target="$home/versitygw-$version"

if [[ ! -x "$target" ]]; then
    command -v go >/dev/null || { echo "versitygw.sh: no Go toolchain; install go >= 1.24" >&2; exit 1; }
    mkdir -p "$home"
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    cd "$work"
    export GOFLAGS="-mod=mod -p=1" CGO_ENABLED=0
    {
        go mod init rig
        go get "github.com/versity/versitygw@$version"
        nice go build -trimpath -ldflags "-s -w" -o "$work/versitygw" github.com/versity/versitygw/cmd/versitygw
    } >&2
    cp "$work/versitygw" "$target.$$"
    mv "$target.$$" "$target"
fi
echo "$target"
