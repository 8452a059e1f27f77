
# Completes the consumers of the thread that the line names, where one is expected.
function __thread_consumers
    thread _consumers (commandline -cp) 2>/dev/null
end
complete -c thread -n '__thread_consumers >/dev/null' -f -a '(__thread_consumers)'
complete -c thread -n '__fish_thread_using_subcommand completions' -f -a 'bash fish zsh'
