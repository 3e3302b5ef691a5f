# Runs a server that must not outlive its owner.
#
# usage: sh guard.sh DIR SIGNAL COMMAND...
#
# The owner has the other end of this script's standard input. Each line is a command: `start` the
# server, or a signal for it and its children. Each is answered by a line with the server's process
# id. When the owner ends, even by SIGKILL, the kernel closes the pipe. Then the server gets SIGNAL,
# and DIR is removed with its data.
dir=$1
signal=$2
shift 2

children() {
    cat /proc/"$server"/task/*/children 2>/dev/null
}

all() {
    for child in $(children); do
        kill -"$1" "$child" 2>/dev/null
    done
    kill -"$1" "$server" 2>/dev/null
}

# Waits for the end of a process that was killed, which a busy machine delays.
gone() {
    while grep -qs '^State:[[:space:]]*[^ZX]' /proc/"$1"/status; do
        sleep 0.01
    done
}

server=
while read -r order; do
    case $order in
    start)
        "$@" >>"$dir/server.log" 2>&1 </dev/null &
        server=$!
        ;;
    KILL)
        # All at once, as a power failure does. A server that is stopped starts no other child while
        # its children are killed. One that outlived it would keep its shared memory, and the server
        # would refuse to start again.
        kill -STOP "$server" 2>/dev/null
        children=$(children)
        all KILL
        wait "$server" 2>/dev/null
        for child in $children; do
            gone "$child"
        done
        ;;
    *) all "$order" ;;
    esac
    echo "$server"
done
if [ -n "$server" ]; then
    all CONT
    kill -"$signal" "$server" 2>/dev/null
    wait "$server" 2>/dev/null
fi
rm -rf "$dir"
