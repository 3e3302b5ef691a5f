# Runs a server that does not outlive its owner.
#
# usage: sh guard.sh DATA_DIR COMMAND...
#
# The owner holds the other end of this script's standard input and never writes to it. However the
# owner ends, SIGKILL included, the kernel closes that end; the server is then killed and DATA_DIR
# removed. Prints the server's last error lines and exits with its status.
data=$1
shift

# Background commands get /dev/null as standard input, so the owner's pipe moves to descriptor 3.
exec 3<&0 </dev/null
"$@" >"$data/mongod.log" 2>&1 3<&- &
server=$!
(
    read -r _ <&3
    kill -9 "$server"
) 2>/dev/null &
watcher=$!

wait "$server"
status=$?
kill "$watcher" 2>/dev/null
{ grep -e '"s":"[EF]"' "$data/mongod.log" || tail -n 3 "$data/mongod.log"; } 2>/dev/null |
    tail -n 3 | cut -c 1-600
rm -rf "$data"
exit "$status"
