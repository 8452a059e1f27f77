
# Completes the consumers of the thread that the line names, where one is expected.
_thread_line() {
    local line=${COMP_LINE:0:COMP_POINT} found
    if ! found=$(thread _consumers "$line" 2>/dev/null); then
        _thread "$@"
        return
    fi
    compopt +o default +o bashdefault 2>/dev/null
    COMPREPLY=($found)
    # bash splits words at colons, and replaces only what follows the last one.
    local word=${line##*[[:space:]]}
    if [[ $word == *:* && $COMP_WORDBREAKS == *:* ]]; then
        COMPREPLY=("${COMPREPLY[@]#"${word%"${word##*:}"}"}")
    fi
}
complete -F _thread_line -o bashdefault -o default thread
