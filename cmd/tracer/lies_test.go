package main

// The tests of this file trace a target that sends wrong data. Whatever it sends, tracer ends,
// prints little and takes little memory.

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"tensorcast/capture/capturetest"
	"tensorcast/internal/cli"
	"tensorcast/internal/testenv"
	"tensorcast/trace"
)

// scenarioTime is how long a scenario goes on.
const scenarioTime = 150 * time.Millisecond

var allLies = flag.Bool("lies", false, "let the lying target run every scenario in every detail")

// details are the ways to trace a target.
var details = []struct {
	name  string
	flags []string
}{
	{"op", nil},
	{"graph", []string{"--detail", "graph"}},
	{"op+io", []string{"--detail", "op+io"}},
	{"buffers", []string{"--buffers"}},
	{"follow", []string{"--follow"}},
	{"preload", []string{"--preload"}},
}

// contradictions are scenarios in which the target contradicts its model's file. The values are
// parts of tracer's error.
var contradictions = map[string]string{
	"huge_ne":           `"output.weight"`,
	"huge_nb":           `"output.weight"`,
	"large_ne":          `"output.weight"`,
	"negative_ne":       `"output.weight"`,
	"negative_nb":       `"output.weight"`,
	"wrap":              "which ends after",
	"bad_type":          "type(9999)",
	"other_type":        "type F32",
	"odd_address":       "byte 12345",
	"metadata":          "byte 0",
	"end_of_file":       "no tensor",
	"other_offset":      "blk.0.attn_q.weight",
	"overlap":           "which ends after 138992 bytes",
	"other_name":        "it has token_embd.weight at byte",
	"unterminated_name": "no name",
	"escape_name":       `\x1b[2J`,
	"invalid_name":      `\xff\xfe`,
	"empty_name":        `""`,
	"huge_op":           "5000",
	"negative_op":       "4294967295",
}

// opContradictions are scenarios that are noticed where ops are traced, and not only graphs.
var opContradictions = map[string]string{"huge_experts": "slice 1073741824", "huge_rows": "slice 2147483647"}

func TestLies(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	f := capturetest.New(t)
	// Without -lies, one scenario of each kind is run, with these details.
	few := map[string]string{
		"control": "op graph op+io buffers follow preload", "huge_ne": "op preload", "other_offset": "graph",
		"other_name": "op+io", "escape_name": "op", "huge_rows": "op", "negative_experts": "op",
		"unmapped_nodes": "graph", "long_graph": "graph", "flood_nodes": "op+io", "flood_files": "op",
		"flood_ids": "graph", "unended_threads": "op", "huge_tokens": "op", "truncated": "op", "unmap": "op",
		"forks": "follow", "wild_sources": "buffers",
	}
	for _, scenario := range f.Scenarios(t) {
		for _, d := range details {
			if !*allLies && !slices.Contains(strings.Fields(few[scenario]), d.name) {
				continue
			}
			t.Run(scenario+" "+d.name, func(t *testing.T) {
				t.Parallel()
				m, out := capturetest.NewModel(t), filepath.Join(t.TempDir(), "capture")
				args := append(append([]string{"-o", out, "--no-probe"}, d.flags...), "--")
				args = append(args, f.Args(m, scenario, scenarioTime)...)
				o := capturetest.Run(t, exec.CommandContext(t.Context(), tracerBinary, args...), nil)
				t.Log(o.String())
				o.Check(t)
				want := contradictions[scenario]
				switch {
				case want == "" && d.name != "graph" && d.name != "preload":
					want = opContradictions[scenario]
				case scenario == "unterminated_name" && d.name == "preload": // the library cuts the name
					want = ""
				}
				switch {
				case want != "" && (o.Status != cli.Failure || !strings.Contains(o.Stderr, want) ||
					!strings.Contains(o.Stderr, "layout")):
					t.Errorf("status %d, want %d and an error with %q:\n%s", o.Status, cli.Failure, want, o.Stderr)
				case scenario == "control" && o.Status != 0:
					t.Errorf("status %d, want 0:\n%s", o.Status, o.Stderr)
				}
				if d.name != "follow" {
					checkPlausible(t, out, scenario == "control")
				}
			})
		}
	}
}

