package main

// This file tests the analyses, --all and the timeline on a planted mixture of experts.

import (
	"encoding/csv"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"tensorcast/event"
	"tensorcast/internal/cli"
	"tensorcast/pattern"
	"tensorcast/report"
	"tensorcast/report/gather"
	"tensorcast/trace"
	"tensorcast/trace/tables"
)

// scene is a mixture of one layer with four experts, of which a token chooses two. The run has a prompt
// of two tokens and three generated ones. Planted are one re-read of each cause, a stall, a gap of each
// class, and expert 2, which every token chooses.
var scene = []tables.StructureRow{
	{
		Name: "token_embd.weight", Component: "token_embd.weight", Offset: 4096, Size: 6400, Layer: -1,
		File: "s.gguf", Type: "F16", Shape: []int64{32, 100},
	},
	{
		Name: "blk.0.attn_q.weight", Component: "attn_q.weight", Offset: 10496, Size: 100000, Layer: 0,
		File: "s.gguf", Type: "Q8_0", Shape: []int64{100, 1000},
	},
	{
		Name: "blk.0.ffn_up_exps.weight", Component: "ffn_up_exps.weight", Offset: 410496, Size: 4000000, Layer: 0,
		File: "s.gguf", Type: "Q8_0", Shape: []int64{1000, 1000, 4}, Experts: 4,
	},
	{
		Name: "output.weight", Component: "output.weight", Offset: 9000000, Size: 50000, Layer: -1, File: "s.gguf",
		Type: "Q8_0", Shape: []int64{500, 100},
	},
}

var sceneRoutes = [][]int32{{2, 0}, {2, 1}, {2, 1}, {0, 2}, {2, 3}} // of each token

func plantScene(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "capture")
	meta := &tables.Meta{Detail: tables.DetailOpIO, Models: []tables.ModelInfo{
		{Path: "/models/s.gguf", Fingerprint: planted.Fingerprint, Bytes: 9050000, Files: []tables.ModelFile{
			{Name: "s.gguf", Bytes: 9050000, Fingerprint: planted.Fingerprint},
		}},
	},
		Host:    tables.Host{Kernel: "6.1", CPUs: 2, MemoryBytes: 1 << 30},
		Command: []string{"/opt/llama-cli", "-m", "s.gguf"}}
	w, err := trace.Create(dir, meta, scene)
	if err != nil {
		t.Fatal(err)
	}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	token := 0
	for step := range int32(4) {
		phase, tokens := tables.PhaseGeneration, 1
		if step == 0 {
			phase, tokens = tables.PhasePrompt, 2
		}
		begin := int64(step) * 1e9
		a := tables.Access{Step: step, Token: step - 1, Phase: phase}
		read := func(tensor int32, op string, bytes, at, took, stall int64, experts ...int32) {
			a.Tensor, a.Op, a.Offset, a.Bytes, a.Timestamp, a.Duration, a.Stall, a.Experts = tensor, op,
				scene[tensor].Offset, bytes, begin+at, took, stall, experts
			check(w.Access(&a))
		}
		read(0, "GET_ROWS", 64*int64(tokens), 0, 1000, 0)
		stall := int64(0)
		if step == 2 {
			stall = 70e6
		}
		read(1, "MUL_MAT", 100000, 10e6, 80e6, stall)
		var used []int32
		for n := range tokens {
			for slot, e := range sceneRoutes[token] {
				if !slices.Contains(used, e) {
					used = append(used, e)
				}
				check(w.Route(&tables.Route{
					Step: step, Token: step - 1, Layer: 0, Slot: int32(slot), Expert: e, Position: int32(n),
				}))
			}
			token++
		}
		read(2, "MUL_MAT_ID", int64(len(used))*1000000, 100e6, 50e6, 0, used...)
		read(3, "MUL_MAT", 50000, 200e6, 10e6, 0)
		check(w.Step(&tables.StepRow{
			Step: step, Phase: phase, Tokens: int32(tokens), Token: step - 1, Begin: begin, End: begin + 250e6,
		}))
	}
	for n := range 2 {
		for i, cause := range []event.Cause{event.CauseFault, event.CauseReadahead, event.CauseRead, event.CauseOther} {
			bytes := []int64{100000, int64(1000 * (i + 1))}[n]
			check(w.PageIn(&tables.PageInRow{
				Step: int32(n) * 2, Tensor: 1, File: "s.gguf", Offset: 10496, Bytes: bytes,
				Timestamp: int64(n)*2e9 + 5, Rereads: int32(n), Cause: cause, Expert: -1,
			}))
		}
	}
	check(w.Close(meta, true))
	return dir
}

