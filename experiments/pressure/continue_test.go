package pressure

// This file tests series that were interrupted and go on, and variants that are left out at a setting.

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
)

// keptAfter measures a series for some runs, and returns what was kept of it after each, as a process that was killed
// then leaves it.
func keptAfter(t *testing.T, cfg Config, runs int) (kept map[int][]byte) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	kept = map[int][]byte{}
	cfg.Keep = func(r *Report) (err error) {
		if kept[len(r.Runs)], err = json.Marshal(r); len(r.Runs) == runs {
			cancel()
		}
		return err
	}
	if _, err := measure(ctx, cfg, 0); !errors.Is(err, context.Canceled) {
		t.Fatalf("%v, want that the series is cancelled", err)
	}
	return kept
}

// A series that goes on makes the runs that are missing, in the order that the whole series has, and no others.
func TestContinue(t *testing.T) {
	cfg := scripted(t)
	cfg.Repeat = 2
	cfg.Settings = []Setting{{X: 0.7}, {X: 0.5}}
	cfg.Variants = []Variant{{Name: "plain"}, {Name: "other", Flags: "other"}, {Name: "again"}}
	cfg.LeftOut = []LeftOut{{"other", 1, "It makes no sense there."}}
	want := []string{"plain 0 0", "other 0 0", "again 0 0", "again 0 1", "other 0 1", "plain 0 1", "plain 1 0",
		"again 1 0", "again 1 1", "plain 1 1"}
	all := keptAfter(t, cfg, 7)
	for _, after := range []int{4, 7} {
		kept := all[after]
		if !strings.Contains(string(kept), `"interrupted":true`) {
			t.Errorf("what was kept does not say that it was interrupted: %s", kept)
		}
		earlier, err := ReadReport(kept, -1)
		if err != nil {
			t.Fatal(err)
		}
		again := cfg
		again.Earlier = earlier
		r, err := measure(t.Context(), again, 0)
		if err != nil {
			t.Fatal(err)
		}
		var runs []string
		for _, run := range r.Runs {
			runs = append(runs, run.Variant+" "+string(rune('0'+run.Setting))+" "+string(rune('0'+run.Round)))
		}
		if !slices.Equal(runs, want) || r.Interrupted || len(r.Resumed) != 1 || r.Resumed[0].AfterRuns != after ||
			!r.Started.Equal(earlier.Started) {
			t.Errorf("runs %q, want %q; interrupted %v, resumed %+v", runs, want, r.Interrupted, r.Resumed)
		}
		if len(r.States) != 3 || r.States[1].AfterRuns != after || r.States[2].AfterRuns != 10 ||
			r.States[2].Available <= 0 {
			t.Errorf("the machine was looked at after %+v, want before, at the resumption and at the end", r.States)
		}
		if s := r.Results[1].Summaries[1]; s.Runs != 0 || r.Results[0].Summaries[1].Finished != 2 {
			t.Errorf("what is left out was run: %+v", s)
		}
		var text strings.Builder
		if err := r.WriteText(&text); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"Left out at x = 0.5: other. It makes no sense there.", "was interrupted after",
			"beside the series: "} {
			if !strings.Contains(text.String(), want) {
				t.Errorf("the report does not say %q:\n%s", want, &text)
			}
		}
		if strings.Count(text.String(), "\nother ") != 1 {
			t.Errorf("want one row for other:\n%s", &text)
		}
		for name, change := range map[string]func(*Config){
			"the variants":     func(c *Config) { c.Variants = c.Variants[:2] },
			"the target":       func(c *Config) { c.Target = append(slices.Clone(c.Target), "x") },
			"the settings":     func(c *Config) { c.Settings = []Setting{{X: 0.7}, {X: 0.4}} },
			"the start-up":     func(c *Config) { c.Skip++ },
			"what is left out": func(c *Config) { c.LeftOut = nil },
		} {
			other := again
			change(&other)
			if _, err := measure(t.Context(), other, 0); !errors.Is(err, ErrOtherSeries) ||
				!strings.Contains(err.Error(), name) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: error %v, want ErrOtherSeries in one line", name, err)
			}
		}
	}
}

// What a killed process has left the disk's readahead at is not what it is restored to.
func TestReadaheadBefore(t *testing.T) {
	interrupted := &Report{Interrupted: true, Disk: DiskInfo{ReadaheadKiBBefore: 8192}}
	for _, test := range []struct {
		earlier   *Report
		now, want int
	}{{nil, 128, 128}, {interrupted, 128, 8192}, {interrupted, 4096, 4096}, {&Report{}, 128, 128},
		{&Report{Interrupted: true}, 128, 128}} {
		cfg := Config{Settings: []Setting{{X: 0.5, Readahead: 128}}, Earlier: test.earlier}
		if got := cfg.readaheadBefore(test.now); got != test.want {
			t.Errorf("%+v, now %d: %d, want %d", test.earlier, test.now, got, test.want)
		}
	}
}

func TestLeftOutRefused(t *testing.T) {
	good := Config{Model: "m", Target: []string{"t"}, Settings: []Setting{{X: 0.5}}, Repeat: 1,
		Variants: []Variant{{Name: "plain"}}}
	for want, left := range map[string][]LeftOut{
		"at setting 1 of 1": {{"plain", 1, "x"}},
		"no variant other":  {{"other", 0, "x"}},
		"without a reason":  {{"plain", 0, ""}},
		"twice":             {{"plain", 0, "x"}, {"plain", 0, "y"}},
		"all variants":      {{"plain", 0, "x"}},
	} {
		cfg := good
		cfg.LeftOut = left
		if err := cfg.check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", left, err, want)
		}
	}
}