// Damaged libraries beside the program, which it does not load, do not prevent tracing.
func TestDamagedLibraries(t *testing.T) {
	testenv.NeedRoot(t)
	f := capturetest.New(t)
	good, err := os.ReadFile(filepath.Join(f.Dir, "libggml-cpu.so"))
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 40 {
		bad := slices.Clone(good)
		switch {
		case i == 0: // the names are in a section that does not exist
			binary.LittleEndian.PutUint32(bad[findNameLink(t, good):], 1<<20)
		case i == 1:
			bad = nil
		case i < 10:
			bad = bad[:len(bad)*i/10]
		case i < 20: // section headers
			for j := len(bad) - 64*20; j < len(bad); j++ {
				bad[j] ^= byte(r.IntN(256) & r.IntN(256))
			}
		default:
			for range 1 << (i - 20) / 4 {
				bad[r.IntN(len(bad))] = byte(r.IntN(256))
			}
		}
		name := fmt.Sprintf("libggml-damaged-%d.so", i)
		if err := os.WriteFile(filepath.Join(f.Dir, name), bad, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	out := filepath.Join(t.TempDir(), "capture")
	args := append([]string{"--no-probe", "-o", out, "--"}, f.Args(capturetest.NewModel(t), "control", scenarioTime)...)
	o := capturetest.Run(t, exec.CommandContext(t.Context(), tracerBinary, args...), nil)
	t.Log(o.String())
	o.Check(t)
	if o.Status != 0 || strings.Count(o.Stderr, "cannot be read") != 1 {
		t.Errorf("status %d, want 0 and one warning:\n%s", o.Status, o.Stderr)
	}
	checkPlausible(t, out, true)
}

// findNameLink returns the offset at which a library says in which section the names of its symbols
// are.
func findNameLink(t *testing.T, library []byte) uint64 {
	t.Helper()
	f, err := elf.NewFile(bytes.NewReader(library))
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(f.Sections, func(s *elf.Section) bool { return s.Type == elf.SHT_DYNSYM })
	return binary.LittleEndian.Uint64(library[40:]) + uint64(i)*64 + 40 // e_shoff, sh_link
}

// checkPlausible reads a capture of the fake target's model. No row may exceed its tensor, and no
// number may be negative.
func checkPlausible(t *testing.T, dir string, whole bool) {
	t.Helper()
	c, err := trace.Open(dir)
	if err != nil && !whole && errors.Is(err, trace.ErrNoCapture) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	rows, names := 0, map[string]bool{}
	for a, err := range c.Accesses() {
		if err != nil {
			t.Fatal(err)
		}
		row := &c.Structure[a.Tensor]
		if a.Bytes < 0 || a.Bytes > row.Size || a.Offset < row.Offset ||
			a.Offset+a.Bytes > row.Offset+row.Size || a.Duration < -1 {
			t.Fatalf("%+v is not within its tensor %+v", a, row)
		}
		for _, e := range a.Experts {
			if e < 0 || e >= capturetest.Experts {
				t.Fatalf("expert %d, want 0 to %d", e, capturetest.Experts-1)
			}
		}
		rows++
		names[row.Name] = true
	}
	for r, err := range c.Routes() {
		if err != nil || r.Expert < 0 || r.Expert >= capturetest.Experts || r.Slot < 0 || r.Position < 0 {
			t.Fatalf("route %+v, %v; want an existing expert, and no negative number", r, err)
		}
	}
	for s, err := range c.Steps() {
		isNegative := func(id int32) bool { return id < 0 }
		if err != nil || s.Tokens < -1 || s.Tokens > 1<<24 || len(s.TokenIDs) > 1<<21 ||
			slices.ContainsFunc(s.TokenIDs, isNegative) {
			t.Fatalf("a step of %d tokens with %d ids, %v", s.Tokens, len(s.TokenIDs), err)
		}
	}
	for b, err := range c.Buffers() {
		if err != nil || b.Bytes < 0 || b.Bytes >= 1<<46 {
			t.Fatalf("buffer %+v, %v; want 0 to 2^46 bytes", b, err)
		}
	}
	if whole && (rows == 0 || len(names) != len(c.Structure)) {
		t.Errorf("%d rows of %d tensors, the model has %d", rows, len(names), len(c.Structure))
	}
}

// When tracer is told to end, it does so whatever the target is doing. It removes its probes first.
func TestLiarIsLeft(t *testing.T) {
	testenv.NeedRoot(t)
	f := capturetest.New(t)
	for _, scenario := range f.Scenarios(t) {
		for i, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
			quick := map[string]int{"flood_nodes": 0, "long_shapes": 1, "unended_threads": 0}
			if which, ok := quick[scenario]; !*allLies && (!ok || which != i) || scenario == "killed" {
				continue
			}
			t.Run(scenario+" "+sig.String(), func(t *testing.T) {
				m := capturetest.NewModel(t)
				args := f.Args(m, scenario, time.Minute)
				target := exec.CommandContext(t.Context(), args[0], args[1:]...)
				if err := target.Start(); err != nil {
					t.Fatal(err)
				}
				defer func() {
					_ = target.Process.Kill() // it may have ended
					_ = target.Wait()
				}()
				var asked time.Time
				begun := time.Now()
				detail := []string{"op", "graph", "op+io"}[len(scenario)%3]
				cmd := exec.CommandContext(t.Context(), tracerBinary, "-o", filepath.Join(t.TempDir(), "capture"),
					"--detail", detail, "--pid", strconv.Itoa(target.Process.Pid))
				o := capturetest.Run(t, cmd, func(pid int, _ string) bool {
					if time.Since(begun) < time.Second {
						return false
					}
					asked = time.Now()
					if err := syscall.Kill(pid, sig); err != nil {
						t.Error(err)
					}
					return true
				})
				if asked.IsZero() { // the target contradicted its model before
					t.Logf("%s\n%s", o.String(), o.Stderr)
				} else if later := time.Since(asked); later > 10*time.Second {
					t.Errorf("tracer ended %v after the signal, want at most 10s", later)
				} else {
					t.Logf("ended after %v; %s", later.Round(time.Millisecond), o.String())
				}
				o.Check(t)
			})
		}
	}
}
