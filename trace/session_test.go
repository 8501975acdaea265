package trace

// These tests record sessions of one and of several processes, and kill a process that records.

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"tensorcast/event"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/gguf"
	"tensorcast/trace/tables"
)

// target sends the events of the processes of a session. They all read the same model.
type target struct {
	t     *testing.T
	s     *Session
	dir   string
	model *gguf.File
	sc    *script // for its sources
	n     uint32
}

func newTarget(t *testing.T, change func(*RecorderOptions)) *target {
	t.Helper()
	f, err := gguf.Open(llamatest.Model(t, tiny))
	check(t, err)
	x := &target{t: t, dir: filepath.Join(t.TempDir(), "capture"), model: f, sc: &script{t: t, model: f}}
	opts := RecorderOptions{Dir: x.dir, PID: 10, Command: []string{"shell"}}
	change(&opts)
	x.s, err = NewSession(opts)
	check(t, err)
	return x
}

func follow(o *RecorderOptions) { o.Follow = true }

func (x *target) handle(e event.Event) {
	x.t.Helper()
	check(x.t, x.s.Handle(e))
}

// decode makes a process decode a token.
func (x *target) decode(pid int32, tokens int32) {
	x.t.Helper()
	x.n++
	tid := 100 * pid
	x.handle(event.DecodeBegin{PID: pid, TID: tid, Decode: x.n, Tokens: tokens, Context: 1})
	x.handle(seenAt(pid, fileID, x.model.Path))
	x.handle(&event.Op{
		PID: pid, TID: tid, Decode: x.n, Name: "MUL_MAT",
		Sources: []event.Source{x.sc.source("output.weight")},
	})
	x.handle(event.DecodeEnd{PID: pid, TID: tid, Decode: x.n})
}

func TestSessionOfOneProcess(t *testing.T) {
	x := newTarget(t, func(*RecorderOptions) {})
	x.handle(event.ProcessBegin{PID: 10, Command: []string{"llama-cli", "-m", "m.gguf"}})
	x.handle(event.ProcessBegin{PID: 11, Parent: 10, Command: []string{"other"}})
	x.decode(10, 4)
	x.decode(10, 1)
	x.handle(event.ProcessEnd{PID: 10})
	if st := x.s.Status(); st.Steps != 2 || st.Tokens != 1 || st.Rows != 2 || st.Phase != tables.PhaseGeneration ||
		st.Running || st.Processes != 1 || st.Events != 11 {
		t.Errorf("status %+v, want 2 steps, 1 token, 2 rows, 11 events, and no open decode", st)
	}
	metas, err := x.s.Finish(nil)
	if err != nil || len(metas) != 1 || metas[0].Dir != x.dir || metas[0].Command[0] != "llama-cli" ||
		!metas[0].Complete {
		t.Fatalf("descriptions %+v and error %v, want one complete capture of llama-cli in %s", metas, err, x.dir)
	}
	if rows, err := readRows(open(t, x.dir)); err != nil || len(rows) != 2 {
		t.Errorf("%d rows, %v; want 2", len(rows), err)
	}
	x = newTarget(t, func(*RecorderOptions) {})
	if metas, err := x.s.Finish(nil); !errors.Is(err, event.ErrNoDecode) || len(metas) != 1 {
		t.Errorf("%d descriptions, %v; want %v, len(metas) = 1", len(metas), err, event.ErrNoDecode)
	}
}

