# Runs a server that can be killed and started again, and does not outlive its owner.
#
# usage: sh supervised.sh DIR DISK COMMAND...
#
# Each line of standard input starts the server in the background, and its process id is printed. At
# the end of the input the server is killed and DIR is removed; the kernel closes the input however
# the owner ends. With a DISK, a size such as 512m, the server's data in DIR/db is on a disk of that
# size, which only this script and its server see.
dir=$1
disk=$2
shift 2

if [ -n "$disk" ]; then
    mount -t tmpfs -o "size=$disk" distlock "$dir/db" || exit 1
fi
server=
while read -r _; do
    "$@" >>"$dir/server.log" 2>&1 </dev/null &
    server=$!
    echo "$server"
done
[ -z "$server" ] || kill -9 "$server"
wait
[ -z "$disk" ] || umount "$dir/db"
rm -rf "$dir"
