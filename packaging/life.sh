#!/bin/sh
# Tests the life of a .deb on a machine with systemd (machine.sh makes one). The package is
# installed, and its services help a llama.cpp that has too little memory. Then the package is
# installed again, and removed while a service helps. Results are printed. The first unexpected one
# ends the script.
#
#	life.sh DEB MODEL LIMIT LLAMARUN
#
# LIMIT is the memory of the server's service in bytes, less than it needs. The script changes the
# machine: packages and services.
set -eu
[ $# = 4 ] && [ -d /run/systemd/system ] || { sed -n 's/^#\t/usage: /p' "$0" >&2; exit 2; }
deb=$1 model=$2 limit=$3 llamarun=$4
step() { echo "== $*"; }
fail() {
	echo "life: $*" >&2
	systemctl --no-pager --full status 'tensorcast*' server >&2 || true
	journalctl --no-pager -n 40 -u 'tensorcast*' -u server >&2 || true
	exit 1
}
until_true() { # SECONDS WHAT COMMAND...: waits until the command succeeds
	left=$(($1 * 5)) what=$2
	shift 2
	until "$@" > /dev/null 2>&1; do
		left=$((left - 1))
		[ $left -gt 0 ] || fail "not within time: $what"
		sleep 0.2
	done
}
# The disk of the model, whose readahead must stay. Other devices come and go while tests run beside this one.
device=$(stat -c %d "$model")
disk=/sys/dev/block/$((device >> 8 & 0xfff)):$((device & 0xff | device >> 12 & 0xfff00))
# list_state lists everything that a package must not leave: files other than those of dpkg and the
# journal, units, processes, and settings of the kernel.
list_state() {
	(
		cd "${LAYER:-/}"
		find . -xdev \( -path ./var/lib/dpkg -o -path ./var/log -o -path ./var/cache/man \
			-o -path ./proc -o -path ./sys -o -path ./tmp \) -prune -o ! -type d -print
	) | sort
	find /run -not -path /run/server.out -not -path '/run/systemd/*' -not -path '/run/log/*' \
		-not -path '/run/credentials*' | sort
	systemctl list-unit-files --no-legend --no-pager | awk '{print $1, $2}'
	systemctl list-units --all --plain --no-legend --no-pager 'tensorcast*'
	ps -A -o comm= | grep -xE 'prefetchd|tracer|llamarun' || true
	cat "$disk/bdi/read_ahead_kb" "$disk/../bdi/read_ahead_kb" 2> /dev/null || true # a partition has that of its disk
	# Rounded, because the locked memory of other programs changes a little.
	awk '/Mlocked|Unevictable/ {print $1, int($2 / 65536 + 0.5) * 64 " MiB"}' /proc/meminfo
	find /sys/fs/cgroup -type d -name '*prefetchd*'
}

cat > /run/systemd/system/server.service << EOF
[Service]
ExecStart=$llamarun -m $model -p "The page cache" -n 800 -t 1 --no-repack --stream
StandardOutput=append:/run/server.out
MemoryMax=$limit
KillSignal=SIGINT
SuccessExitStatus=SIGINT
OOMPolicy=continue
EOF
systemctl daemon-reload
# The model is dropped from the page cache before the server starts, because a page is charged to
# the first who reads it.
start_server() {
	: > /run/server.out
	sync "$model"
	dd if="$model" iflag=nocache count=0 status=none
	systemctl start server
}
tokens() { sed -n 's/.*"id":\([0-9]*\),.*/\1/p' /run/server.out | head -n "${1:-1000}"; }
has_tokens() { [ "$(tokens | wc -l)" -ge "$1" ]; }
pace() { # tokens per second in the second half of the first N
	sed -n 's/.*"end_ns":\([0-9]*\),.*/\1/p' /run/server.out |
		awk -v n="$1" 'NR == n / 2 {a = $1} NR == n {printf "%.2f", n / 2 * 1e9 / ($1 - a)}'
}

list_state > before
step "a server in $((limit >> 20)) MiB, by itself"
start_server
until_true 120 "16 tokens without help" has_tokens 16
plain=$(pace 16)
tokens 16 > plain.tokens
systemctl stop server
echo "$plain tokens per second"

step "dpkg --install"
dpkg --install "$deb" > dpkg.log 2>&1 || { cat dpkg.log >&2; fail "dpkg --install"; }
for c in ggufmap tracer analyze prefetchd; do "$c" --version | head -n 1; done
ggufmap --summary "$model" | head -n 3
[ "$(systemctl is-enabled tensorcast-prefetchd)" = disabled ] ||
	fail "the service is enabled after the installation: nobody asked for that"
tracer doctor > doctor.log 2>&1 || { cat doctor.log; fail "tracer doctor"; }

step "systemctl enable --now tensorcast-prefetchd"
systemctl enable --now tensorcast-prefetchd 2>&1
start_server
# prefetchd gives memory back for two seconds whenever other programs are short of it.
until_true 120 "status that says that it helps, and keeps something" sh -c 'prefetchd status --json > status.json
	grep "\"phase\": \"helping\"" status.json && grep "\"held_bytes\": [1-9]" status.json'
until_true 120 "32 tokens with help" has_tokens 32
prefetchd status
prefetchd status --metrics > metrics.txt
grep -q '^tensorcast_prefetchd_' metrics.txt || fail "status --metrics"
helped=$(pace 32)
tokens 16 | cmp - plain.tokens || fail "the text with help differs from that without"
# The paces are not checked, because the load beside this test is different each time.
echo "$helped tokens per second, $(awk -v a="$plain" -v b="$helped" 'BEGIN {printf "%.1f", b / a}') times as fast"

step "the server ends, the service goes on"
systemctl stop server
until_true 20 "status without a target" sh -c 'prefetchd status | grep "waiting for processes that compute with ggml"'
systemctl is-active tensorcast-prefetchd
step "it reads its configuration anew"
prefetchd config --check /etc/tensorcast/prefetchd.yaml
echo 'keep-warm: true' >> /etc/tensorcast/prefetchd.yaml
systemctl reload tensorcast-prefetchd
until_true 20 "the log of what has changed" sh -c 'journalctl --no-pager -u tensorcast-prefetchd |
	grep "setting=keep-warm before=false now=true from=/etc/tensorcast/prefetchd.yaml"'
[ "$(systemctl show --property=NRestarts --value tensorcast-prefetchd)" = 0 ] || fail "the service was started again"
systemctl disable --now tensorcast-prefetchd 2>&1

step "systemctl enable --now tensorcast-prefetchd@server, beside one service"
start_server
systemctl enable --now tensorcast-prefetchd@server 2>&1
until_true 60 "status beside the server" sh -c 'prefetchd status | grep keeping'
prefetchd status
step "an upgrade leaves it running"
dpkg --install "$deb" > dpkg.log 2>&1 || { cat dpkg.log >&2; fail "dpkg --install, again"; }
[ "$(systemctl is-active tensorcast-prefetchd@server)" = active ] || fail "the upgrade ended it"
grep -q '^keep-warm: true$' /etc/tensorcast/prefetchd.yaml || fail "the upgrade changed the configuration"
systemctl stop server
until_true 20 "its end with the server" sh -c '! systemctl is-active tensorcast-prefetchd@server'
[ "$(systemctl show --property=Result --value tensorcast-prefetchd@server)" = success ] ||
	fail "it failed when the server ended"

step "dpkg --purge, while it helps"
start_server
until_true 60 "status, with the server started again" sh -c 'prefetchd status | grep keeping'
dpkg --purge tensorcast > dpkg.log 2>&1 || { cat dpkg.log >&2; fail "dpkg --purge"; }
n=$(tokens | wc -l)
until_true 60 "tokens after the package was removed" has_tokens $((n + 16))
tokens 16 | cmp - plain.tokens || fail "the text after the package was removed differs"
systemctl stop server
list_state > after
diff before after || fail "the purged package left something (>), or took something away (<)"
echo "nothing is left"
