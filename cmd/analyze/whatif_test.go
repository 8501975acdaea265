package main

// This file tests the subcommand whatif on captures that are small enough to be reckoned by hand.

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tensorcast/internal/cli"
	"tensorcast/moe/replay"
	"tensorcast/prefetch/plan"
	"tensorcast/sim/whatif"
	"tensorcast/trace"
	"tensorcast/trace/tables"
)

// The planted tokens read all of a model of a few hundred bytes, but for an embedding of which they read
// a row. What does not fit in memory is read again.
func TestWhatIf(t *testing.T) {
	capture, out := plant(t, tables.Meta{}, true, whole, whole, whole, whole), t.TempDir()
	var size int64
	for i, s := range model {
		if size += s.Size; i == 1 {
			size += 64 - s.Size
		}
	}
	code, stdout, stderr := execute(t, "whatif", "-c", capture, "-o", out, "--disk", "1MB/s", "--compute", "1ms",
		"--blocks", "extents", "--ram", "0.5,1", "--json")
	var got struct {
		whatif.Answer
		Files []string `json:"files"`
	}
	if err := json.Unmarshal([]byte(stdout), &got); code != cli.OK || err != nil {
		t.Fatalf("exit %d, %v: %s", code, err, stderr)
	}
	// The first generated token fills the memory, so three of four count.
	if got.Steps != 3 || got.WorkingSet != size || got.PerToken != float64(size) || got.Bandwidth != 1e6 ||
		len(got.Rows) != 2 || len(got.Files) != 6 {
		t.Errorf("answer %+v, want 3 steps of %d bytes, two rows and 6 files", got, size)
	}
	if all := got.Rows[1].Results; all[0].Missed != 0 || all[0].TokS != 1000 || all[len(all)-1].TokS != 1000 {
		t.Errorf("with all in memory %+v, want nothing missed and 1000 tok/s", all)
	}
	if half := got.Rows[0]; half.Memory != (size+1)/2 || half.Results[0].Missed < float64(size)/2 ||
		half.Results[0].TokS >= half.Results[4].TokS {
		t.Errorf("with half of it in memory %+v, want half missed, and Belady's rule faster", half)
	}
	for _, name := range []string{"whatif.parquet", "whatif.csv", missFile + ".csv", "whatif.png"} {
		if info, err := os.Stat(filepath.Join(out, name)); err != nil || info.Size() == 0 {
			t.Errorf("%s is missing or empty: %v", name, err)
		}
	}
	// A figure in another format replaces the first.
	code, stdout, stderr = execute(t, "whatif", "-c", capture, "-o", out, "--disk", "1MB/s", "--compute", "1ms",
		"--format", "svg")
	if _, err := os.Stat(filepath.Join(out, "whatif.png")); code != cli.OK || err == nil ||
		!strings.Contains(stdout, "tokens per second") {
		t.Errorf("exit %d, error %v, want 0 and no picture of before: %s%s", code, err, stdout, stderr)
	}
}

// Each wrong value is reported in one line.
func TestWhatIfRefuses(t *testing.T) {
	capture := plant(t, tables.Meta{}, true, whole, whole)
	for name, tc := range map[string]struct {
		args []string
		code int
		says string
	}{
		"no disk":     {nil, cli.Failure, "--disk"},
		"touched":     {[]string{"--disk", "1GB", "--touched", "0"}, cli.BadUsage, "--touched"},
		"disk":        {[]string{"--disk", "fast"}, cli.BadUsage, `"fast"`},
		"ram":         {[]string{"--disk", "1GB", "--ram", "1GB,much"}, cli.BadUsage, `"much"`},
		"no ram":      {[]string{"--disk", "1GB", "--ram", ""}, cli.BadUsage, "--ram"},
		"group":       {[]string{"--disk", "1GB", "--batch", "1,0"}, cli.BadUsage, "--batch"},
		"batch twice": {[]string{"--disk", "1GB", "--batch", "2,2"}, cli.BadUsage, "twice"},
		"batches":     {[]string{"--disk", "1GB", "--batch", "1,2,3,4,5,6,7,8,9"}, cli.BadUsage, "9 numbers"},
		"compute":     {[]string{"--disk", "1GB", "--compute", "-1s"}, cli.BadUsage, "--compute"},
		"no times":    {[]string{"--disk", "1GB"}, cli.Failure, "--compute"},
		"few tokens": {[]string{"--disk", "1GB", "--compute", "1ms", "--batch", "9"}, cli.Failure,
			"only 1 steps"},
	} {
		t.Run(name, func(t *testing.T) {
			code, _, stderr := execute(t, append([]string{"whatif", "-c", capture, "-o", t.TempDir()}, tc.args...)...)
			if code != tc.code || !strings.Contains(stderr, tc.says) || strings.Count(stderr, "\n") != 1 {
				t.Errorf("exit %d, stderr %q, want %d and one line with %q", code, stderr, tc.code, tc.says)
			}
		})
	}
}

