package main

// These tests look at what is done about what the target's own faults read around themselves.

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"tensorcast/experiments/llama"
	"tensorcast/internal/proc"
	"tensorcast/internal/testenv"
	"tensorcast/prefetch/readahead"
)

// diskReadahead is that of the disk with the rig's model.
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

// random says whether the target has advised that it reads its model at random.
func (r *rig) random() bool {
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

// A target that prefetchd starts has a small readahead by the file with which it loads its model. The disk's stays what it is.
func TestReadaheadByFile(t *testing.T) {
	r := newMixture(t, 30)
	before := r.diskReadahead()
	s := r.execSummary(r.exec("--always", "--readahead", "fd"), 0)
	if a := s.Readahead; a == nil || a.Way != readahead.ByFile || a.After != readahead.SmallKiB<<10 || a.Before == 0 || a.Closed {
		t.Errorf("told %+v", a)
	}
	if after := r.diskReadahead(); after != before {
		t.Errorf("the disk's readahead is %s, before %s", after, before)
	}
	got, err := llama.ParseResult(r.stdout.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if plain := plainRun(r); got.Text != plain.Text {
		t.Errorf("text %q, plain %q", got.Text, plain.Text)
	}
}

// So it is for a dense model, unless that is not wanted.
func TestReadaheadOfADenseModel(t *testing.T) {
	r := newRig(t, 0.6, 30)
	for choice, way := range map[readahead.Choice]readahead.Way{readahead.Leave: "", readahead.Auto: readahead.ByFile} {
		r.stdout.Reset()
		s := r.execSummary(r.exec("--always", "--readahead", string(choice)), 0)
		if a := s.Readahead; a == nil || a.Way != way || way != "" && (a.After != readahead.SmallKiB<<10 || !a.Undone && a.Why == "") {
			t.Errorf("%s: told %+v", choice, a)
		}
		got, err := llama.ParseResult(r.stdout.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		if plain := plainRun(r); got.Text != plain.Text {
			t.Errorf("%s: text %q, plain %q", choice, got.Text, plain.Text)
		}
	}
}

// One that had loaded its model before is left as it is, unless a thread of it may be made to advise the mapping; that is undone if prefetchd is killed.
func TestReadaheadLate(t *testing.T) {
	r := newMixture(t, 100)
	r.options.Repeat = 1000 // until it is ended
	r.start()
	testenv.WaitFor(t, "the target to close its file", func() bool { // it has mapped it, and may load it still
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
	testenv.WaitFor(t, "the target to advise its mapping", r.random)
	if err := h.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = h.Wait()
	testenv.WaitFor(t, "the guardian to undo it", func() bool { return !r.random() })
	again := r.help("--readahead", "fd")
	r.waitHelping(again)
	if err := again.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if a := again.summary(t).Readahead; a == nil || a.Way != "" || !a.Closed {
		t.Errorf("told %+v", a)
	}
}

// A line says what was done, and what to do if that was nothing.
func TestAboutReadahead(t *testing.T) {
	for want, told := range map[string]*readahead.Outcome{
		"": nil,
		"the target's faults read up to 124 KiB around themselves, 16 MiB before (fd); undone":                                                                         {Way: readahead.ByFile, Before: 16 << 20, After: 124 << 10, Undone: true},
		"the target's faults read up to 4.0 KiB around themselves, 16 MiB before (inject); not undone: X":                                                              {Way: readahead.ByInject, Before: 16 << 20, After: 4 << 10, Why: "X"},
		"what the target's faults read around themselves was left as it is: X: start it with --exec, or attach with --wait before it loads; or see --readahead inject": {Closed: true, Why: "X"},
	} {
		if got := aboutReadahead(told); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if got := aboutReadahead(&readahead.Outcome{Why: "it is little"}); got != "" {
		t.Errorf("%q", got)
	}
}
