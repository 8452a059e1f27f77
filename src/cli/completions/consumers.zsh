# Completes the consumers of the thread that the line names.
_thread_consumers() {
    local -a found
    found=(${(f)"$(thread _consumers "$LBUFFER" 2>/dev/null)"})
    compadd -a found
}
