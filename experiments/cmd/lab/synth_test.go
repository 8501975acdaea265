package main

// This file tests "lab synth": its flags, its errors and its output.

import (
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tensorcast/gguf"
	"tensorcast/gguf/gguftest"
	"tensorcast/internal/testenv"
)

func TestSynth(t *testing.T) {
	dims := []string{"--layers", "2", "--embd", "256", "--ff", "256", "--heads", "4"}
	with := func(more ...string) []string { return append(more, dims...) }
	for name, tt := range map[string]struct {
		args   []string
		code   int
		stderr string // part of the one line; none if empty
	}{
		"dimensions":        {with("-o", "model.gguf"), 0, ""},
		"size":              {[]string{"-o", "model.gguf", "--size", "5MB", "--type", "q4_k"}, 0, ""},
		"moe":               {with("-o", "model.gguf", "--experts", "4", "--used", "2"), 0, ""},
		"no output":         {dims, 2, "-o model.gguf"},
		"no dimensions":     {[]string{"-o", "model.gguf"}, 2, "--size"},
		"missing dimension": {[]string{"-o", "model.gguf", "--layers", "2"}, 2, "embd"},
		"size and layers":   {[]string{"-o", "model.gguf", "--size", "5MB", "--layers", "2"}, 2, "--layers"},
		"bad size":          {[]string{"-o", "model.gguf", "--size", "big"}, 2, "big"},
		"tiny size":         {[]string{"-o", "model.gguf", "--size", "5"}, 2, "size"},
		"bad type":          {with("-o", "model.gguf", "--type", "Q9"), 2, "Q8_0"},
		"bad heads":         {with("-o", "model.gguf", "--kv-heads", "3"), 2, "kv-heads"},
		"experts, no used":  {with("-o", "model.gguf", "--experts", "4"), 2, "used"},
		"bad flag":          {[]string{"--frobnicate"}, 2, "frobnicate"},
		"argument":          {with("model.gguf"), 2, "model.gguf"},
		"no directory":      {with("-o", "none/model.gguf"), 1, "none/model.gguf"},
		"directory":         {with("-o", "."), 1, "directory"},
		"full disk":         {with("-o", "/dev/full"), 1, "no space"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			cmd, stdout, stderr := labProcess(t, append([]string{"synth"}, tt.args...)...)
			cmd.Dir = dir
			code := exitCode(t, cmd.Run())
			said := stderr.String()
			if code != tt.code || stdout.Len() > 0 {
				t.Errorf("exit %d, want %d; stdout %q, stderr %q", code, tt.code, stdout.String(), said)
			}
			entries, err := os.ReadDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			if tt.code == 0 {
				if said != "" { // a pipe gets no message
					t.Errorf("stderr %q, want nothing", said)
				}
				if _, err := gguf.Open(filepath.Join(dir, "model.gguf")); err != nil || len(entries) != 1 {
					t.Errorf("model: %v; %d files, want 1", err, len(entries))
				}
				return
			}
			if !strings.Contains(said, tt.stderr) || strings.Count(said, "\n") != 1 || len(entries) != 0 {
				t.Errorf("stderr %q, want one line with %q; %d files left", said, tt.stderr, len(entries))
			}
		})
	}
}

