package main

// This file tests prefetchd with a target that lies: whatever the target's calls report, prefetchd
// ends, prints little, and uses little memory.

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

var allLies = flag.Bool("lies", false, "run every scenario of the lying target")

// startLiar starts the lying target, which waits until begin is called.
func startLiar(t *testing.T, args []string) (target *exec.Cmd, begin func()) {
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

// helpLiar returns a prefetchd for the lying target, with room for a part of its model.
func helpLiar(t *testing.T, target *exec.Cmd) *exec.Cmd {
	return exec.CommandContext(t.Context(), prefetchd, "--verbose", "--no-join",
		"--budget", "1200KB", "--always", "--pid", strconv.Itoa(target.Process.Pid))
}

// isAttached reports whether prefetchd's verbose log has its last probe.
func isAttached(stderr string) bool { return strings.Contains(stderr, "ggml_backend_buffer_free") }

// TestLies tries each scenario in three ways: the target lies at once (early), after a few correct
// tokens (late), and about another mapping than the known one (remap).
func TestLies(t *testing.T) {
	testenv.NeedRoot(t)
	f := capturetest.New(t)
	few := map[string]string{
		"control":         "late early remap",
		"wrap":            "early remap",
		"end_of_file":     "early",
		"overlap":         "remap",
		"negative_nb":     "remap",
		"huge_rows":       "remap",
		"truncated":       "remap",
		"unended_threads": "late",
		"flood_files":     "late",
		"flood_contexts":  "remap",
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
				target, begin := startLiar(t, f.Args(capturetest.NewModel(t), scenario, 150*time.Millisecond, words...))
				o := capturetest.Run(t, helpLiar(t, target), func(_ int, stderr string) bool {
					if !isAttached(stderr) {
						return false
					}
					begin()
					return true
				})
				t.Log(o.String())
				o.Check(t)
				if scenario == "control" &&
					(o.Status != 0 || !strings.Contains(o.Stderr, "of 1.3 MiB in memory")) {
					t.Errorf("status %d:\n%s", o.Status, o.Stderr)
				}
			})
		}
	}
}

// TestLiarIsLeft checks that prefetchd ends when it gets a signal, whatever the target is doing.
func TestLiarIsLeft(t *testing.T) {
	testenv.NeedRoot(t)
	f := capturetest.New(t)
	quick := map[string]syscall.Signal{"control": syscall.SIGTERM, "flood_nodes": syscall.SIGINT,
		"unended_threads": syscall.SIGTERM}
	for _, scenario := range f.Scenarios(t) {
		for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
			if !*allLies && quick[scenario] != sig || scenario == "killed" {
				continue
			}
			t.Run(scenario+" "+sig.String(), func(t *testing.T) {
				target, begin := startLiar(t, f.Args(capturetest.NewModel(t), scenario, time.Minute, "wait"))
				var begun, asked time.Time
				o := capturetest.Run(t, helpLiar(t, target), func(pid int, stderr string) bool {
					switch {
					case begun.IsZero() && isAttached(stderr):
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
				if asked.IsZero() { // prefetchd noticed the lie before, and ended
					t.Logf("%s\n%s", o.String(), o.Stderr)
				} else if long := time.Since(asked); long > 10*time.Second {
					t.Errorf("prefetchd ended %v after the signal, want at most 10 s", long)
				} else {
					t.Logf("ended after %v; %s", long.Round(time.Millisecond), o.String())
				}
				o.Check(t)
			})
		}
	}
}