// csvColumn reads a column of a CSV file.
func csvColumn(t *testing.T, path, name string) (values []string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	at := slices.Index(rows[0], name)
	if at < 0 {
		t.Fatalf("%s has no column %s: %v", path, name, rows[0])
	}
	for _, r := range rows[1:] {
		values = append(values, r[at])
	}
	return values
}

// Each analysis finds what was planted, where it was planted, and nothing else.
func TestAnswers(t *testing.T) {
	capture, written := plantScene(t), map[string]string{}
	for _, want := range []struct{ analysis, table, column, values string }{
		{"rereads", "rereads", "tensor_name", "blk.0.attn_q.weight blk.0.ffn_up_exps.weight output.weight " +
			"token_embd.weight"},
		{"rereads", "rereads", "accesses", "4 4 4 4"},
		{"rereads", "rereads", "read_bytes", "400000 9000000 200000 320"},
		{"rereads", "rereads", "disk_bytes", "410000 0 0 0"},
		{"rereads", "rereads", "reread_bytes", "10000 0 0 0"},
		{"rereads", "rereads", "reread_fault_bytes", "1000 0 0 0"},
		{"rereads", "rereads", "reread_readahead_bytes", "2000 0 0 0"},
		{"rereads", "rereads", "reread_read_bytes", "3000 0 0 0"},
		{"rereads", "rereads", "reread_other_bytes", "4000 0 0 0"},
		{"rereads", "rereads", "stall_ns", "70000000 0 0 0"},
		{"layers", "layers", "layer", "none 0"},
		{"layers", "layers", "read_bytes", "200320 9400000"},
		{"layers", "layers", "op_ns", "40004000 520000000"},
		{"components", "components", "component", "attn_q.weight ffn_up_exps.weight output.weight token_embd.weight"},
		{"components", "components", "op_ns", "320000000 200000000 40000000 4000"},
		{"components", "components", "stall_ns", "70000000 0 0 0"},
		{"speed", "speed", "phase", "prompt generation generation generation"},
		{"speed", "speed", "tokens", "2 1 1 1"},
		{"speed", "speed", "step_ns", "250000000 250000000 250000000 250000000"},
		// The op that waited in step 2 took as long in the others, in which it did not: all of a step is computing.
		{"speed", "speed", "computing_ns", "NULL 250000000 250000000 250000000"},
		{"speed", "speed", "waiting_ns", "0 0 0 0"},
		{"speed", "speed", "other_ns", "NULL 0 0 0"},
		{"phases", "phases", "phase", "prompt generation"},
		{"phases", "phases", "tokens", "2 3"},
		{"phases", "phases", "step_ns", "250000000 750000000"},
		{"phases", "phases", "read_bytes", "3150128 6450192"},
		{"phases", "phases", "disk_bytes", "400000 10000"},
		{"phases", "phases", "stall_ns", "0 70000000"},
		{"phases", "phases", "expert_slices_touched", "3 4"},
		{"phases", "phases", "expert_slices", "4 4"},
		// There are some kilobytes from the embeddings to attn_q, 300 kB to the experts, megabytes to the
		// output, and it goes back to the next step's embeddings.
		{"offsets", "offsets", "accesses", "4 4 4 0 0 3"},
		{"offsets", "offsets", "read_bytes", "400000 9000000 200000 0 0 192"},
		{
			"heatmap", "heatmap", "tensor_name",
			strings.Repeat("token_embd.weight ", 4) + strings.Repeat("blk.0.attn_q.weight ", 4) +
				strings.Repeat("blk.0.ffn_up_exps.weight ", 4) + strings.TrimSpace(strings.Repeat("output.weight ", 4)),
		},
		{"heatmap --value disk", "heatmap", "disk_bytes", "0 0 0 0 400000 0 10000 0" + strings.Repeat(" 0", 8)},
		{"heatmap --value rereads", "heatmap", "rereads_bytes", "0 0 0 0 0 0 10000 0" + strings.Repeat(" 0", 8)},
		{"heatmap --value stall", "heatmap", "stall_ns", "0 0 0 0 0 0 7e+07 0" + strings.Repeat(" 0", 8)},
		{"experts", "experts", "expert", "0 1 2 3"},
		{"experts", "experts", "prompt_tokens", "1 1 2 0"},
		{"experts", "experts", "generated_tokens", "1 1 3 1"},
		{"experts", "experts", "first_token", "0 1 0 4"},
		{"experts", "experts_layers", "experts_used", "4"},
		{"experts", "experts_layers", "hottest_expert", "2"},
		{"experts", "experts_layers", "hottest_choices", "5"},
		{"experts", "experts_layers", "coldest_expert", "3"},
		{"experts", "experts_layers", "hot_quarter_share", "0.5"},
		{"experts", "experts_layers", "kept_share", "0.5"},
		{"experts", "experts_together", "tokens", "1 2"},
		{"experts", "experts_together", "prompt_share", "0.5 0.75"},
		{"experts", "experts_together", "generated_share", "0.5 0.75"},
		{"experts", "experts_tokens", "kept", "0 1 2 1 1"},
		{"experts", "experts_tokens", "new", "2 1 0 0 1"},
		{"experts", "experts_tokens", "touched", "2 3 3 3 4"},
	} {
		out, done := written[want.analysis]
		if !done {
			out = t.TempDir()
			if code, _, stderr := execute(t,
				append(strings.Fields(want.analysis), "-c", capture, "-o", out)...); code != cli.OK {
				t.Fatal(stderr)
			}
			written[want.analysis] = out
		}
		t.Run(want.analysis+"/"+want.column, func(t *testing.T) {
			got := csvColumn(t, filepath.Join(out, want.table+".csv"), want.column)
			if strings.Join(got, " ") != want.values {
				t.Errorf("column %s is %q, want %q", want.column, strings.Join(got, " "), want.values)
			}
		})
	}
}

