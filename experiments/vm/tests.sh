#!/bin/sh
# Runs, in the machine of run.sh, the tests of the packages that depend on the kernel most: all of bin/vm,
# which `make vm` compiles, or those that are named.
#
#	experiments/vm/run.sh experiments/vm/tests.sh [internal/cgroup ...]
#
# It prints what failed or was skipped, and ends with 1 if a package failed.
set -eu
cd "$(dirname "$0")/../.."
top=$(pwd)
[ $# -gt 0 ] || set -- $(cd bin/vm && find . -name '*.test' | sed 's,^\./,,; s,\.test$,,' | sort)
failed=0
for package in "$@"; do
	echo "== $package"
	# Without -test.v the reasons of skips are not printed.
	(cd "$package" && "$top/bin/vm/$package.test" -test.v -test.timeout 30m > "${TMPDIR:-/tmp}/out" 2>&1) &&
		status=0 || status=$?
	grep -v -e '^=== ' -e '^ *--- PASS' "${TMPDIR:-/tmp}/out" || true
	[ "$status" = 0 ] || { failed=1; echo "== $package failed: exit status $status"; }
done
exit $failed
