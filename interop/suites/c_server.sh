#!/bin/sh
# What the tests of the C client take for the script that starts and kills Apache's server: the same words, other servers.
# Arguments: startClean|start|stop; ZKMAXCNXNS is how many connections one address may have.
home=${0%/*}/served
mkdir -p "$home"
if [ -f "$home/pids" ]; then
    xargs kill -9 <"$home/pids" 2>/dev/null
    rm "$home/pids"
fi
case $1 in
    stop) exit 0 ;;
    startClean) rm -rf "$home/data" ;;
    start) ;;
    *) echo "no such server here: $1" >&2; exit 2 ;;
esac

# serve ADDRESS FLAGS...: starts a server and waits until it prints its address, which it does once it serves.
serve() {
    rm -f "$home/said"
    mkfifo "$home/said"
    # The flags stand for the properties that their script sets.
    "$LOCKKEEPER" serve --listen "$@" --accounts "$LOCKKEEPER_ACCOUNTS" --words all --tick 500ms --container-check 100ms \
        --max-connections-per-address "${ZKMAXCNXNS:-100}" >"$home/said" 2>/dev/null &
    echo $! >>"$home/pids"
    read -r address <"$home/said"
    [ "$address" = "$1" ]
}

# Theirs listens on all addresses of the machine; one of the tests comes by IPv6, and looks for nothing of another's.
serve '[::1]:22181' --memory
serve 127.0.0.1:22181 --data "$home/data"