func TestSynthStdout(t *testing.T) {
	path := filepath.Join(t.TempDir(), "model.gguf")
	args := []string{"synth", "--size", "3MB", "--seed", "7", "-o"}
	if code, _, stderr := lab(t.Context(), append(args, path)...); code != 0 {
		t.Fatalf("exit %d, want 0: %s", code, stderr)
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	code, got, stderr := lab(t.Context(), append(args, "-")...)
	if code != 0 {
		t.Fatalf("exit %d, want 0: %s", code, stderr)
	}
	if got != string(want) {
		t.Errorf("-o - wrote %d bytes that differ from the file's %d", len(got), len(want))
	}
}

// TestInflate checks that the copy appears as a whole, and that a model that cannot be inflated
// leaves nothing and gets one line on stderr.
func TestInflate(t *testing.T) {
	testenv.SkipWithRace(t)
	dir := t.TempDir()
	write := func(name string, flags ...string) {
		t.Helper()
		args := append([]string{"synth", "-o", filepath.Join(dir, name), "--layers", "1", "--embd", "64", "--ff",
			"64", "--heads", "2"}, flags...)
		if code, _, stderr := lab(t.Context(), args...); code != 0 {
			t.Fatalf("exit %d, want 0: %s", code, stderr)
		}
	}
	moe := []string{"--experts", "4", "--used", "2"}
	write("dense.gguf")
	write("moe.gguf", moe...)
	write("float.gguf", append(moe, "--type", "F16")...)
	(&gguftest.Model{
		KVs:     []gguftest.KV{{Key: "general.architecture", Value: "llama"}},
		Tensors: []gguftest.Tensor{{Name: "blk.0.attn_q.weight", Type: gguf.F32, Shape: []int64{64, 64}}},
	}).Write(t, filepath.Join(dir, "attention.gguf"))
	if err := os.WriteFile(filepath.Join(dir, "text"), []byte("no model"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		args   []string
		code   int
		stderr string // part of the one line; none if empty
	}{
		"quantised":  {[]string{"--inflate", "4", "moe.gguf"}, 0, ""},
		"over it":    {[]string{"--inflate", "4", "moe.gguf", "--seed", "3"}, 0, ""},
		"float":      {[]string{"--inflate", "4", "float.gguf"}, 0, "zeros"},
		"dense":      {[]string{"--inflate", "4", "dense.gguf"}, 0, ""},
		"attention":  {[]string{"--inflate", "4", "attention.gguf"}, 1, "no feed-forward networks"},
		"no model":   {[]string{"--inflate", "4", "text"}, 1, "text"},
		"no file":    {[]string{"--inflate", "4", "none"}, 1, "none"},
		"directory":  {[]string{"--inflate", "4", "."}, 1, "regular"},
		"device":     {[]string{"--inflate", "4", "/dev/zero"}, 1, "regular"},
		"once":       {[]string{"--inflate", "1", "moe.gguf"}, 2, "inflate"},
		"no source":  {[]string{"--inflate", "4"}, 2, "name one"},
		"two":        {[]string{"--inflate", "4", "moe.gguf", "float.gguf"}, 2, "name one"},
		"with size":  {[]string{"--inflate", "4", "moe.gguf", "--size", "5MB"}, 2, "--size"},
		"with type":  {[]string{"--inflate", "4", "moe.gguf", "--type", "F16"}, 2, "--type"},
		"no inflate": {[]string{"moe.gguf"}, 2, "--inflate"},
	} {
		t.Run(name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "out.gguf")
			cmd, stdout, stderr := labProcess(t, append([]string{"synth", "-o", out}, tt.args...)...)
			cmd.Dir = dir
			code := exitCode(t, cmd.Run())
			said := stderr.String()
			if code != tt.code || stdout.Len() > 0 || !strings.Contains(said, tt.stderr) ||
				(said != "") != (tt.stderr != "") || strings.Count(said, "\n") > 1 {
				t.Errorf("exit %d, want %d; stdout %q, stderr %q, want one line with %q", code, tt.code,
					stdout.String(), said, tt.stderr)
			}
			f, err := gguf.Open(out)
			if (err == nil) != (tt.code == 0) {
				t.Fatal(err)
			}
			if err == nil {
				if ff, _ := f.Uint("llama.feed_forward_length"); ff != 256 {
					t.Errorf("feed_forward_length is %d, want 256", ff)
				}
			}
		})
	}
}

