#!/bin/sh
# Installs, uses, upgrades and removes lockkeeper in the clean root that it runs in: `cargo xtask dist check`.
# Arguments: the kind of package, the package, and one that takes its place.
set -eu
kind=$1 package=$2 newer=$3
config=/etc/lockkeeper/config.toml
manual=/usr/share/man/man1
export HOME=/root LC_ALL=C.UTF-8

fail() {
  echo "$kind: $*" >&2
  exit 1
}

case $kind in
  deb)
    install() { dpkg --install "$1"; }
    remove() { dpkg --remove lockkeeper; }
    ;;
  rpm)
    # A root of Debian: its rpm wants to be asked twice, and knows nothing of what dpkg installed.
    install() { rpm --force-debian --nodeps --upgrade "$1"; }
    remove() { rpm --force-debian --nodeps --erase lockkeeper; }
    ;;
  wheel)
    python3 -m venv /tmp/environment
    PATH=/tmp/environment/bin:$PATH
    install() { pip install --quiet --no-index --force-reinstall "$1"; }
    remove() { pip uninstall --quiet --yes lockkeeper; }
    ;;
esac

! command -v lockkeeper > /dev/null || fail "the root is not clean"
install "$package"
[ "$(lockkeeper run demo -- echo hello)" = hello ] || fail "the command does not run under a lock"
if [ "$kind" = wheel ]; then
  python3 -c 'import lockkeeper
with lockkeeper.lock("demo") as hold:
    hold.check()' || fail "the Python package does not hold a lock"
else
  for file in $config /usr/lib/sysusers.d/lockkeeper.conf /usr/lib/systemd/system/lockkeeper.service \
    /usr/lib/systemd/system/lockkeeper-job@.service /usr/lib/systemd/system/lockkeeper-job@.timer \
    $manual/lockkeeper.1.gz $manual/lockkeeper-run.1.gz /usr/share/bash-completion/completions/lockkeeper \
    /usr/share/zsh/site-functions/_lockkeeper /usr/share/fish/vendor_completions.d/lockkeeper.fish; do
    [ -s "$file" ] || fail "$file is not installed"
  done
  gzip --test $manual/lockkeeper*.1.gz
  [ "$(stat --format=%a:%U /usr/bin/lockkeeper $config | tr '\n' ' ')" = "755:root 644:root " ] || fail "wrong modes"
  lockkeeper config > /dev/null || fail "the settings as installed are not valid"
  echo '# changed here' >> $config
fi

# A hold that begins before the upgrade and ends after it. The two pipes say when.
mkfifo /tmp/held /tmp/end
lockkeeper run long -- sh -c 'echo held > /tmp/held; read -r word < /tmp/end; echo "ended by $word"' > /tmp/output &
hold=$!
read -r word < /tmp/held
install "$newer"
status=0
lockkeeper run long --try -- echo taken || status=$?
kill -0 $hold 2> /dev/null || fail "the hold ended during the upgrade"
[ $status = 75 ] || fail "the lock was not held through the upgrade: status $status"
lockkeeper show long > /dev/null || fail "the newer command does not show the hold"
[ "$kind" = wheel ] || grep --quiet 'changed here' $config || fail "the upgrade replaced $config"
echo upgrade > /tmp/end
wait $hold || fail "the hold ended with $?"
[ "$(cat /tmp/output)" = "ended by upgrade" ] || fail "the command under the hold did not end well"
lockkeeper run long --try -- true || fail "the lock is not free after the hold"

remove
hash -r
! command -v lockkeeper > /dev/null || fail "the command is still there"
case $kind in
  deb)
    grep --quiet 'changed here' $config || fail "the removal deleted changed settings"
    dpkg --purge lockkeeper
    [ ! -e $config ] || fail "the purge left $config"
    ;;
  rpm) grep --quiet 'changed here' $config.rpmsave || fail "the removal deleted changed settings" ;;
esac
[ "$kind" = wheel ] || [ ! -e $manual/lockkeeper.1.gz ] || fail "the manual pages are still there"
echo "$kind: installed, used, upgraded under a hold, removed"
