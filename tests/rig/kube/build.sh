#!/bin/bash
# Builds what the cluster rig runs from the Go module proxy and prints where it lies, one path a line.
# usage: build.sh kubernetes|helm|pause...
# Cached under ~/.cache/trtfleet by version, so that only the first call on a machine builds: Kubernetes takes some
# minutes on two cores, helm about two.
set -euo pipefail

kubernetes=1.34.4
helm=4.3.1
pause=1

source_folder=$(cd "$(dirname "$0")" && pwd)
home="${XDG_CACHE_HOME:-$HOME/.cache}/trtfleet"
mkdir -p "$home"
export CGO_ENABLED=0 GOFLAGS="-mod=mod -buildvcs=false"

# build_kubernetes OUT: the five binaries into the folder OUT.
build_kubernetes() {
    local out=$1 staging="v0.${kubernetes#1.}" module packages=() binary flags
    for binary in kube-apiserver kube-controller-manager kube-scheduler kubelet kubectl; do
        packages+=("k8s.io/kubernetes/cmd/$binary")
    done
    go mod init rig
    go mod edit -require "k8s.io/kubernetes@v$kubernetes"
    # Kubernetes requires its staging modules at v0.0.0, from its own tree; each has a release of its own.
    module=$(go mod download -json "k8s.io/kubernetes@v$kubernetes" | sed -n 's/.*"GoMod": "\(.*\)".*/\1/p')
    for staged in $(sed -nE 's/^\s+(k8s\.io\/\S+) v0\.0\.0( .*)?$/\1/p' "$module" | sort -u); do
        go mod edit -replace "$staged=$staged@$staging"
    done
    flags="-s -w -X k8s.io/client-go/pkg/version.gitVersion=v$kubernetes"
    flags+=" -X k8s.io/component-base/version.gitVersion=v$kubernetes"
    flags+=" -X k8s.io/component-base/version.gitMajor=1"
    flags+=" -X k8s.io/component-base/version.gitMinor=$(cut -d. -f2 <<<"$kubernetes")"
    mkdir "$out"
    nice go build -trimpath -ldflags "$flags" -o "$out/" "${packages[@]}"
}

build_helm() {
    go mod init rig
    go get "helm.sh/helm/v4@v$helm"
    nice go build -trimpath -ldflags "-s -w -X helm.sh/helm/v4/internal/version.version=v$helm" -o "$1" helm.sh/helm/v4/cmd/helm
}

build_pause() {
    cp "$source_folder"/pause/* .
    nice go build -trimpath -ldflags "-s -w" -o "$1" .
}

for name in "$@"; do
    case $name in
        kubernetes | helm | pause) target="$home/$name-${!name}" ;;
        *) echo "build.sh: unknown: $name" >&2; exit 2 ;;
    esac
    if [[ ! -e "$target" ]]; then
        command -v go >/dev/null || { echo "build.sh: no Go toolchain to build $name; install go >= 1.24" >&2; exit 1; }
        exec {lock}>"$home/$name.lock"
        flock "$lock" # who waited for another's build finds it done
        if [[ ! -e "$target" ]]; then
            work=$(mktemp -d "$home/building-XXXXXX") # on the same file system, so that the rename is one step
            trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
            mkdir "$work/module"
            (cd "$work/module" && "build_$name" "$work/out") >&2
            mv -T "$work/out" "$target"
            rm -rf "$work"
            trap - EXIT
        fi
        exec {lock}>&-
    fi
    echo "$target"
done
