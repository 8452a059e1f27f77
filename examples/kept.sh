#!/bin/sh
# A handler that is kept, with jq: thread subscribe counter ./kept.sh --deliver ndjson

# Your work: the content of an event on stdin. Exit 65 means that the event can never be handled.
handle() {
    order=$(jq -r '"\(.item) \(.count)"' 2>/dev/null) || return 65
    printf '%s\n' "$order" >>total.txt
}

command -v jq >/dev/null || exit 127
while IFS= read -r event; do
    id=${event#*:}
    id=${id%%,*}
    printf '%s' "$event" | jq -r .content | handle
    case $? in
    0) echo "{\"ack\":$id}" ;;
    65) echo "{\"reject\":$id,\"error\":\"this is no order\"}" ;;
    *) echo "{\"nack\":$id}" ;;
    esac
done