func TestSessionFollows(t *testing.T) {
	var out bytes.Buffer
	x := newTarget(t, func(o *RecorderOptions) { follow(o); o.CSV = &out })
	x.handle(event.ProcessBegin{PID: 10, Command: []string{"shell"}})
	x.handle(event.ProcessBegin{PID: 11, Parent: 10, Command: []string{"llama-bench"}})
	x.handle(event.ProcessBegin{PID: 12, Parent: 10, Command: []string{"llama-server"}})
	x.handle(event.ProcessBegin{PID: 13, Parent: 12, Command: []string{"grep"}})
	x.handle(event.PageIn{PID: 11, File: fileID, Offset: 0, Bytes: countedPage, Cause: event.CauseFault})
	x.decode(12, 5)
	x.decode(11, 5)
	x.decode(12, 1)
	x.handle(event.ProcessEnd{PID: 13})
	x.handle(event.PageIn{PID: 11, File: fileID, Offset: 0, Bytes: countedPage, Cause: event.CauseReadahead})
	x.handle(event.ProcessEnd{PID: 11})
	x.handle(event.ProcessBegin{PID: 11, Parent: 10, Command: []string{"llama-cli"}}) // the number again
	x.decode(11, 3)
	x.decode(11, 1)
	if st := x.s.Status(); st.Steps != 5 || st.Processes != 2 || st.Tokens != 2 {
		t.Errorf("status %+v; want st.Steps = 5, st.Processes = 2, st.Tokens = 2", st)
	}
	metas, err := x.s.Finish(nil)
	check(t, err)
	var got []string
	for _, m := range metas {
		c := open(t, m.Dir)
		rows, err := readRows(c)
		check(t, err)
		var causes []event.Cause
		for _, r := range pageInsOf(t, c) {
			if !slices.Contains(causes, r.Cause) {
				causes = append(causes, r.Cause)
			}
		}
		got = append(got, fmt.Sprint(filepath.Base(m.Dir), " ", c.Meta.PID, " ", c.Meta.Parent, " ",
			c.Meta.Command[0], " ", len(rows), " ", c.Meta.Complete, " ", causes))
	}
	want := []string{
		"11 11 10 llama-bench 1 true [fault readahead]",
		"11-2 11 10 llama-cli 2 true []",
		"12 12 10 llama-server 2 true [other]", // its own file, read for another process
	}
	if !slices.Equal(got, want) {
		t.Errorf("captures\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if lines := strings.Count(out.String(), "\n"); lines != 1+5 {
		t.Errorf("CSV has %d lines, want one header and 5:\n%s", lines, out.String())
	}
	if _, err := Open(x.dir); !errors.Is(err, ErrNoCapture) || !strings.Contains(err.Error(), "of 3 processes") ||
		!strings.Contains(err.Error(), filepath.Join(x.dir, "11")) {
		t.Errorf("the directory of all: %v; want %v, text with \"of 3 processes\", text with %v", err, ErrNoCapture,
			filepath.Join(x.dir, "11"))
	}
	// Another session takes the place of all that, with and without processes.
	next := newTarget(t, func(o *RecorderOptions) { follow(o); o.Dir = x.dir })
	next.decode(10, 1)
	if _, err := next.s.Finish(nil); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(x.dir, "*")); len(left) != 1 || filepath.Base(left[0]) != "10" {
		t.Errorf("the directory holds %v; want len(left) = 1, filepath.Base(left[0]) = \"10\"", left)
	}
	writeCapture(t, x.dir, testRows(1), nil)
	if left, _ := filepath.Glob(filepath.Join(x.dir, "*")); slices.Contains(left, filepath.Join(x.dir, "10")) {
		t.Errorf("the directory holds %v, want it without 10", left)
	}
	mine := filepath.Join(x.dir, "10", "notes.txt")
	check(t, os.Mkdir(filepath.Dir(mine), 0o755))
	check(t, os.WriteFile(mine, nil, 0o644))
	if _, err := Create(x.dir, &tables.Meta{}, nil); err == nil || !strings.Contains(err.Error(), "notes.txt") {
		t.Errorf("error %v does not name the file in the way", err)
	}
}

