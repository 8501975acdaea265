package forecast

// This file tests the words.

import (
	"strings"
	"testing"
	"time"

	"tensorcast/loadflags"
)

// The sentence says first what there is to win, and the table what would change it.
func TestWords(t *testing.T) {
	m := measured()
	m.One, m.All = &Gather{3, time.Millisecond}, &Gather{24, 5 * time.Millisecond}
	mixture := mixturePass(76, 0.4, 24, 128, 8)
	for name, tc := range map[string]struct {
		pass   *Pass
		memory int64 // MiB
		helps  bool
		says   []string
	}{
		"dense": {densePass(764), 400, true, []string{
			"prefetchd would give ", " tok/s instead of 0.", "; this dense model has 764 MiB that tokens read, in memory for 400 MiB",
			"1.5 times the memory", "a disk twice as fast", "2 tokens a pass", "--load-mode mmap", "-t 2",
			"--spec-type",
			"computing: ", "first token of a short prompt",
		}},
		"mixture": {mixture, 1500, true, []string{
			"prefetchd would give ", "this mixture of experts has ", "experts: 128 in each of 24 layers",
			"from routers that choose at random to recorded sessions",
		}},
		"it fits":      {densePass(764), 4000, false, []string{"all of it fits in memory: ", "and without", "nothing"}},
		"hardly any":   {densePass(764), 10, false, []string{"there is no memory for the model: "}},
		"a fast fault": {densePass(764), 60, false, []string{"prefetchd would change little: "}},
	} {
		machine := m
		if name == "a fast fault" {
			machine.Touched = 2.7e9
		}
		memory := Memory{tc.memory * mib, tc.memory * mib, "--ram", 512}
		v := Judge("m.gguf", tc.pass, machine, memory, routingOf(tc.pass))
		v.Start = v.StartWith(loadflags.Copies{}, 8)
		var b strings.Builder
		if err := v.Document().WriteText(&b); err != nil {
			t.Fatal(err)
		}
		if v.Helps != tc.helps || !strings.HasPrefix(b.String(), v.Line+"\n\n") {
			t.Errorf("%s: helps: %v\n%s", name, v.Helps, b.String())
		}
		for _, part := range tc.says {
			if !strings.Contains(b.String(), part) {
				t.Errorf("%s: no %q in\n%s", name, part, b.String())
			}
		}
		if said := b.String(); strings.Contains(said, "e+") || strings.Contains(said, "NaN") ||
			strings.Contains(said, "Inf") {
			t.Errorf("%s: a number for machines in\n%s", name, b.String())
		}
	}
}

func routingOf(p *Pass) *Routing {
	if p.Experts == nil {
		return nil
	}
	return RoutingOf(p.Experts)
}

// Copies are advised against where there is no room for them, and left where there is.
func TestStartWith(t *testing.T) {
	copies := loadflags.Copies{Bytes: 700 * mib, Types: []string{"Q4_K"}, Layout: true}
	for memory, want := range map[int64]string{400: "--no-repack", 4000: "(no --no-repack)"} {
		v := Judge("m", densePass(764), measured(), Memory{memory * mib, memory * mib, "host", 512}, nil)
		all := v.StartWith(copies, 1)
		if len(all) == 0 || all[0].Flag != want || !strings.Contains(all[0].Why, "700 MiB of Q4_K") ||
			!strings.Contains(all[0].Why, loadflags.LayoutGain) {
			t.Errorf("with %d MiB: %+v, want %s first", memory, all, want)
		}
		for _, a := range all {
			if strings.HasPrefix(a.Flag, "-t") && a.Flag != "-t 1" {
				t.Errorf("%s on one core", a.Flag)
			}
		}
	}
}

// Numbers have two digits, and no exponents.
func TestRange(t *testing.T) {
	for want, r := range map[string]Range{
		"0.83 to 1.3": {Low: 0.832, High: 1.26}, "10 to 46": {Low: 10.4, High: 45.6},
		"99 to 12000": {Low: 98.7, High: 12345},
		"2.0":         {Low: 2, High: 2}, "0 to 100": {High: 99.6}, "0.0012 to 1.0": {Low: 0.00123, High: 1},
	} {
		if got := r.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
