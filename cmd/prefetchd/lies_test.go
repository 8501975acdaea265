package main

// These tests help a target that lies: whatever it says, prefetchd ends, is brief, and takes little.

import (
	"bufio"
	"flag"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"tensorcast/capture/capturetest"
	"tensorcast/internal/testenv"
)

var allLies = flag.Bool("lies", false, "let the lying target run every scenario")

// liar starts a scenario; begin lets it run.
func liar(t *testing.T, args []string) (target *exec.Cmd, begin func()) {
	t.Helper()
	target = exec.CommandContext(t.Context(), args[0], args[1:]...)
	in, err := target.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := target.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := target.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = target.Process.Kill() // it may have ended
		_ = target.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("%q, %v", line, err)
	}
	return target, func() {
		if _, err := in.Write([]byte("go\n")); err != nil {
			t.Error(err)
		}
	}
}

// attached says whether prefetchd has told, verbosely, of its last probe.
func attached(said string) bool { return strings.Contains(said, "ggml_backend_buffer_free") }

// Each scenario is tried in three ways: lying at once, after a few good tokens, and about another mapping than the one that is known.
func TestLies(t *testing.T) {
	testenv.NeedRoot(t)
	f := capturetest.New(t)
	few := map[string]string{
		"control": "late early remap", "wrap": "early remap", "end_of_file": "early", "overlap": "remap", "negative_nb": "remap", "huge_rows": "remap", "truncated": "remap", "unended_threads": "late",
		"flood_files": "late", "flood_contexts": "remap",
	}
	for _, scenario := range f.Scenarios(t) {
		for _, way := range []string{"late", "early", "remap"} {
			if !*allLies && !slices.Contains(strings.Fields(few[scenario]), way) {
				continue
			}
			t.Run(scenario+" "+way, func(t *testing.T) {
				words := []string{"wait"}
				if way != "late" {
					words = append(words, way)
				}
				target, begin := liar(t, f.Args(capturetest.NewModel(t), scenario, 150*time.Millisecond, words...))
				o := capturetest.Run(t, exec.CommandContext(t.Context(), prefetchd, "--verbose", "--no-join", "--budget", "1200KB", "--always", "--pid", strconv.Itoa(target.Process.Pid)), func(_ int, said string) bool {
					if !attached(said) {
						return false
					}
					begin()
					return true
				})
				t.Log(o.String())
				o.Check(t)
				if scenario == "control" && (o.Status != 0 || !strings.Contains(o.Stderr, "of 1.3 MiB that each token reads")) {
					t.Errorf("status %d:\n%s", o.Status, o.Stderr)
				}
			})
		}
	}
}

// Asked to end, prefetchd does, whatever the target is at.
func TestLiarIsLeft(t *testing.T) {
	testenv.NeedRoot(t)
	f := capturetest.New(t)
	quick := map[string]syscall.Signal{"control": syscall.SIGTERM, "flood_nodes": syscall.SIGINT, "unended_threads": syscall.SIGTERM}
	for _, scenario := range f.Scenarios(t) {
		for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
			if !*allLies && quick[scenario] != sig || scenario == "killed" {
				continue
			}
			t.Run(scenario+" "+sig.String(), func(t *testing.T) {
				target, begin := liar(t, f.Args(capturetest.NewModel(t), scenario, time.Minute, "wait"))
				var begun, asked time.Time
				o := capturetest.Run(t, exec.CommandContext(t.Context(), prefetchd, "--verbose", "--no-join", "--budget", "1200KB", "--always", "--pid", strconv.Itoa(target.Process.Pid)), func(pid int, said string) bool {
					switch {
					case begun.IsZero() && attached(said):
						begun = time.Now()
						begin()
					case !begun.IsZero() && time.Since(begun) > 500*time.Millisecond:
						asked = time.Now()
						if err := syscall.Kill(pid, sig); err != nil {
							t.Error(err)
						}
						return true
					}
					return false
				})
				if asked.IsZero() { // it was contradicted before
					t.Logf("%s\n%s", o.String(), o.Stderr)
				} else if long := time.Since(asked); long > 10*time.Second {
					t.Errorf("it ended %v later", long)
				} else {
					t.Logf("ended after %v; %s", long.Round(time.Millisecond), o.String())
				}
				o.Check(t)
			})
		}
	}
}