// What is read as it is touched comes as slowly as in the capture, if the capture's tokens waited, and as
// fast as --touched says if that is given.
func TestWhatIfTouched(t *testing.T) {
	capture := plantScene(t) // one of three tokens reads 10 kB from disk, which is little: memory is not short
	for args, want := range map[string]float64{"": 5e6, "--touched 1MB": 1e6} {
		code, stdout, stderr := execute(t,
			append([]string{
				"whatif", "-c", capture, "-o", t.TempDir(), "--disk", "5MB/s", "--compute", "1ms", "--json",
			}, strings.Fields(args)...)...)
		var got whatif.Answer
		if err := json.Unmarshal([]byte(stdout), &got); code != cli.OK || err != nil || got.Touched != want {
			t.Errorf("%q: %d, %v, %g bytes per second, want %g: %s", args, code, err, got.Touched, want, stderr)
		}
		for _, r := range got.Rows {
			seconds := 0.001 + r.Results[0].Missed/want
			if off := r.Results[0].TokS*seconds - 1; off < -1e-9 || off > 1e-9 {
				t.Errorf("%q: %g tok/s for %g bytes, want %g", args, r.Results[0].TokS, r.Results[0].Missed, 1/seconds)
			}
		}
	}
}

// batchSize is how many bytes each step of plantBatches reads.
const batchSize = 8 << 20