// TestSynthRoutes plants a trace, and checks that one that cannot be planted leaves nothing and gets one line
// that says why.
func TestSynthRoutes(t *testing.T) {
	dir := t.TempDir()
	write := func(name, data string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	head := "# route_trace v1\n# n_layer=2 n_expert=8 n_expert_used=2\nturn,phase,step,layer,slot,expert\n"
	rows := "0,0,0,0,0,3\n0,0,0,0,1,7\n0,0,0,1,0,1\n0,0,0,1,1,0\n0,1,1,0,0,2\n0,1,1,0,1,3\n"
	write("routes.csv", head+rows)
	write("beyond.csv", head+"0,0,0,0,0,8\n")
	write("empty.csv", head)
	write("text", "no trace\n")
	write("cut.csv.gz", "\x1f\x8b\x08")
	var zipped strings.Builder
	z := gzip.NewWriter(&zipped)
	if _, err := z.Write([]byte(head + rows)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	write("routes.csv.gz", zipped.String())

	widths := []string{"--embd", "256", "--ff", "64", "--heads", "4"}
	with := func(file string, more ...string) []string { return append(append(more, "--routes", file), widths...) }
	for name, tt := range map[string]struct {
		args   []string
		code   int
		stderr []string // parts of its lines, one for each
	}{
		"plain": {with("routes.csv"), 0, []string{`" t0" to " t1"`, "where 0.78 was wanted", "random: 1"}},
		"gzip":  {with("routes.csv.gz"), 0, []string{`begins with " t1"`, "recall", "random: 1"}},
		"its numbers": {
			with("routes.csv", "--experts", "8", "--used", "2", "--layers", "2"), 0,
			[]string{"tokens", "recall", "random: 1"},
		},
		"more layers": {
			with("routes.csv", "--layers", "3"), 0,
			[]string{"tokens", "recall", "3 layers and the trace 2", "random: 1"},
		},
		"size": {
			[]string{"--routes", "routes.csv", "--size", "20MB"}, 0,
			[]string{"tokens", "recall", "layers", "random"},
		},
		"other experts":  {with("routes.csv", "--experts", "16"), 2, []string{"experts: 16, but the trace has 8"}},
		"other used":     {with("routes.csv", "--used", "1"), 2, []string{"used: 1, but the trace has 2"}},
		"no widths":      {[]string{"--routes", "routes.csv"}, 2, []string{"--size"}},
		"beyond":         {with("beyond.csv"), 1, []string{"beyond.csv: line 4: expert 8, want 0 to 7"}},
		"no rows":        {with("empty.csv"), 1, []string{"empty.csv: no routes"}},
		"no trace":       {with("text"), 1, []string{"no routing trace"}},
		"cut":            {with("cut.csv.gz"), 1, []string{"cut.csv.gz: decompress"}},
		"no file":        {with("none"), 1, []string{"none"}},
		"directory":      {with("."), 1, []string{"regular"}},
		"recall of 0":    {with("routes.csv", "--recall", "0"), 2, []string{"--recall=0"}},
		"recall of NaN":  {with("routes.csv", "--recall", "NaN"), 2, []string{"--recall=NaN"}},
		"recall alone":   {append([]string{"--recall", "0.5", "--layers", "2"}, widths...), 2, []string{"--routes"}},
		"no such router": {with("routes.csv", "--arch", "deepseek4"), 2, []string{"deepseek4"}},
		"inflated":       {[]string{"--routes", "routes.csv", "--inflate", "4", "m.gguf"}, 2, []string{"--routes"}},
	} {
		t.Run(name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "out.gguf")
			cmd, stdout, stderr := labProcess(t, append([]string{"synth", "-o", out}, tt.args...)...)
			cmd.Dir = dir
			code := exitCode(t, cmd.Run())
			lines := strings.Split(strings.TrimSuffix(stderr.String(), "\n"), "\n")
			ok := code == tt.code && stdout.Len() == 0 && len(lines) == len(tt.stderr)
			for i := 0; ok && i < len(lines); i++ {
				ok = strings.Contains(lines[i], tt.stderr[i])
			}
			if !ok {
				t.Errorf("exit %d, want %d; stdout %q, stderr %q, want lines with %q", code, tt.code, stdout.String(),
					lines, tt.stderr)
			}
			if _, err := gguf.Open(out); (err == nil) != (tt.code == 0) {
				t.Error(err)
			}
		})
	}
}

// TestSynthInterrupted stops the command in the middle. Nothing new remains, and an old file is as
// it was.
func TestSynthInterrupted(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "model.gguf")
	if err := os.WriteFile(path, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd, _, stderr := labProcess(t, "synth", "-o", path, "--size", "8GB")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for started := false; !started; {
		select {
		case err := <-exited:
			t.Fatalf("ended before it was interrupted: %v, stderr %q", err, stderr.String())
		case <-tick.C:
		}
		open, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		for _, fd := range open { // the output has no name yet
			to, err := os.Readlink(fd)
			info, statErr := os.Stat(fd)
			started = started || err == nil && strings.HasPrefix(to, dir+"/") && statErr == nil &&
				info.Mode().IsRegular() && info.Size() > 0
		}
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if code := exitCode(t, <-exited); code != 1 || strings.Count(stderr.String(), "\n") != 1 {
		t.Errorf("exit %d, stderr %q; want 1 and one line", code, stderr.String())
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if old, _ := os.ReadFile(path); len(entries) != 1 || string(old) != "old" {
		t.Errorf("%d files are left, the old one has %d bytes; want it alone and unchanged", len(entries), len(old))
	}
}
