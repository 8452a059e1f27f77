# What the guest does while its disk is recorded. Sourced with KIND (of the file system), PARTS and PUSHES set.
# Whatever is told over the port has been promised by then.

mount -t "$KIND" -o noatime /dev/vda /mnt || echo "the disk cannot be mounted"
mkfifo /tmp/told
exec 3<>/tmp/told
port=$(echo /dev/vport*p1)
cat </tmp/told >"$port" 3>&- &
tell() { echo "$@" >&3; }

export THREAD_DIR=/mnt/inbox HOME=/tmp
: "${THREAD=thread}"
working=
stopped() { [ -e /tmp/stop ]; }
pad() { printf "%$(($1 * 37 % $2))s" x; }

# Pushes, one after another, with contents of different lengths.
pusher() {
    for n in $(seq "$PUSHES"); do
        content="$1 $n $(pad "$n" 900)"
        [ -z "$TOO_EARLY" ] || tell "early $content"
        if out=$($THREAD push --json --source self --idempotency-key "$1-$n" "$content"); then
            tell "push $out"
        else
            tell "failed push $1 $n"
        fi
    done
}

# The same by one process, ten times as many.
session() {
    mkfifo "/tmp/in-$1" "/tmp/out-$1"
    $THREAD session <"/tmp/in-$1" >"/tmp/out-$1" &
    exec 4>"/tmp/in-$1" 5<"/tmp/out-$1"
    read -r answer <&5
    for n in $(seq $((PUSHES * 10))); do
        content="$1 $n $(pad "$n" 3000)"
        [ -z "$TOO_EARLY" ] || tell "early $content"
        echo "{\"args\":[\"push\",\"--source\",\"self\",\"$content\"]}" >&4
        read -r answer <&5
        tell "session $answer"
    done
}

batches() {
    for n in $(seq "$PUSHES"); do
        size=$((n * 7 % 60 + 2))
        for at in $(seq $size); do
            echo "{\"source\":\"self\",\"content\":\"batch $1 $n of $size: $at\"}"
        done >/tmp/batch-$1
        out=$($THREAD push --batch --json </tmp/batch-$1) && tell "batch $1 $n $size $out"
        last=${out##*:}
        out=$($THREAD ack --json reader "${last%\}}") && tell "ack $out"
    done
}

begin_pushers() {
    for name in p q; do
        pusher "$name" &
        working="$working $!"
    done
}

begin_session() {
    session s &
    working="$working $!"
}

begin_batches() {
    batches b &
    working="$working $!"
}

# Their handlers tell that they are done before they exit with 0.
begin_pool() {
    cat >/tmp/handler.sh <<'X'
while read -r line; do
    id=${line#*:}
    echo "handled $THREAD_CONSUMER ${id%%,*}" >>/tmp/told
done
X
    $THREAD subscribe pool 'sh /tmp/handler.sh' --deliver stdin --concurrency 3 >/dev/null && tell "consumer pool"
    $THREAD subscribe single 'sh /tmp/handler.sh' --deliver stdin >/dev/null && tell "consumer single"
    while ! stopped; do
        sleep 1
        out=$($THREAD info --json) && tell "info $out"
    done &
}

# What else is on the disk when its command says so: dead letters, steps, what was finished under a claim, backups.
keeper() {
    mkdir /mnt/copies
    for n in $(seq "$PUSHES"); do
        out=$($THREAD push --json "bad $n") && tell "push $out"
        event=$($THREAD pop team --claim 10m --limit 1)
        id=${event#*:}
        id=${id%%,*}
        token=${event##*\"claim\":\"}
        token=${token%%\"*}
        $THREAD step "$n" --consumer team --event "$id" --claim "$token" -- echo "done" >/dev/null && tell "step $id $n"
        $THREAD ack team "$id" --claim "$token" >/dev/null && tell "finished team $id"
        for id in $($THREAD dead list bad | sed 's/[^0-9].*//'); do tell "dead bad $id"; done
        out=$($THREAD backup "/mnt/copies/$n" --json) && tell "backup $n $out"
    done
}

begin_keeper() {
    $THREAD subscribe bad 'exit 65' --deliver stdin --filter "content GLOB 'bad *'" >/dev/null && tell "consumer bad"
    $THREAD subscribe team --no-handler --concurrency 4 >/dev/null && tell "consumer team"
    keeper &
    working="$working $!"
}

begin_schedules() {
    $THREAD schedule add tick --every 1s "the clock" --catch-up all >/dev/null && tell "schedule tick"
    for n in $(seq "$PUSHES"); do
        out=$($THREAD push --json --source self --in 2s "later $n") && tell "later $n $out"
    done &
    working="$working $!"
}

# A gateway; each client asks the agent, and tells what it was answered.
begin_gateway() {
    mkdir -p /mnt/root
    thread-serve --root /mnt/root --listen 127.0.0.1:3336 --protocol exec --agent cat \
        >/tmp/gateway 2>&1 &
    until grep -q started /tmp/gateway || ! kill -0 $!; do sleep 0.2; done
    kill -0 $! || tell "failed gateway:" $(cat /tmp/gateway)
    token=$(cat /mnt/root/token)
    tell "token $token"
    for client in 1 2; do
        for n in $(seq "$PUSHES"); do
            session=$(cat /proc/sys/kernel/random/uuid)
            answer=$(wget -q -O- --header "Authorization: Bearer $token" --header "X-Session-Id: $session" \
                --header "Content-Type: application/json" http://127.0.0.1:3336/v1/chat/completions \
                --post-data "{\"model\":\"cat\",\"messages\":[{\"role\":\"user\",\"content\":\"question $client $n\"}]}" 2>/tmp/client-$client) &&
                tell "chat $session $answer" || tell "failed chat:" $(cat /tmp/client-$client; tail -n 3 /tmp/gateway)
        done &
        working="$working $!"
    done
}

# The same in PostgreSQL, whose data has been made already.
begin_postgres() {
    mkdir -p /tmp/postgres
    chown postgres /tmp/postgres
    chmod 777 /tmp
    su postgres -s /bin/sh -c "exec /usr/lib/postgresql/*/bin/postgres -D /mnt/postgres -k /tmp/postgres \
        -c listen_addresses= -c shared_buffers=16MB -c wal_recycle=on -c checkpoint_timeout=30s" >/tmp/server 2>&1 &
    until grep -q 'ready to accept' /tmp/server || ! kill -0 $!; do sleep 0.2; done
    kill -0 $! || tell "failed PostgreSQL:" $(cat /tmp/server)
    export THREAD_DIR='postgres:///postgres?host=/tmp/postgres&user=postgres#inbox'
    thread init "$THREAD_DIR" >/dev/null && tell "server"
    thread subscribe reader --no-handler >/dev/null
    pusher g &
    working="$working $!"
    session t &
    working="$working $!"
}

work() {
    $THREAD init $THREAD_DIR >/dev/null && tell "init"
    $THREAD subscribe reader --no-handler >/dev/null && tell "consumer reader"
    for part in $PARTS; do "begin_$part"; done
    wait $working
    sleep "${REST-1}"
    >/tmp/stop
    tell "over"
    sleep 1000
}