// --all writes what the analyses write one by one, in one pass.
func TestAll(t *testing.T) {
	capture, out := plantScene(t), t.TempDir()
	code, stdout, stderr := execute(t, "--all", "-c", capture, "-o", out, "--json")
	var said struct{ Files []string }
	if err := json.Unmarshal([]byte(stdout), &said); code != cli.OK || err != nil || stderr != "" {
		t.Fatalf("exit %d, want 0; JSON: %v; stderr %q", code, err, stderr)
	}
	var names []string
	for _, f := range said.Files {
		info, err := os.Stat(f)
		if err != nil || info.Size() == 0 {
			t.Errorf("%s is missing or empty: %v", f, err)
		}
		names = append(names, filepath.Base(f))
	}
	slices.Sort(names)
	want := strings.Fields(`
		access_pattern.h components.csv components.parquet components.png determinism.csv determinism.parquet
		determinism_edits.csv determinism_edits.parquet experts.csv experts.parquet experts.png
		experts_layers.csv experts_layers.parquet experts_map.png experts_together.csv experts_together.parquet
		experts_tokens.csv experts_tokens.parquet experts_tokens.png gaps.png heatmap.csv heatmap.parquet
		heatmap.png index.html layers.csv layers.parquet layers.png offsets.csv offsets.parquet offsets.png
		pattern.csv pattern.json pattern.parquet pattern.png phases.csv phases.parquet phases.png rereads.csv
		rereads.parquet rereads.png speed.csv speed.parquet speed.png`)
	if !reflect.DeepEqual(names, want) {
		t.Errorf("files %v, want %v", names, want)
	}
	// The subcommands write the same.
	alone := t.TempDir()
	for _, k := range kinds {
		if code, _, stderr := execute(t, k.name, "-c", capture, "-o", alone); code != cli.OK {
			t.Fatal(k.name, stderr)
		}
	}
	if code, _, stderr := execute(t, "determinism", "-c", capture, "-o", alone); code != cli.OK {
		t.Fatal(stderr)
	}
	for _, name := range names {
		if name == "index.html" {
			continue
		}
		a, errA := os.ReadFile(filepath.Join(out, name))
		b, errB := os.ReadFile(filepath.Join(alone, name))
		if errA != nil || errB != nil || string(a) != string(b) {
			t.Errorf("%s is not the same with --all and alone: %v, %v", name, errA, errB)
		}
	}
}

