#!/bin/sh
# What the tests of rust-zookeeper take for Java with a cluster in it: prints an address; on k kills, on q ends.
home=$(mktemp -d)
trap 'kill -9 "$server" 2>/dev/null; rm -rf "$home"' EXIT
mkfifo "$home/said"
serve() {
    "$LOCKKEEPER" serve --listen "$1" --data "$home/data" --accounts "$LOCKKEEPER_ACCOUNTS" --words all --container-check 1s >"$home/said" 2>/dev/null &
    server=$!
    read -r address <"$home/said"
}
serve 127.0.0.1:0
echo "$address"
while letter=$(dd bs=1 count=1 2>/dev/null) && [ -n "$letter" ]; do
    case $letter in
        # One server of three is killed and its client finds another: here the same one, started again.
        k) kill -9 "$server"; wait "$server" 2>/dev/null; serve "$address" ;;
        q) exit 0 ;;
    esac
done
