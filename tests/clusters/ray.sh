#!/usr/bin/env bash
# A Ray cluster of two nodes of one core on this machine, for tests: ray.sh up FOLDER, which prints
# the address; ray.sh node-up FOLDER; ray.sh node-kill FOLDER, without a warning; ray.sh down FOLDER.
# Commands need RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH=FOLDER/token: Ray listens on all
# interfaces. Needs `ray` in the PATH.
set -euo pipefail
state="$(realpath -m "${2:?a folder for the state of the cluster}")"
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="$state/token" RAY_USAGE_STATS_ENABLED=0
# A dead node is noticed after two seconds instead of fifteen.
export RAY_health_check_initial_delay_ms=0 RAY_health_check_period_ms=500 \
    RAY_health_check_timeout_ms=1000 RAY_health_check_failure_threshold=3

start() { # name arguments...
    name="$1"
    shift
    setsid ray start --block --num-cpus=1 --num-gpus=0 --object-store-memory=80000000 \
        --disable-usage-stats "$@" > "$state/$name.log" 2>&1 &
    echo $! > "$state/$name.pid"
}

# All processes of a node have the session of its first process.
stop() { # name signal
    pid="$(cat "$state/$1.pid" 2> /dev/null || true)"
    [ -z "$pid" ] || pkill "$2" -s "$pid" || true
}

wait_for() { # number of nodes
    for _ in $(seq 150); do
        [ "$(ray status --address="$(cat "$state/address")" 2> /dev/null |
            grep -c '^ *1 node_')" != "$1" ] || return 0
        sleep 0.2
    done
    tail -n 50 "$state"/*.log >&2
    echo "the cluster has not $1 nodes" >&2
    exit 1
}

case "$1" in
up)
    mkdir -p "$state"
    temporary="$(mktemp -d /tmp/kindling-XXXXXX)" # the names of Ray's sockets must be short
    echo "$temporary" > "$state/temporary"
    (umask 077 && head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' > "$state/token")
    read -r port client < <(python3 -c '
import socket
sockets = [socket.socket() for _ in range(2)]
for each in sockets: each.bind(("127.0.0.1", 0))
print(*(each.getsockname()[1] for each in sockets))')
    start head --head --port="$port" --ray-client-server-port="$client" \
        --include-dashboard=false --temp-dir="$temporary"
    echo "$(hostname -I | cut -d' ' -f1):$port" > "$state/address"
    wait_for 1
    start node --address="$(cat "$state/address")"
    wait_for 2
    cat "$state/address"
    ;;
node-up)
    start node --address="$(cat "$state/address")"
    wait_for 2
    ;;
node-kill)
    stop node -KILL
    ;;
down)
    for name in node head; do stop "$name" -TERM; done
    sleep 1
    for name in node head; do stop "$name" -KILL; done
    rm -rf "$(cat "$state/temporary")"
    ;;
esac