// plantBatches plants a capture of five steps of 20 ms that generate two tokens each.
func plantBatches(t *testing.T, meta *tables.Meta) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "capture")
	structure := []tables.StructureRow{
		{
			Name: "output.weight", Component: "output.weight", Size: batchSize, Layer: -1, File: "b.gguf",
			Type: "Q8_0", Shape: []int64{batchSize},
		},
	}
	if meta.Detail == "" {
		meta.Detail = tables.DetailOp
	}
	meta.Models = []tables.ModelInfo{
		{Path: "/b.gguf", Bytes: batchSize, Fingerprint: planted.Fingerprint},
	}
	w, err := trace.Create(dir, meta, structure)
	if err != nil {
		t.Fatal(err)
	}
	for i := range int32(5) {
		begin := int64(i) * 1e9
		a := tables.Access{
			Step: i, Token: i, Phase: tables.PhaseGeneration, Op: "MUL_MAT", Bytes: batchSize, Timestamp: begin,
			Duration: 20e6, Stall: tables.NotObserved,
		}
		if meta.Detail == tables.DetailOpIO {
			a.Stall = 0
			if err := w.PageIn(&tables.PageInRow{
				Timestamp: begin, Step: i, File: "b.gguf", Bytes: batchSize, Op: a.Op, Rereads: i,
			}); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(w.Access(&a),
			w.Step(&tables.StepRow{
				Step: i, Token: i, Phase: tables.PhaseGeneration, Tokens: 2, Begin: begin, End: begin + 20e6,
			})); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(meta, true); err != nil {
		t.Fatal(err)
	}
	return dir
}

// What is read as it is touched comes as fast as it must have come in the capture. Nothing of 8 MiB is
// found again in 6, and a step does not compute for 10 ms. A strategy that keeps a part misses less.
func TestWhatIfCalibrated(t *testing.T) {
	dir := plantBatches(t,
		&tables.Meta{Memory: &tables.Memory{LimitBytes: 10 << 20, OtherBytes: 4 << 20, Of: "/a memory.max"}})
	for args, want := range map[string]float64{
		"": batchSize / 0.010, "--ran plain": batchSize / 0.010, "--ran pin": batchSize / 0.010,
		"--ram 7MiB --touched 2MB": 2e6,
	} {
		code, stdout, stderr := execute(t,
			append([]string{"whatif", "-c", dir, "-o", t.TempDir(), "--disk", "10GB/s", "--compute", "5ms", "--json"},
				strings.Fields(args)...)...)
		var got whatif.Answer
		if err := json.Unmarshal([]byte(stdout), &got); code != cli.OK || err != nil || math.Abs(got.Touched-want) > 1 {
			t.Errorf("%q: exit %d, %v, %g bytes per second, want %g: %s", args, code, err, got.Touched, want, stderr)
		}
	}
}

// Steps of two tokens are replayed as they are: they read and compute for both tokens.
func TestWhatIfOfBatches(t *testing.T) {
	const size = batchSize
	dir := plantBatches(t, &tables.Meta{})
	for _, tc := range []struct {
		args       []string
		read, tokS float64 // of a token; of all in memory
		tokens     int
	}{
		{nil, size / 2, 100, 2},
		{[]string{"--compute", "5ms"}, size / 2, 200, 2},
		{[]string{"--batch", "2"}, size / 4, 100, 4},
	} {
		code, stdout, stderr := execute(t,
			append([]string{"whatif", "-c", dir, "-o", t.TempDir(), "--disk", "1GB/s", "--ram", "1", "--json"},
				tc.args...)...)
		var got whatif.Answer
		if err := json.Unmarshal([]byte(stdout), &got); code != cli.OK || err != nil {
			t.Fatalf("exit %d, %v: %s", code, err, stderr)
		}
		if r := got.Rows[0].Results[0]; got.PerToken != tc.read || got.TokensPerStep != tc.tokens ||
			math.Abs(r.TokS-tc.tokS) > 1e-6 || r.Missed != 0 {
			t.Errorf("%v: %+v, %+v; want %g bytes and %g tokens per second", tc.args, got, r, tc.read, tc.tokS)
		}
	}
}

// Several batches are answered at once: what they read is shared, and the rate of what is read as it is touched is the
// same for all of them.
func TestWhatIfOfSeveralBatches(t *testing.T) {
	dir := plantBatches(t,
		&tables.Meta{Memory: &tables.Memory{LimitBytes: 10 << 20, OtherBytes: 4 << 20, Of: "/a memory.max"}})
	out := t.TempDir()
	code, stdout, stderr := execute(t, "whatif", "-c", dir, "-o", out, "--disk", "10GB/s", "--compute", "5ms", "--ram",
		"6MiB", "--batch", "2,1", "--json")
	var got struct {
		whatif.Answer
		Batches []whatif.Answer
	}
	if err := json.Unmarshal([]byte(stdout), &got); code != cli.OK || err != nil || len(got.Batches) != 2 ||
		got.TokensPerStep != 4 || got.Batches[1].TokensPerStep != 2 {
		t.Fatalf("exit %d, %v, %+v, want answers for 4 and 2 tokens: %s", code, err, got, stderr)
	}
	for i, tokens := range []float64{4, 2} {
		// A step misses all of 8 MiB, which come in 10 ms.
		a := got.Batches[i]
		want := tokens / (tokens*0.005 + batchSize/a.Touched)
		if r := a.Rows[0].Results[0]; math.Abs(r.TokS-want) > 1e-6 || math.Abs(a.Touched-batchSize/0.010) > 1 {
			t.Errorf("%g tokens: %g tok/s at %g B/s, want %g", tokens, r.TokS, a.Touched, want)
		}
	}
	tokens := csvColumn(t, filepath.Join(out, "whatif.csv"), "tokens_per_step")
	if tokens[0] != "4" || tokens[len(tokens)-1] != "2" {
		t.Errorf("tokens per step are %s, want 4 and 2", tokens)
	}
	code, stdout, stderr = execute(t, "whatif", "-c", dir, "-o", out, "--disk", "10GB/s", "--batch", "1,2")
	if code != cli.OK || strings.Count(stdout, "the bound") != 1 ||
		!strings.Contains(stdout, "tokens per second, by tokens per step") {
		t.Errorf("exit %d, %s: %s", code, stderr, stdout)
	}
}

// plantMixture plants a capture of generated tokens of a model with one tensor that every token reads, and two layers
// of experts of 1 MiB. choose says what a layer chooses. The disk reads 1 GB/s.
func plantMixture(t *testing.T, experts, tokens int, choose func(token, layer int) []int32) (dir string) {
	t.Helper()
	const mib, layers = 1 << 20, 2
	dir = filepath.Join(t.TempDir(), "capture")
	structure := []tables.StructureRow{{
		Name: "output.weight", Component: "output.weight", Size: 16 * mib, Layer: -1, File: "m.gguf", Type: "Q8_0",
		Shape: []int64{16 * mib},
	}}
	at := int64(16 * mib)
	for layer := range int32(layers) {
		structure = append(structure, tables.StructureRow{
			Name: fmt.Sprintf("blk.%d.ffn_up_exps.weight", layer), Component: "ffn_up_exps.weight", Offset: at,
			Size: int64(experts) * mib, Layer: layer, File: "m.gguf", Type: "Q8_0",
			Shape: []int64{1024, 1024, int64(experts)}, Experts: int32(experts), ExpertStride: mib,
		})
		at += int64(experts) * mib
	}
	meta := &tables.Meta{
		Detail: tables.DetailOp, Models: []tables.ModelInfo{{
			Path: "/m.gguf", Bytes: at, Fingerprint: planted.Fingerprint,
			Files: []tables.ModelFile{{Name: "m.gguf", Bytes: at, Fingerprint: planted.Fingerprint}},
		}}, Disk: &tables.Disk{BytesPerSecond: 1e9},
	}
	w, err := trace.Create(dir, meta, structure)
	if err != nil {
		t.Fatal(err)
	}
	for i := range int32(tokens) {
		begin := int64(i) * 1e9
		a := tables.Access{
			Step: i, Token: i, Phase: tables.PhaseGeneration, Duration: 5e6, Stall: tables.NotObserved,
		}
		for layer := range int32(layers) {
			a.Tensor, a.Op, a.Timestamp = 1+layer, "MUL_MAT_ID", begin+int64(layer)*6e6
			a.Experts, a.Offset = choose(int(i), int(layer)), structure[1+layer].Offset
			a.Bytes = int64(len(a.Experts)) * mib
			err = errors.Join(err, w.Access(&a))
			for slot, e := range a.Experts {
				err = errors.Join(err, w.Route(&tables.Route{
					Step: i, Token: i, Layer: layer, Slot: int32(slot), Expert: e,
				}))
			}
		}
		a.Tensor, a.Op, a.Bytes, a.Offset, a.Experts = 0, "MUL_MAT", 16*mib, 0, nil
		a.Timestamp = begin + 12e6
		err = errors.Join(err, w.Access(&a), w.Step(&tables.StepRow{
			Step: i, Token: i, Phase: tables.PhaseGeneration, Tokens: 1, Begin: begin, End: begin + 20e6,
		}))
	}
	if err := errors.Join(err, w.Close(meta, true)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Of a mixture it is said first what memory for experts buys. What prefetchd misses follows from the hits: with the
// same memory less where use is local than where it is not.
func TestWhatIfOfMixtures(t *testing.T) {
	const experts, chosen, mib = 256, 4, 1 << 20
	r := rand.New(rand.NewPCG(3, 5))
	distinct := func(draw func() int) []int32 {
		var ids []int32
		for len(ids) < chosen {
			if e := int32(draw()); !slices.Contains(ids, e) {
				ids = append(ids, e)
			}
		}
		return ids
	}
	missed := map[string]float64{}
	for name, tc := range map[string]struct {
		choose func(token, layer int) []int32
		says   string
	}{
		"random": {func(int, int) []int32 { return distinct(func() int { return r.IntN(experts) }) },
			"no exploitable locality: memory buys only its share"},
		"uneven": {func(int, int) []int32 {
			return distinct(func() int { return min(r.IntN(experts), r.IntN(experts), r.IntN(experts)) })
		}, "without locality it would be 40 %"},
	} {
		dir := plantMixture(t, experts, 150, tc.choose)
		args := []string{"whatif", "-c", dir, "-o", t.TempDir(), "--compute", "5ms", "--ram", "300MiB,600MiB,1MiB"}
		code, stdout, stderr := execute(t, args...)
		if first, _, _ := strings.Cut(stdout, "\n"); code != cli.OK || !strings.Contains(first, tc.says) {
			t.Fatalf("%s: exit %d, %s, the first line is %q, want %q", name, code, stderr, first, tc.says)
		}
		code, stdout, stderr = execute(t, append(args, "--json")...)
		var got struct {
			whatif.Answer
			Locality *replay.Locality
		}
		if err := json.Unmarshal([]byte(stdout), &got); code != cli.OK || err != nil || got.Locality == nil ||
			got.Locality.Local != (name == "uneven") {
			t.Fatalf("%s: exit %d, %v, %s\n%s", name, code, err, stderr, stdout)
		}
		at := slices.IndexFunc(got.Strategies, func(s whatif.Strategy) bool { return s.Name == whatif.Auto })
		if at < 0 || got.Strategies[at].Ahead {
			t.Fatalf("%s: the strategies are %+v, want prefetchd, which reads no experts ahead", name, got.Strategies)
		}
		few, all := got.Rows[0].Results[at], got.Rows[1].Results[at]
		belady := got.Rows[0].Results[len(got.Strategies)-1]
		seconds := 0.005 + few.Missed/1e9
		if few.Missed < belady.Missed || math.Abs(few.TokS*seconds-1) > 1e-6 || all.Missed != 0 || all.TokS != 200 {
			t.Errorf("%s: %+v with 300 MiB, Belady %+v; %+v with all in memory", name, few, belady, all)
		}
		// Where nothing fits all is missed: 16 MiB that every token reads, and 8 of experts.
		if none := got.Rows[2].Results[at]; none.Missed != 24*mib {
			t.Errorf("%s: with 1 MiB %+v, want all of 24 MiB missed", name, none)
		}
		missed[name] = few.Missed
	}
	// There is room for less than half of the 512 MiB of experts, so at random more than half of 8 MiB is missed.
	if missed["random"] < 4*mib || missed["random"] > 6*mib || missed["uneven"] > 0.75*missed["random"] {
		t.Errorf("missed are %v bytes a token", missed)
	}
}

// Where the disk is all that a token waits for, prefetchd is expected to reach the share of it that is known to be
// reached. What is ideal has all of the disk.
func TestWhatIfGivesPrefetchdItsShareOfTheDisk(t *testing.T) {
	dir := plantBatches(t, &tables.Meta{})
	code, stdout, stderr := execute(t, "whatif", "-c", dir, "-o", t.TempDir(), "--disk", "10MB/s", "--compute", "1us",
		"--ram", "6MiB", "--json")
	var got whatif.Answer
	if err := json.Unmarshal([]byte(stdout), &got); code != cli.OK || err != nil {
		t.Fatalf("exit %d, %v: %s", code, err, stderr)
	}
	at := slices.IndexFunc(got.Strategies, func(s whatif.Strategy) bool { return s.Name == "prefetchd" })
	if at < 0 {
		t.Fatalf("nothing is said of prefetchd: %+v", got.Strategies)
	}
	r := got.Rows[0].Results[at]
	if want := plan.ReachedShare * 10e6 / r.Missed; r.Missed <= 0 || math.Abs(r.TokS/want-1) > 0.02 {
		t.Errorf("%+v, want %g tokens per second", r, want)
	}
}

// The verdict on a capture expects of prefetchd the same share of the disk.
func TestVerdictGivesPrefetchdItsShareOfTheDisk(t *testing.T) {
	const disk = 1e9
	dir := plantBatches(t, &tables.Meta{
		Detail: tables.DetailOpIO,
		Memory: &tables.Memory{LimitBytes: 10 << 20, OtherBytes: 4 << 20, Of: "/a memory.max"},
		Disk:   &tables.Disk{Device: "1:2", BytesPerSecond: disk, Least: disk, Most: disk},
	})
	code, stdout, stderr := execute(t, "-c", dir, "-o", t.TempDir(), "--json")
	var said struct {
		Outlook struct {
			TokensPerSecond float64 `json:"tokens_per_second_prefetchd"`
		}
	}
	if err := json.Unmarshal([]byte(stdout), &said); code != cli.OK || err != nil {
		t.Fatalf("exit %d, %v: %s", code, err, stderr)
	}
	// In so little memory nothing is kept, and each step of two tokens reads all. The step's only op computes for 20 ms
	// when all of that is there.
	const want = 2 / (0.020 + batchSize/(plan.ReachedShare*disk))
	if got := said.Outlook.TokensPerSecond; math.Abs(got/want-1) > 0.02 {
		t.Errorf("%g tokens per second are expected, want %g", got, want)
	}
}
