#!/bin/sh
# Build an image: `sh deploy/container/build.sh owner|train WHEEL OUT.tar [PACKAGES]` as root on
# Debian 12 with buildah (apt-get install buildah), pip and the wheel of `make dist`.
#
# owner: brokers, holders, orchestrator with its relay, health; without torch. train: all roles.
# OUT.tar is an OCI archive (`podman load -i`, `skopeo copy oci-archive:`). OUT.packages has the
# exact Debian packages: given as PACKAGES they are taken again, while the archive has them.
# The same wheel, constraints.txt and PACKAGES make the same bytes (SOURCE_DATE_EPOCH is the
# last commit's time); of wheels without hashes the registry is trusted, as by `make dist`.
set -eu

kind=$1 wheel=$(realpath "$2") out=$(realpath -m "$3")
here=$(cd "$(dirname "$0")" && pwd)
packages=${4:-$here/debian-packages.txt}
packages=$(realpath "$packages")
source=$(cd "$here/../.." && pwd)
epoch=${SOURCE_DATE_EPOCH:-$(git -C "$source" log -1 --format=%ct)}
case $kind in
    owner) wanted=$wheel ;;
    train) wanted="$wheel[train]" ;;
    *) echo "build: $kind is neither owner nor train" >&2; exit 2 ;;
esac
umask 022
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root

# Debian merges /bin, /lib and /sbin into /usr: links first, which tar keeps.
mkdir -p "$root/usr/bin" "$root/usr/lib" "$root/usr/lib64" "$root/usr/sbin" "$work/debs"
for each in bin lib lib64 sbin; do ln -s "usr/$each" "$root/$each"; done
chmod 777 "$work/debs"
grep -v '^#' "$packages" >"$work/list"
(cd "$work/debs" && xargs apt-get download -qq <"$work/list")
for each in "$work"/debs/*.deb; do
    dpkg-deb --fsys-tarfile "$each" | tar -x -C "$root" --keep-directory-symlink
    dpkg-deb --show --showformat='${Package}=${Version}\n' "$each"
done | sort >"$work/packages"
rm -rf "$root/usr/share/doc" "$root/usr/share/man" "$root/usr/share/lintian" "$root/usr/sbin"/*
# One file of all authorities, as update-ca-certificates makes it.
mkdir -p "$root/etc/ssl/certs"
find "$root/usr/share/ca-certificates" -name '*.crt' | sort | xargs cat >"$root/etc/ssl/certs/ca-certificates.crt"
find "$root/usr" -name 'update-ca-certificates' -delete

python3 -m pip install --quiet --disable-pip-version-check --no-compile --only-binary=:all: \
    --python-version 3.11 --target "$root/usr/local/lib/python3.11/dist-packages" -c "$source/constraints.txt" "$wanted"
find "$root" -name direct_url.json -o -name RECORD | xargs rm -f
rm -rf "$root/usr/local/lib/python3.11/dist-packages/bin"
printf 'sealift:x:65532:65532::/var/lib/sealift:/nonexistent\n' >"$root/etc/passwd"
printf 'sealift:x:65532:\n' >"$root/etc/group"
mkdir -p "$root/usr/share/sealift" "$root/proc" "$root/sys" "$root/dev" "$root/run" "$root/tmp" "$root/var/lib/sealift"
cp "$work/packages" "$root/usr/share/sealift/packages"
chmod 1777 "$root/tmp"
chmod 0700 "$root/var/lib/sealift"
# Neither image has a shell; what could start one is found here and not by an attacker.
if found=$(find "$root" -regex '.*/\(ba\|da\|z\|k\|c\|tc\)?sh' | grep .); then
    echo "build: a shell is in the image: $found" >&2
    exit 1
fi

form="--sort=name --mtime=@$epoch --numeric-owner --format=gnu"
# shellcheck disable=SC2086 # several words
tar -c -C "$root" $form --owner=0 --group=0 --exclude=./var/lib/sealift -f "$work/root.tar" .
# shellcheck disable=SC2086
tar -r -C "$root" $form --owner=65532 --group=65532 -f "$work/root.tar" ./var/lib/sealift
container=$(buildah --storage-driver vfs from scratch)
trap 'buildah --storage-driver vfs rm "$container" >/dev/null; rm -rf "$work"' EXIT
buildah --storage-driver vfs add --quiet "$container" "$work/root.tar" / >/dev/null
buildah --storage-driver vfs config --user 65532:65532 --workingdir /var/lib/sealift --env LANG=C.UTF-8 --env HOME=/var/lib/sealift \
    --env PYTHONDONTWRITEBYTECODE=1 --entrypoint '["/usr/bin/python3.11", "-P", "-m", "sealift"]' --volume /var/lib/sealift \
    --label org.opencontainers.image.title="sealift-$kind" --label org.opencontainers.image.licenses=Apache-2.0 "$container"
buildah --storage-driver vfs commit --quiet --timestamp "$epoch" --format oci "$container" "oci:$work/image:sealift-$kind" >/dev/null
# shellcheck disable=SC2086 # the archive that buildah writes has the time of now in it
tar -c -C "$work/image" $form --owner=0 --group=0 -f "$out" .
cp "$work/packages" "${out%.tar}.packages"
sha256sum "$out"
