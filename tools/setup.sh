#!/bin/sh
# Makes this checkout ready: what the machine needs (Debian or Ubuntu packages), then .venv with
# every role, exactly as requirements.lock says. Quick when all is there.
#
#   tools/setup.sh            enough for lint, types, unit tests and the simulator
#   tools/setup.sh builder    also what builds images on this machine
#   tools/setup.sh demo       also what pulls and runs them
#   tools/setup.sh engines    also all the engines and registries that the tests try
#
# Some of these packages bring a service. None is started or enabled: what is used here is started
# by whoever uses it, and ends with it.
#
# It is shell because on a bare machine there is no Python yet. It never replaces an engine that is
# there: docker.io and runc conflict with docker-ce and containerd.io, so commands are looked for
# before packages. Ends with 3 when something is missing that only the machine's owner can install.
set -eu
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/sbin:/sbin
export UV_PYTHON_DOWNLOADS=never
PYTHON=/usr/bin/python3
PACKAGES="protocol router runner cluster dispatch-adapters"
STAMP=.venv/ready

refuse() {
    printf 'error: %s\n\nhint: %s\n' "$1" "$2" >&2
    exit 3
}

has() { command -v "$1" >/dev/null 2>&1; }

# The packages of the commands that are missing, one a line.
missing() {
    [ -x "$PYTHON" ] || echo python3
    "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null || echo python3-venv
    [ -s /etc/ssl/certs/ca-certificates.crt ] || [ -s "${SSL_CERT_FILE:-/nonexistent}" ] ||
        echo ca-certificates
    has git || echo git
    case "$1" in
        base) ;;
        builder) missing_builder ;;
        demo) missing_builder; missing_demo ;;
        engines) missing_builder; missing_demo; missing_engines ;;
        *) refuse "there is no $1 to set up" "tools/setup.sh [builder|demo|engines]" ;;
    esac
}

missing_builder() {
    has buildah || echo buildah
    has runc || echo runc
    has iptables || echo iptables
    has ip || echo iproute2
    has nsenter || echo util-linux
    has newuidmap || echo uidmap
}

missing_demo() {
    has dockerd || echo docker.io
    has skopeo || echo skopeo
    # Only the static one runs in an image that holds nothing else.
    if ! has busybox || ldd "$(command -v busybox)" >/dev/null 2>&1; then echo busybox-static; fi
}

missing_engines() {
    has podman || echo podman
    has docker-registry || echo docker-registry
    has haproxy || echo haproxy
    has debootstrap || echo debootstrap
    has curl || echo curl
    has zsh || echo zsh
    has fish || echo fish
}

install() {
    # shellcheck disable=SC1091
    family=$(. /etc/os-release 2>/dev/null && echo "${ID:-} ${ID_LIKE:-}" || uname -s)
    case " $family " in
        *" debian "*) ;;
        *) refuse "this machine lacks: $*" \
            "only Debian and Ubuntu are set up by this script; install these (or what they are called here), then run it again" ;;
    esac
    [ "$(id -u)" = 0 ] || refuse "this machine lacks: $*" \
        "sudo apt-get update && sudo apt-get install -y --no-install-recommends $*"
    echo "installing $*" >&2
    export DEBIAN_FRONTEND=noninteractive
    apt-get -qq update
    before=$(enabled)
    keep_services_off
    apt-get -qq install -y --no-install-recommends "$@" >/dev/null
    services_may_start
    enabled | while read -r link; do
        printf '%s\n' "$before" | grep -qxF "$link" || rm -f "$link"
    done
}

# What the machine starts at boot, a link a line.
enabled() { find /etc/systemd/system -path '*.wants/*' -type l 2>/dev/null || true; }

# Debian asks this program before a package starts a service; 101 is "not allowed".
POLICY=/usr/sbin/policy-rc.d
keep_services_off() {
    [ ! -e $POLICY ] || return 0
    printf '#!/bin/sh\n# Written by %s for the time of one installation.\nexit 101\n' "$0" >$POLICY
    chmod 755 $POLICY
    trap services_may_start EXIT
    trap 'exit 130' INT TERM HUP
}
services_may_start() {
    if grep -q "for the time of one installation" $POLICY 2>/dev/null; then rm -f $POLICY; fi
}

# What decides the content of .venv: the locked versions and the metadata of our own packages.
wanted() { cat requirements.lock pyproject.toml packages/*/pyproject.toml tools/setup.sh | sha256sum; }

# The locked lines of one requirement, hashes included.
locked() { awk -v name="$1" '$0 ~ "^" name "==" {on=1} on {print} on && !/\\$/ {exit}' requirements.lock; }

make_venv() {
    "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        refuse "$PYTHON is $("$PYTHON" -V 2>&1); 3.11 or newer is needed" \
            "use Debian 12 or newer, or Ubuntu 24.04 or newer"
    echo "installing the locked versions into .venv" >&2
    mkdir -p .boot
    locked uv >.boot/uv.lock
    [ -x .boot/bin/pip ] || "$PYTHON" -m venv .boot
    .boot/bin/pip install -q --disable-pip-version-check --require-hashes -r .boot/uv.lock
    [ -x .venv/bin/python ] || .boot/bin/uv venv -q --python "$PYTHON" .venv
    uv="env VIRTUAL_ENV=$PWD/.venv .boot/bin/uv pip"
    $uv sync -q --require-hashes requirements.lock
    # The build backends are in the lock too, so nothing unlocked is fetched to install our own.
    set -- -e .
    for package in $PACKAGES; do set -- "$@" -e "packages/$package"; done
    $uv install -q --no-deps --no-build-isolation "$@"
    wanted >"$STAMP"
}

lacking=$(missing "${1:-base}")
# shellcheck disable=SC2086
[ -z "$lacking" ] || install $lacking
if [ ! -f "$STAMP" ] || [ "$(cat "$STAMP")" != "$(wanted)" ]; then make_venv; fi
