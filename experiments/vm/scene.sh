#!/bin/sh
# A scene for the machine of run.sh: a llama.cpp in a group of cgroup v2 that holds a share of its model,
# without prefetchd and with it.
#
#	experiments/vm/run.sh experiments/vm/scene.sh [MEGABYTES [TOKENS [PERCENT]]]
#
# It prints the time of each run, whether the text is that of the first run, which has no limit, what
# prefetchd says, and what the kernel counted in the group: memory.events and memory.pressure. It ends with
# 1 if a text differs or a process was killed. An emulated processor needs seconds for a token of a small
# model.
set -eu
bin=$(cd "$(dirname "$0")/../../bin" && pwd)
megabytes=${1:-48} tokens=${2:-12} percent=${3:-85}
cd "${TMPDIR:?this runs in the machine of run.sh}"
"$bin/lab" getllama --link llama > /dev/null
[ -e model.gguf ] || "$bin/lab" synth -o model.gguf --size "${megabytes}MB" --type Q8_0 --seed 1
group=/sys/fs/cgroup/scene
failed=0

# run_scene NAME LIMIT HELPER runs the model in a new group, and sets own to the most that the group used
# besides page cache.
run_scene() {
	mkdir $group
	echo "$2" > $group/memory.max
	echo 0 > $group/memory.swap.max 2> /dev/null || true
	sync
	echo 3 > /proc/sys/vm/drop_caches
	began=$(date +%s)
	sh -c 'echo 0 > "$0/cgroup.procs"; exec "$@"' $group \
		llama/llamarun -m model.gguf -p a -n "$tokens" -t 1 --no-repack > "$1.json" 2> "$1.log" &
	target=$!
	helper=''
	if [ -n "$3" ]; then
		"$bin/prefetchd" --verbose --wait --pid $target 2>&1 | sed 's/^/    /' &
		helper=$!
	fi
	own=0
	while kill -0 $target 2> /dev/null; do
		now=$(($(cat $group/memory.current) - $(sed -n 's/^file //p' $group/memory.stat)))
		[ "$now" -le $own ] || own=$now
		sleep 1
	done
	status=0
	wait $target || status=$?
	[ -z "$helper" ] || wait $helper || true
	echo "$1: limit $2, $(($(date +%s) - began)) s, exit status $status, at most $own bytes used besides page cache"
	echo "    memory.events: $(tr '\n' ' ' < $group/memory.events)"
	echo "    memory.pressure: $(tr '\n' ' ' < $group/memory.pressure)"
	echo "    io.stat: $(cat $group/io.stat)"
	grep -o '"tokens":\[[^]]*\]' "$1.json" > "$1.text" || { echo "    no text:"; tail -n 3 "$1.log"; failed=1; }
	if cmp -s free.text "$1.text"; then
		echo "    the text is that without a limit"
	else
		echo "    THE TEXT DIFFERS"
		failed=1
	fi
	[ "$status" = 0 ] || failed=1
	rmdir $group
}

run_scene free max ''
size=$(stat -c %s model.gguf)
limit=$((own + size * percent / 100)) # of which prefetchd's own memory takes its part
run_scene plain $limit ''
run_scene prefetchd $limit yes
exit $failed