func TestSessionOfProcessesThatFail(t *testing.T) {
	x := newTarget(t, follow)
	if metas, err := x.s.Finish(nil); !errors.Is(err, event.ErrNoDecode) || len(metas) != 1 || metas[0].PID != 10 {
		t.Errorf("nobody decoded: %+v, %v; want %v, len(metas) = 1, metas[0].PID = 10", metas, err, event.ErrNoDecode)
	}
	// One process has another layout: the other's capture goes on.
	x = newTarget(t, follow)
	x.decode(11, 4)
	x.handle(event.DecodeBegin{PID: 12, TID: 1, Decode: 1, Tokens: 1})
	x.handle(seenAt(12, fileID, x.model.Path))
	wrong := x.sc.source("output.weight")
	wrong.Type = gguf.F16
	for range 2 {
		x.handle(&event.Op{PID: 12, TID: 1, Decode: 1, Name: "MUL_MAT", Sources: []event.Source{wrong}})
	}
	x.decode(11, 1)
	metas, err := x.s.Finish(nil)
	if !errors.Is(err, event.ErrLayout) || !strings.Contains(err.Error(), "process 12") || len(metas) != 2 {
		t.Fatalf("%d captures, %v; want %v, text with \"process 12\", len(metas) = 2", len(metas), err, event.ErrLayout)
	}
	if metas[0].PID != 12 || metas[0].Complete || metas[1].PID != 11 || metas[1].Rows != 2 || !metas[1].Complete {
		t.Errorf("captures %+v, want an incomplete one of process 12, then a complete one of process 11", metas)
	}
	// Of many the first are told.
	x = newTarget(t, follow)
	for pid := int32(100); pid < 150; pid++ {
		x.handle(event.DecodeBegin{PID: pid, TID: 1, Decode: 1, Tokens: 1})
		x.handle(seenAt(pid, fileID, x.model.Path))
		x.handle(&event.Op{PID: pid, TID: 1, Decode: 1, Name: "MUL_MAT", Sources: []event.Source{wrong}})
	}
	if _, err := x.s.Finish(nil); !errors.Is(err, event.ErrLayout) || strings.Count(err.Error(), "\n") != maxErrors ||
		!strings.HasSuffix(err.Error(), "and 42 more processes failed") {
		t.Errorf("error %v, want %d errors in full, and that 42 more processes failed", err, maxErrors)
	}
	// Without Follow it ends the capture.
	x = newTarget(t, func(*RecorderOptions) {})
	x.decode(10, 4)
	x.handle(event.DecodeBegin{PID: 10, TID: 1, Decode: 9, Tokens: 1})
	if err := x.s.Handle(&event.Op{PID: 10, TID: 1, Decode: 9, Sources: []event.Source{wrong}}); !errors.Is(err,
		event.ErrLayout) {
		t.Errorf("error %v; want %v", err, event.ErrLayout)
	}
}

func TestCountersAndTarget(t *testing.T) {
	x := newTarget(t, func(o *RecorderOptions) {
		o.Counters = func() (event.Counters, error) { return event.Counters{OpsLost: 1, PagesLost: 2, Misses: 4}, nil }
		o.Target = func(pid int) event.TargetInfo {
			return event.TargetInfo{GGMLVersion: fmt.Sprint("0.9.", pid), GGMLCommit: "abc"}
		}
	})
	x.decode(10, 1)
	if _, err := x.s.Finish(nil); err != nil {
		t.Fatal(err)
	}
	m := open(t, x.dir).Meta
	if m.Counters.Lost() != 7 || m.Target != (event.TargetInfo{GGMLVersion: "0.9.10", GGMLCommit: "abc"}) {
		t.Errorf("counters %+v, target %+v; want m.Counters.Lost() = 7, m.Target = %v", m.Counters, m.Target,
			(event.TargetInfo{GGMLVersion: "0.9.10", GGMLCommit: "abc"}))
	}
}

// A decode whose beginning was lost looks like none. The error says that it may be so.
func TestNoDecodeOfLost(t *testing.T) {
	for _, follow := range []bool{false, true} {
		var counters event.Counters
		x := newTarget(t, func(o *RecorderOptions) {
			o.Follow = follow
			o.Counters = func() (event.Counters, error) { return counters, nil }
		})
		counters.OthersLost = 7
		_, err := x.s.Finish(nil)
		if !errors.Is(err, event.ErrNoDecode) || !errors.Is(err, event.ErrLost) || !strings.Contains(err.Error(), "7") {
			t.Errorf("follow %v: error %v; want %v, and that 7 %v", follow, err, event.ErrNoDecode, event.ErrLost)
		}
		if strings.Contains(err.Error(), "\n") {
			t.Errorf("error %v; want one line", err)
		}
	}
}

