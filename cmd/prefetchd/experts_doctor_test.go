package main

// This file tests what doctor says of memory for experts.

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tensorcast/experiments/llama/llamatest"
	"tensorcast/gguf/gguftest"
	"tensorcast/internal/cgroup"
	"tensorcast/internal/cli"
	"tensorcast/internal/testenv"
	"tensorcast/moe/geometry"
)

// Of a model's file doctor says in which range the hits lie, for the memory that a target would have here: also where
// nothing can be measured, as the file is in memory.
func TestDoctorModelExperts(t *testing.T) {
	testenv.NeedRoot(t)
	warm := filepath.Join(t.TempDir(), "warm.gguf")
	gguftest.MoE(3, 128).Write(t, warm)
	if _, err := os.ReadFile(warm); err != nil {
		t.Fatal(err)
	}
	stdout, stderr, status := doctor(t, nil, "--costs", "--model", warm)
	if want := "experts: a token chooses 2 of 128 experts in each of 3 layers; all "; status != cli.Failure ||
		!strings.HasPrefix(stdout, want) || strings.Count(stderr, "\n") != 1 {
		t.Errorf("status %d, want %q\n%s%s", status, want, stdout, stderr)
	}

	path := copyCold(t, llamatest.Model(t, mixtureConfig))
	root, err := cgroup.Root()
	if err != nil {
		t.Fatal(err)
	}
	group, err := cgroup.Create(root, fmt.Sprintf("tensorcast-test-experts-%d", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := group.Remove(); err != nil {
			t.Error(err)
		}
	})
	if err := group.SetLimit(100 << 20); err != nil {
		t.Fatal(err)
	}
	inGroup := []string{"sh", "-c",
		"for f in " + strings.Join(group.ProcsFiles(), " ") + `; do echo $$ > $f; done; exec "$0" "$@"`}
	stdout, stderr, status = doctor(t, inGroup, "--costs", "--model", path, "--json")
	var c fileCosts
	if err := json.Unmarshal([]byte(stdout), &c); err != nil || status != cli.OK || stderr != "" || c.Experts == nil {
		t.Fatalf("status %d, %v\n%s%s", status, err, stdout, stderr)
	}
	experts, _ := expertBytes(t, path)
	want := geometry.Geometry{Layers: 4, Experts: 16, Chosen: 2, Bytes: experts, Rest: c.Experts.Rest}
	if x := c.Experts; x.Geometry != want || x.Range.Share <= 0 || x.Range.Share > 0.9 ||
		!strings.Contains(x.Sentence, "if routing is random") || x.Range.Alike {
		t.Errorf("%+v, want %+v, and room for some of them", x, want)
	}
}

// Of a target doctor says it for the memory that there is for its experts.
func TestDoctorExperts(t *testing.T) {
	r := newMixture(t, 100)
	r.options.Repeat = 1 << 20
	r.start()
	d, status := diagnosisOf(t, r.target.Process.Pid)
	if status != cli.OK || d.Experts == nil {
		t.Fatalf("status %d: %s, %+v", status, d.Line, d.Experts)
	}
	if share := float64(d.Verdict.Experts) / float64(d.Verdict.Routed); math.Abs(d.Experts.Range.Share-share) > 0.01 ||
		share <= 0 || share >= 1 {
		t.Errorf("a share of %.3f, want %.3f", d.Experts.Range.Share, share)
	}
	stdout, _, _ := doctor(t, nil, "--pid", fmt.Sprint(r.target.Process.Pid))
	if !strings.Contains(stdout, "  experts       ") ||
		!strings.Contains(stdout, "a token chooses 2 of 16 experts in each") {
		t.Error(stdout)
	}
	for i := range d.Holding.Files {
		d.Holding.Files[i].Routed = 0
	}
	if x := d.expertsOf(); x != nil {
		t.Errorf("a dense model has %+v", x)
	}
}
