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

all() {
    for child in $(cat /proc/"$server"/task/*/children 2>/dev/null); do
        kill -"$1" "$child" 2>/dev/null
    done
    kill -"$1" "$server" 2>/dev/null
}

server=
while read -r order; do
    case $order in
    start)
        "$@" >>"$dir/server.log" 2>&1 </dev/null &
        server=$!
        ;;
    KILL)
        # All at once, as a power failure does: a child that outlives the server delays its next
        # start.
        all KILL
        wait "$server" 2>/dev/null
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
