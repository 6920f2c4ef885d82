#!/bin/sh
# Lets this machine join a control plane of pierhead: sh -s -- ph1_... [options of pierhead join]
#
# It sends nothing itself. The code goes to pierhead join, on its input and not in its command line,
# and that checks the control plane's certificate against the pin in the code before any secret of
# the code leaves this machine.
set -eu

refuse() {
    printf 'error: %s\n\nhint: %s\n' "$1" "$2" >&2
    exit "$3"
}

# All of it is a function that is called in the last line: of a script that was cut, nothing runs.
main() {
    code=${1:-}
    case $code in
        ph1_*_*_*) shift ;;
        *) refuse "this is not a join code: it begins with ph1_" \
            "copy the whole line that pierhead add printed" 2 ;;
    esac
    if ! command -v pierhead >/dev/null 2>&1; then
        if ! command -v uv >/dev/null 2>&1; then
            refuse "neither pierhead nor uv is installed on this machine; the code was not used" \
                "install uv or pierhead (pipx install 'pierhead[runner]'), then paste the line again" 3
        fi
        printf 'installing pierhead with uv\n' >&2
        uv tool install --quiet 'pierhead[runner]' || refuse "uv could not install pierhead" \
            "the code was not used: paste the line again when the cause above is mended" 3
        PATH=$(uv tool dir --bin):$PATH
    fi
    printf '%s\n' "$code" | pierhead join "$@"
}

main "$@"
