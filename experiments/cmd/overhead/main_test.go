package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"tensorcast/experiments/overhead"
)

func TestUsage(t *testing.T) {
	for _, test := range []struct {
		args []string
		want string
	}{
		{nil, "no model"},
		{[]string{"-m", "x", "--pairs", "5"}, "--pairs 5"},
		{[]string{"-m", "x", "--pairs", "7"}, "an even number"},
		{[]string{"-m", "x", "--tokens", "0"}, "--tokens 0"},
		{[]string{"-m", "x", "--threads", "0"}, "--threads 0"},
		{[]string{"-m", "x", "--settle", "-1s"}, "--settle -1s"},
		{[]string{"-m", "x", "--observer", "=c"}, "a name of its own"},
		{[]string{"-m", "x", "--observer", "op", "--observer", "op"}, "a name of its own"},
		{[]string{"-m", "x", "--observer", "strace"}, "give its command"},
		{[]string{"-m", "x", "--observer", "a=b {target}"}, "takes --whole"},
		{[]string{"--no-such-flag"}, "unknown flag"},
		{[]string{"trap", "x"}, "--pid"},
		{[]string{"trap", "--pid", "1"}, "accepts 1 arg"},
	} {
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), test.args, &stdout, &stderr)
		if code != 2 || !strings.HasPrefix(stderr.String(), "overhead: ") || !strings.Contains(stderr.String(), test.want) || strings.Count(stderr.String(), "\n") != 1 || stdout.Len() > 0 {
			t.Errorf("%q: exit %d, %q, want one line with %q", test.args, code, stderr.String(), test.want)
		}
	}
}

func TestFailureIsOneLine(t *testing.T) {
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), []string{"--", "false"}, &stdout, &stderr)
	want := "the target ended"
	if os.Geteuid() != 0 {
		want = "needs root"
	}
	if code != 1 || !strings.Contains(stderr.String(), want) || strings.Count(stderr.String(), "\n") != 1 {
		t.Errorf("exit %d, %q", code, stderr.String())
	}
}

func TestObservers(t *testing.T) {
	o := options{observers: []string{"none", "op", "trap", "mine=strace -p {pid} -o x=y"}}
	o.driver.Model, o.driver.Tokens, o.driver.Threads, o.Pairs = "m", 1, 1, overhead.LeastPairs
	if err := o.complete(); err != nil {
		t.Fatal(err)
	}
	if got := o.Observers; got[0].Command != "" || !strings.Contains(got[1].Command, "tracer --pid {pid} --detail op") || !strings.HasSuffix(got[2].Command, " trap --pid {pid} {ggml}") || got[3] != (overhead.Observer{Name: "mine", Command: "strace -p {pid} -o x=y"}) {
		t.Errorf("%+v", got)
	}
}