// The page's heatmap of experts has the share of each step's tokens that chose them.
func TestExpertsHeat(t *testing.T) {
	o := options{capture: plantScene(t), context: pattern.MostRead}
	in, err := load(t.Context(), &o, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	s := &study{in: in}
	if err := s.collect(t.Context()); err != nil {
		t.Fatal(err)
	}
	made, err := s.page()
	if err != nil {
		t.Fatal(err)
	}
	h := &made.Heat[len(made.Heat)-1]
	if h.Name != "experts chosen" ||
		slices.ContainsFunc(made.Heat, func(h report.Heatmap) bool { return h.Name == gather.TitleReads }) {
		t.Fatalf("heatmaps %+v, want that of experts last, and none of reads", made.Heat)
	}
	for e, want := range [][]float64{{50, 0, 100, 0}, {50, 100, 0, 0}, {100, 100, 100, 100}, {0, 0, 0, 100}} {
		for step, w := range want {
			if got := h.At(e, step); got != w {
				t.Errorf("expert %d in step %d: %g %%, want %g", e, step, got, w)
			}
		}
	}
}

// An analysis says what a capture lacks, and other formats are written. The heatmap shows what differs.
func TestAnswersOfLess(t *testing.T) {
	capture := plant(t, tables.Meta{}, true, []int32{1, 3, 2, 0}, []int32{1, 3, 2, 0})
	out := t.TempDir()
	if code, _, stderr := execute(t, "experts", "-c", capture, "-o", out); code != cli.Failure ||
		!strings.Contains(stderr, "dense") {
		t.Errorf("exit %d, stderr %q, want %d and that the model is dense", code, stderr, cli.Failure)
	}
	if code, _, stderr := execute(t, "heatmap", "--value", "disk", "-c", capture, "-o", out); code != cli.Failure ||
		!strings.Contains(stderr, "tracer --detail op+io") {
		t.Errorf("exit %d, stderr %q, want %d and the flag that records it", code, stderr, cli.Failure)
	}
	code, stdout, stderr := execute(t, "heatmap", "--json", "-c", capture, "-o", out)
	if code != cli.OK || !strings.Contains(stdout, `"value": "pace"`) {
		t.Errorf("exit %d, stdout %q, stderr %q, want the value pace", code, stdout, stderr)
	}
	code, stdout, stderr = execute(t, "heatmap", "--json", "-c", plantScene(t), "-o", out)
	// 10 kB once are little of the 7 MB that tokens read
	if code != cli.OK || !strings.Contains(stdout, `"value": "pace"`) {
		t.Errorf("exit %d, stdout %q, stderr %q, want the value pace", code, stdout, stderr)
	}
	for _, format := range []string{"svg", "pdf", "png"} {
		if code, _, stderr := execute(t, "layers", "--format", format, "-c", capture, "-o", out); code != cli.OK {
			t.Fatal(stderr)
		}
		all, err := filepath.Glob(filepath.Join(out, "layers.[sp][vdn][gf]"))
		if err != nil || len(all) != 1 || filepath.Base(all[0]) != "layers."+format {
			t.Errorf("files %v, %v: want the last format only", all, err)
		}
	}
	if got := strings.Join(csvColumn(t, filepath.Join(out, "layers.csv"), "disk_bytes"), ","); got != "NULL,NULL" {
		t.Errorf("bytes from disk that were not observed: %q, want NULL", got)
	}
	if code, _, stderr := execute(t, "layers", "--format", "gif", "-c", capture); code != cli.BadUsage ||
		strings.Count(stderr, "\n") > 2 {
		t.Errorf("exit %d, stderr %q, want %d and one message", code, stderr, cli.BadUsage)
	}
}

// The timeline has what was planted: slices of each step, layer, op and wait that nest, and reads from
// disk until the last op.
func TestTimeline(t *testing.T) {
	out := t.TempDir()
	if code, _, stderr := execute(t, "--perfetto", "-c", plantScene(t), "-o", out); code != cli.OK || stderr != "" {
		t.Fatal(stderr)
	}
	b, err := os.ReadFile(filepath.Join(out, timelineFile))
	if err != nil {
		t.Fatal(err)
	}
	// fields decodes a message into its numbers and its bytes.
	fields := func(b []byte) (numbers map[protowire.Number]int64, texts map[protowire.Number][]byte) {
		numbers, texts = map[protowire.Number]int64{}, map[protowire.Number][]byte{}
		for len(b) > 0 {
			n, kind, size := protowire.ConsumeTag(b)
			if size < 0 {
				t.Fatal(protowire.ParseError(size))
			}
			if b = b[size:]; kind == protowire.VarintType {
				v, size := protowire.ConsumeVarint(b)
				numbers[n], b = int64(v), b[size:]
			} else {
				v, size := protowire.ConsumeBytes(b)
				texts[n], b = v, b[size:]
			}
		}
		return numbers, texts
	}
	names, begun, ended := map[int64]string{}, map[string][]string{}, map[string]int{}
	before, total := map[int64]int64{}, int64(0)
	for len(b) > 0 {
		_, _, tag := protowire.ConsumeTag(b)
		packet, size := protowire.ConsumeBytes(b[tag:])
		b = b[tag+size:]
		at, message := fields(packet)
		if d := message[60]; d != nil {
			n, of := fields(d)
			names[n[1]] = string(of[2])
			continue
		}
		n, of := fields(message[11])
		track := names[n[11]]
		if at[8] < before[n[11]] {
			t.Errorf("%s goes back from %d to %d", track, before[n[11]], at[8])
		}
		before[n[11]] = at[8]
		switch n[9] {
		case 1, 3:
			begun[track] = append(begun[track], string(of[23]))
		case 2:
			ended[track]++
		case 4:
			total = n[30]
		}
	}
	want := map[string][]string{
		"steps":                {"prompt", "token 0", "token 1", "token 2"},
		"layers":               slices.Repeat([]string{"outside of layers", "layer 0", "outside of layers"}, 4),
		"ops":                  slices.Repeat([]string{"GET_ROWS", "MUL_MAT", "MUL_MAT_ID", "MUL_MAT"}, 4),
		"waiting for the disk": {"blk.0.attn_q.weight"},
		"from disk: fault":     {"blk.0.attn_q.weight", "blk.0.attn_q.weight"},
		"from disk: readahead": {"blk.0.attn_q.weight", "blk.0.attn_q.weight"},
		"from disk: read":      {"blk.0.attn_q.weight", "blk.0.attn_q.weight"},
		"from disk: other":     {"blk.0.attn_q.weight", "blk.0.attn_q.weight"},
	}
	if !reflect.DeepEqual(begun, want) {
		t.Errorf("slices that begin %v, want %v", begun, want)
	}
	for track, n := range map[string]int{"steps": 4, "layers": 12, "ops": 16, "waiting for the disk": 1} {
		if ended[track] != n {
			t.Errorf("%s: %d slices end, want %d", track, ended[track], n)
		}
	}
	if total != 410000 {
		t.Errorf("%d bytes from disk, want 410000", total)
	}
}