// envVictim makes the test binary capture without end, until it is killed.
const envVictim = "TENSORCAST_TEST_VICTIM"

func TestMain(m *testing.M) {
	if dir := os.Getenv(envVictim); dir != "" {
		fmt.Fprintln(os.Stderr, victim(dir, os.Args[1]))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// victim captures made-up events of the model at path until it is killed. All tokens are alike, and
// it rotates often.
func victim(dir, path string) error {
	f, err := gguf.Open(path)
	if err != nil {
		return err
	}
	r, err := NewRecorder(RecorderOptions{Dir: dir, RotateBytes: 256 << 10, RotateKeep: 3, Detail: tables.DetailOpIO})
	if err != nil {
		return err
	}
	clock := time.Now()
	r.now = func() time.Time { clock = clock.Add(time.Second); return clock } // everything is flushed at once
	if err := r.Handle(seenAt(0, fileID, path)); err != nil {
		return err
	}
	fmt.Println("begun")
	for i := uint32(1); ; i++ {
		events := []event.Event{event.DecodeBegin{TID: 7, Decode: i, Tokens: 1}}
		for j := range f.Tensors {
			t := &f.Tensors[j]
			src := event.Source{
				Name: t.Name, InFile: true, File: fileID, Offset: t.Offset, Type: t.Type,
				NE: [4]int64{1, 1, 1, 1},
			}
			seq := uint64(i)*1000 + uint64(j)
			events = append(events,
				event.PageIn{File: fileID, Offset: t.Offset / 4096 * 4096, Bytes: 4096, Decode: i, Seq: seq},
				&event.Op{
					TID: 7, Decode: i, Seq: seq, Name: "MUL_MAT", Sources: []event.Source{src},
					Buffers: []event.Buffer{{Name: fmt.Sprint("node_", i)}},
				})
		}
		for _, e := range append(events, event.DecodeEnd{TID: 7, Decode: i}) {
			if err := r.Handle(e); err != nil {
				return err
			}
		}
	}
}

// A tracer may be killed at any moment. The tables then consist of whole batches, and capture.json
// and the structure are whole.
func TestKilled(t *testing.T) {
	exe, err := os.Executable()
	check(t, err)
	model := llamatest.Model(t, tiny)
	rotated := false
	for i := range 8 {
		dir := filepath.Join(t.TempDir(), "capture")
		cmd := exec.Command(exe, model)
		cmd.Env = append(os.Environ(), envVictim+"="+dir)
		cmd.Stderr = os.Stderr
		stdout, err := cmd.StdoutPipe()
		check(t, err)
		check(t, cmd.Start())
		if _, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
			t.Errorf("it did not begin: %v", err)
		}
		time.Sleep(time.Duration(1+40*i) * time.Millisecond)
		check(t, cmd.Process.Kill())
		_ = cmd.Wait() // it was killed

		c := open(t, dir)
		if c.Meta.Complete || c.Meta.Models[0].Path != model {
			t.Errorf("description %+v, want an incomplete capture of %s", c.Meta, model)
		}
		rotated = rotated || c.Meta.Segments.Deleted > 0
		rows, err := readRows(c)
		check(t, err)
		for j, a := range rows {
			if j > 0 && a.Step != rows[j-1].Step && a.Step != rows[j-1].Step+1 {
				t.Fatalf("step %d follows step %d, want the same or the next", a.Step, rows[j-1].Step)
			}
		}
		steps, pages, buffers := stepsOf(t, c), pageInsOf(t, c), buffersOf(t, c)
		t.Logf("killed: %d rows, %d steps, %d page-ins, %d buffers, segments %+v", len(rows), len(steps), len(pages),
			len(buffers), c.Meta.Segments)
	}
	if !rotated {
		t.Log("no run came as far as to delete a segment")
	}
}
