#!/usr/bin/env bash
# An agent on a thread that answers each message it gets.
#
#   thread guide --handler bash >agent.sh && chmod +x agent.sh
#   thread subscribe agent ./agent.sh --deliver stdin \
#       --filter "type = 'message' AND metadata ->> 'reply_to' IS NULL"
#   thread ask 'What is 2+2?'
#
# The filter leaves out answers, its own and others': agents that answer each other's answers never stop.
set -uo pipefail

# Your work: a message on stdin, its answer on stdout. If it fails, the message comes again later.
answer() {
    printf 'You said: '
    cat
}

# Bash has no JSON parser. Exit 127 stalls the consumer at once, and `thread info` says so.
command -v jq >/dev/null || { echo 'this handler needs jq: install it, then `thread resume`' >&2; exit 127; }

me=internal:dm:default:$THREAD_CONSUMER
while IFS= read -r event <&3; do
    id=$(jq .id <<<"$event") || exit 1
    # A message may be delivered twice, after a crash for instance, but is answered only once.
    mine=$(thread peek --last-event-id "$id" --limit 1 \
        --filter "source = '$me' AND metadata ->> 'reply_to' = $id") || exit 1
    [ -z "$mine" ] || continue
    text=$(jq -j .content <<<"$event" | answer) || exit 1
    printf '%s' "$text" | thread reply --to "$id" --source "$me" --idempotency-key "$me-answers-$id" - || exit 1
done 3<&0 </dev/null # so that nothing in the loop reads the events by mistake
