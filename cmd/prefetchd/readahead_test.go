package main

// This file tests --readahead, which limits the pages that the target's own faults read around
// themselves.

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"tensorcast/experiments/llama"
	"tensorcast/internal/proc"
	"tensorcast/internal/testenv"
	"tensorcast/prefetch"
	"tensorcast/prefetch/readahead"
)

// diskReadahead returns the readahead of the disk that has the rig's model.
func (r *rig) diskReadahead() string {
	r.t.Helper()
	id, err := proc.FileOf(r.options.Model)
	if err != nil {
		r.t.Fatal(err)
	}
	text, err := os.ReadFile(fmt.Sprintf("/sys/class/bdi/%d:%d/read_ahead_kb", id.Dev>>20, id.Dev&(1<<20-1)))
	if err != nil {
		r.t.Skipf("the disk has no readahead of its own: %v", err)
	}
	return string(text)
}

// advisedRandom reports whether the target's mapping of its model has the advice MADV_RANDOM.
func (r *rig) advisedRandom() bool {
	r.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", r.target.Process.Pid))
	if err != nil {
		r.t.Fatal(err)
	}
	_, after, found := strings.Cut(string(text), r.options.Model+"\n")
	_, flags, flagged := strings.Cut(after, "\nVmFlags:")
	if !found || !flagged {
		r.t.Fatal("the target does not map its model")
	}
	flags, _, _ = strings.Cut(flags, "\n")
	return strings.Contains(flags, " rr ")
}

// TestReadaheadByFile checks that a target that prefetchd starts gets a small readahead through the
// open file with which it loads its model, and that the disk's readahead does not change.
func TestReadaheadByFile(t *testing.T) {
	testenv.NeedReadahead(t)
	r := newMixture(t, 30)
	before := r.diskReadahead()
	s := r.execSummary(r.exec("--always", "--readahead", "fd"), 0)
	if a := s.Readahead; a == nil || a.Way != readahead.ByFile ||
		a.After != readahead.SmallKiB<<10 || a.Before == 0 || a.Closed {
		t.Errorf("the summary's readahead is %+v", a)
	}
	if after := r.diskReadahead(); after != before {
		t.Errorf("the disk's readahead is %s, want %s as before", after, before)
	}
	got, err := llama.ParseResult(r.stdout.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if plain := plainRun(r); got.Text != plain.Text {
		t.Errorf("the text is %q, want %q", got.Text, plain.Text)
	}
}

// TestReadaheadOfADenseModel checks the same for a dense model, with --readahead auto and leave.
func TestReadaheadOfADenseModel(t *testing.T) {
	testenv.NeedQuiet(t)
	testenv.NeedReadahead(t)
	r := newRig(t, 0.6, 30)
	plain := plainRun(r)
	for choice, way := range map[readahead.Choice]readahead.Way{readahead.Leave: "", readahead.Auto: readahead.ByFile} {
		var h *helper
		var s prefetch.Summary
		for range 3 { // under load the target can have closed its file before prefetchd takes it
			r.stdout.Reset()
			dropFromCache(t, r.options.Model) // of the run before, which may have been in another group
			h = r.exec("--always", "-v", "--readahead", string(choice))
			s = r.execSummary(h, 0)
			if way == "" || s.Readahead == nil || !strings.Contains(s.Readahead.Why, "has closed the file") {
				break
			}
		}
		if a := s.Readahead; a == nil || a.Way != way ||
			way != "" && (a.After != readahead.SmallKiB<<10 || !a.Undone && a.Why == "") {
			t.Errorf("%s: the summary's readahead is %+v: %s", choice, a, h.stderr.String())
		}
		got, err := llama.ParseResult(r.stdout.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		if got.Text != plain.Text {
			t.Errorf("%s: the text is %q, want %q", choice, got.Text, plain.Text)
		}
	}
}

// TestReadaheadLate checks that a target that has loaded its model is not changed, except with
// --readahead inject, and that this is undone if prefetchd is killed.
func TestReadaheadLate(t *testing.T) {
	testenv.NeedReadahead(t)
	r := newMixture(t, 100)
	r.options.Repeat = 1000 // it runs until it is killed
	r.start()
	testenv.WaitFor(t, "the target to close its file", func() bool { // it has mapped it, but may still load it
		p, err := proc.Open(r.target.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		names, err := p.Descriptors()
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if name == r.options.Model {
				return false
			}
		}
		return true
	})
	h := r.help("--readahead", "inject")
	testenv.WaitFor(t, "the target to advise its mapping", r.advisedRandom)
	if err := h.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = h.Wait()
	testenv.WaitFor(t, "the guardian to undo it", func() bool { return !r.advisedRandom() })
	again := r.help("--readahead", "fd")
	r.waitHelping(again)
	if err := again.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if a := again.summary(t).Readahead; a == nil || a.Way != "" || !a.Closed {
		t.Errorf("the summary's readahead is %+v", a)
	}
}

// TestAboutReadahead checks the line about readahead in the summary.
func TestAboutReadahead(t *testing.T) {
	for _, tc := range []struct {
		outcome *readahead.Outcome
		want    string
	}{
		{nil, ""},
		{&readahead.Outcome{Why: "it is little"}, ""},
		{
			&readahead.Outcome{Way: readahead.ByFile, Before: 16 << 20, After: 124 << 10, Undone: true},
			"the target's faults read up to 124 KiB around themselves, 16 MiB before (fd); undone",
		},
		{
			&readahead.Outcome{Way: readahead.ByInject, Before: 16 << 20, After: 4 << 10, Why: "X"},
			"the target's faults read up to 4.0 KiB around themselves, 16 MiB before (inject); not undone: X",
		},
		{
			&readahead.Outcome{Closed: true, Why: "X"},
			"what the target's faults read around themselves was left as it is: X: " +
				"start it with --exec, or attach with --wait before it loads; or see --readahead inject",
		},
	} {
		if got := aboutReadahead(tc.outcome); got != tc.want {
			t.Errorf("%+v: got %q, want %q", tc.outcome, got, tc.want)
		}
	}
}
