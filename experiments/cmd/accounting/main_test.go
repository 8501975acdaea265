package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"tensorcast/event"
	"tensorcast/experiments/opsource"
)

func TestUsage(t *testing.T) {
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"--ops", "0"}, "--ops 0"},
		{[]string{"--rate", "-1"}, "--rate -1"},
		{[]string{"more"}, "more"},
		{[]string{"--no-such-flag"}, "unknown flag"},
	} {
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), test.args, &stdout, &stderr)
		if code != 2 || !strings.HasPrefix(stderr.String(), "accounting: ") || !strings.Contains(stderr.String(), test.want) || strings.Count(stderr.String(), "\n") != 1 || stdout.Len() > 0 {
			t.Errorf("%q: exit %d, %q, want one line with %q", test.args, code, stderr.String(), test.want)
		}
	}
}

func TestFailureIsOneLine(t *testing.T) {
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), []string{"--tracer", "/nonexistent/tracer"}, &stdout, &stderr)
	want := "no such file"
	if os.Geteuid() != 0 {
		want = "needs root"
	}
	if code != 1 || !strings.Contains(stderr.String(), want) || strings.Count(stderr.String(), "\n") != 1 {
		t.Errorf("exit %d, %q", code, stderr.String())
	}
}

func TestPrint(t *testing.T) {
	a := &opsource.Account{Count: opsource.Count{Ops: 1000, Threads: 2}, Counters: event.Counters{Hits: 2000}}
	for _, o := range []options{{}, {json: true}} {
		var out bytes.Buffer
		if err := o.print([]result{{Name: "a", Account: a}}, &out); err != nil || !strings.Contains(out.String(), "2") {
			t.Errorf("%v: %s", err, out.String())
		}
		err := o.print([]result{{Name: "a", Account: a}, {Name: "b", Account: a, Wrong: "hits"}}, &out)
		if err == nil || !strings.Contains(err.Error(), "1 of 2 runs do not hold; b: hits") {
			t.Errorf("%v", err)
		}
	}
}

func TestLoss(t *testing.T) {
	o := options{rate: 1000}
	account := func(lost uint64, rate float64) *opsource.Account {
		return &opsource.Account{Count: opsource.Count{Rate: rate}, Counters: event.Counters{OpsLost: lost}}
	}
	for _, test := range []struct {
		lost       uint64
		rate       float64
		none, loss string
	}{{0, 999, "", "nothing was lost"}, {3, 999, "3 events", ""}, {0, 500, "only 500", "nothing was lost"}} {
		a := account(test.lost, test.rate)
		if got := o.nothingLost(a); (got == "") != (test.none == "") || !strings.Contains(got, test.none) {
			t.Errorf("%+v: %q", test, got)
		}
		if got := somethingLost(a); (got == "") != (test.loss == "") || !strings.Contains(got, test.loss) {
			t.Errorf("%+v: %q", test, got)
		}
	}
}
