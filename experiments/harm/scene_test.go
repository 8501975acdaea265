package harm

// This file tests how scenes are parsed, when they happen, and what they do to a group.

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"tensorcast/internal/cgroup"
	"tensorcast/internal/testenv"
)

func TestParseScenes(t *testing.T) {
	for text, want := range map[string]Scene{
		"none":             {kind: none},
		"instant:50MB":     {kind: instant, hogs: 1, size: 50e6},
		"slow:1GiB@100MB":  {kind: slow, hogs: 1, size: 1 << 30, rate: 100e6},
		"swarm:40x10MB":    {kind: swarm, hogs: 40, size: 10e6},
		"limit:0.5":        {kind: limit, factor: 0.5},
		"kill-helper":      {kind: killHelper},
		"moved":            {kind: moved},
		"cached:0.6":       {kind: cached, factor: 0.6},
		"shared":           {kind: shared},
		"swarm:1x4096":     {kind: swarm, hogs: 1, size: 4096},
		"limit:1e1":        {kind: limit, factor: 10},
		"instant:1000 MiB": {kind: instant, hogs: 1, size: 1000 << 20},
	} {
		want.text = text
		if got, err := ParseScenes([]string{text}); err != nil || len(got) != 1 || got[0] != want {
			t.Errorf("%s: %+v, %v, want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "nothing", "none:1", "instant", "instant:0", "instant:much", "instant:2PB",
		"slow:1MB", "slow:1MB@0", "slow:@1MB", "swarm:10MB", "swarm:0x1MB", "swarm:1001x1MB", "swarm:-1x1MB",
		"limit:0", "limit:NaN", "limit:-1", "limit:101", "limit", "kill-helper:9",
		"cached", "cached:0", "cached:1.5", "shared:1"} {
		if got, err := ParseScenes([]string{text}); err == nil ||
			!strings.Contains(err.Error(), "want one of hogs") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %+v, %v; want an error of one line that lists the forms", text, got, err)
		}
	}
	all, err := ParseScenes([]string{"all", "none", "limit:0.5"})
	if err != nil || len(all) != 17 { // 8, 4 and 7, of which two are in two sets
		t.Errorf("%d scenes, want 17 (%v): %v", len(all), err, all)
	}
	for _, f := range Forms {
		if _, err := ParseScenes([]string{f[0]}); err != nil {
			t.Error(err)
		}
	}
}

// The moment of a scene is the same with and without a helper, another one in each pair, and never
// before Settle tokens.
func TestMoment(t *testing.T) {
	s := &series{cfg: Config{Settle: 5, Tokens: 20, Seed: 7}}
	scene := Scene{text: "none", kind: none}
	seen := map[int]bool{}
	for n := range 200 {
		m := s.moment(spec{scene, 0.5, n, true})
		if m != s.moment(spec{scene, 0.5, n, false}) {
			t.Error("the two runs of a pair differ")
		}
		if m.Token < 5 || m.Token > 12 || m.Fraction < 0 || m.Fraction >= 1 {
			t.Errorf("%+v, want token 5 to 12 and a fraction below 1", m)
		}
		seen[m.Token] = true
	}
	if len(seen) != 8 {
		t.Errorf("tokens %v, want 8 different ones", seen)
	}
	if (&series{cfg: Config{Settle: 5, Tokens: 20, Seed: 8}}).moment(spec{scene, 0.5, 0,
		true}) == s.moment(spec{scene, 0.5, 0, true}) {
		t.Error("the seed changes nothing")
	}
}

// A hog takes what is said, in the group, and gives it back.
func TestHogTakesWhatIsSaid(t *testing.T) {
	cfg := known(t, "sleep 1000", "instant:40MB", "slow:20MB@80MB", "swarm:10x2MB")
	program := build(t, hogSource)
	root, err := cgroup.Root()
	if err != nil {
		t.Fatal(err)
	}
	for _, scene := range cfg.Scenes {
		group, err := cgroup.Create(root, fmt.Sprintf("tensorcast-harm-%d-hogs", os.Getpid()))
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		a := &actor{scene: scene, group: group, hold: time.Hour, done: done}
		if err := a.prepare(t.Context(), program, markVariable+"=hogs"); err != nil {
			t.Fatal(err)
		}
		if usage, err := group.Usage(); err != nil || usage > 1<<20 {
			t.Errorf("%s: %d bytes before, %v; want 1 MiB at most", scene, usage, err)
		}
		acted := make(chan error, 1)
		start := time.Now()
		go func() { acted <- a.act(t.Context()) }()
		want := int64(scene.hogs) * scene.size
		var usage int64
		for end := time.Now().Add(20 * time.Second); usage < want &&
			time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			if usage, err = group.Usage(); err != nil {
				t.Fatal(err)
			}
		}
		if scene.rate > 0 && time.Since(start) < 240*time.Millisecond { // a quarter of a second, less one step
			t.Errorf("%s: it took %v, want 240 ms or more", scene, time.Since(start))
		}
		if procs, err := group.Procs(); usage < want || usage > want+int64(scene.hogs+1)<<20 || err != nil ||
			len(procs) != scene.hogs {
			t.Errorf("%s: %d bytes in %d processes, want %d (%v)", scene, usage, len(procs), want, err)
		}
		close(done)
		if err := <-acted; err != nil || a.killed != 0 || !a.acted {
			t.Errorf("%s: %v, %d killed", scene, err, a.killed)
		}
		if procs, err := group.Procs(); err != nil || len(procs) > 0 {
			t.Errorf("%s: %d processes are left, %v; want none", scene, len(procs), err)
		}
		if err := group.Remove(); err != nil {
			t.Error(err)
		}
	}
}

// The scene's limit holds for a while. Then the limit is what it was.
func TestLimitComesBack(t *testing.T) {
	cfg := known(t, "sleep 1000", "limit:0.5", "limit:1.5")
	root, err := cgroup.Root()
	if err != nil {
		t.Fatal(err)
	}
	group, err := cgroup.Create(root, fmt.Sprintf("tensorcast-harm-%d-limit", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := group.Remove(); err != nil {
			t.Error(err)
		}
	}()
	const bytes = 64 << 20
	if err := group.SetLimit(bytes); err != nil {
		t.Fatal(err)
	}
	for _, scene := range cfg.Scenes {
		done, acted := make(chan struct{}), make(chan error, 1)
		a := &actor{scene: scene, group: group, limit: bytes, hold: time.Hour, done: done}
		go func() { acted <- a.act(t.Context()) }()
		testenv.WaitFor(t, "the other limit", func() bool {
			limit, ok, err := group.Limit()
			return ok && err == nil && limit == int64(scene.factor*bytes)
		})
		close(done)
		if err := <-acted; err != nil || a.refused {
			t.Errorf("%s: %v, refused %v", scene, err, a.refused)
		}
		if limit, ok, err := group.Limit(); limit != bytes || !ok || err != nil {
			t.Errorf("%s: the limit is %d afterwards, %v, %v; want %d", scene, limit, ok, err, bytes)
		}
	}
}
