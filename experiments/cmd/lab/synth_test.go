package main

// This file tests "lab synth": its flags, its errors and its output.

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tensorcast/gguf"
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
		"dense":      {[]string{"--inflate", "4", "dense.gguf"}, 1, "no experts"},
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
