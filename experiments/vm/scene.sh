#!/bin/sh
# A scene for the machine of run.sh: a llama.cpp in a group of cgroup v2 that holds a share of its model,
# without prefetchd and with it.
#
#	experiments/vm/run.sh experiments/vm/scene.sh [--limit max|high|both] [MEGABYTES [TOKENS [PERCENT...]]]
#
#	--limit max    the group may not have more (memory.max)
#	--limit high   above it, the kernel takes pages back and delays who asks for more (memory.high)
#	--limit both   memory.high, and memory.max a tenth of the model above it
#
# For each PERCENT of the model there is a run without prefetchd and one with it. It prints the time of each
# run, whether the text is that of the first run, which has no limit, what prefetchd says, and what the
# kernel counted in the group: memory.events and memory.pressure. A table of all runs is in the end. It ends
# with 1 if a text differs or a process was killed. An emulated processor needs seconds for a token of a
# small model.
set -eu
bin=$(cd "$(dirname "$0")/../../bin" && pwd)
kind=max
if [ "${1:-}" = --limit ]; then
	kind=${2:-}
	shift; shift || true
fi
case $kind in
max | high | both) ;;
*) echo "scene.sh: --limit must be max, high or both, not '$kind'" >&2; exit 2 ;;
esac
megabytes=${1:-48} tokens=${2:-12}
shift $(($# < 2 ? $# : 2))
[ $# -gt 0 ] || set -- 85
cd "${TMPDIR:?this runs in the machine of run.sh}"
"$bin/lab" getllama --link llama > /dev/null
[ -e model.gguf ] || "$bin/lab" synth -o model.gguf --size "${megabytes}MB" --type Q8_0 --seed 1
size=$(stat -c %s model.gguf)
group=/sys/fs/cgroup/scene
failed=0
cat > table << 'END'
| | limit | seconds | tok/s | high | max | oom_kill | some, s | full, s | highest full avg10 | same text |
|---|---|---|---|---|---|---|---|---|---|---|
END

# set_limit BYTES limits the group, in the way that was asked for; max: it does not.
set_limit() {
	if [ "$1" = max ]; then
		return
	fi
	case $kind in
	max) echo "$1" > $group/memory.max ;;
	high) echo "$1" > $group/memory.high ;;
	both)
		echo $(($1 + size / 10)) > $group/memory.max
		echo "$1" > $group/memory.high ;;
	esac
}

# find_event NAME prints how often the kernel counted something in the group, and find_stall NAME for how many
# seconds some or all of its tasks have waited for memory.
find_event() { sed -n "s/^$1 //p" $group/memory.events; }
find_stall() { sed -n "s/^$1 .*total=//p" $group/memory.pressure | awk '{printf "%.2f", $1 / 1e6}'; }

# look keeps the most that the group used, with page cache (most) and without (own), and the largest share of ten
# seconds in which all of its tasks waited for memory (full, in hundredths of a percent). It starts no process: an
# emulated processor needs a tenth of a second for each.
look() {
	read -r current < $group/memory.current
	while read -r name value; do
		[ "$name" != file ] || now=$((current - value))
	done < $group/memory.stat
	while read -r name value rest; do
		[ "$name" != full ] || avg=${value#avg10=}
	done < $group/memory.pressure
	while read -r name value; do
		[ "$name" != high ] || high=$value
	done < $group/memory.events
	avg=${avg%.*}${avg#*.}
	avg=${avg#0} && avg=${avg#0} # otherwise it would be octal
	[ "$now" -le $own ] || own=$now
	[ "$current" -le $most ] || most=$current
	[ "${avg:-0}" -le $full ] || full=$avg
}

# run_scene NAME LIMIT HELPER runs the model in a new group, and sets own to the most that the group used
# besides page cache.
run_scene() {
	mkdir $group
	set_limit "$2"
	echo 0 > $group/memory.swap.max 2> /dev/null || true
	sync
	echo 3 > /proc/sys/vm/drop_caches
	began=$(date +%s)
	sh -c 'echo 0 > "$0/cgroup.procs"; exec "$@"' $group \
		llama/llamarun -m model.gguf -p a -n "$tokens" -t 1 --no-repack > run.json 2> run.log &
	target=$!
	helper=''
	if [ -n "$3" ]; then
		"$bin/prefetchd" --verbose --wait --pid $target 2>&1 | sed 's/^/    /' &
		helper=$!
	fi
	own=0 most=0 full=0 looks=0
	while kill -0 $target 2> /dev/null; do
		look
		looks=$((looks + 1))
		if [ $((looks % 8)) = 0 ]; then
			echo "    after $(($(date +%s) - began)) s: $current bytes used, memory.events high $high," \
				"full avg10 $avg hundredths of %"
			[ -z "$helper" ] || "$bin/prefetchd" status --pid $target 2>&1 | sed 's/^/    /' || true
		fi
		sleep 2
	done
	status=0
	wait $target || status=$?
	seconds=$(($(date +%s) - began))
	[ -z "$helper" ] || wait $helper || true
	echo "$1: limit $2 ($kind), $seconds s, exit status $status"
	echo "    used at most: $most bytes, of which no page cache: $own"
	echo "    memory.events: $(tr '\n' ' ' < $group/memory.events)"
	echo "    memory.pressure: $(tr '\n' ' ' < $group/memory.pressure)"
	echo "    io.stat: $(cat $group/io.stat)"
	same=yes
	grep -o '"tokens":\[[^]]*\]' run.json > text || { echo "    no text:"; tail -n 3 run.log; failed=1; }
	[ -e free.text ] || cp text free.text
	if cmp -s free.text text; then
		echo "    the text is that without a limit"
	else
		echo "    THE TEXT DIFFERS"
		failed=1 same=no
	fi
	[ "$status" = 0 ] || failed=1
	speed=$(sed -n 's/.*"tok_s":\([0-9.]*\).*/\1/p' run.json)
	echo "| $1 | $2 | $seconds | $speed | $(find_event high) | $(find_event max) | $(find_event oom_kill)" \
		"| $(find_stall some) | $(find_stall full) | $((full / 100)) % | $same |" >> table
	rmdir $group
}

rm -f free.text
run_scene free max ''
used=$own # by the target; prefetchd's own memory takes its part of the rest
for percent in "$@"; do
	limit=$((used + size * percent / 100))
	run_scene "plain, $percent %" $limit ''
	run_scene "prefetchd, $percent %" $limit yes
done
cat table
exit $failed
